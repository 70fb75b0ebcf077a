"""The metrics of a producer, under the names of Kafka's Java producer."""
