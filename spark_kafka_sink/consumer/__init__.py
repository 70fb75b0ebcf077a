"""Kafka's consumer: groups, assigned partitions and bounded reads, as records or in Arrow."""
