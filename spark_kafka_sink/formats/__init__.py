"""Formats of keys and values: payloads to columns of Arrow. No Kafka, no Spark."""
