"""Kafka's consumer: bounded ranges of partitions, as Arrow record batches."""
