"""The metrics of a consumer, under the names of Kafka's Java consumer."""
