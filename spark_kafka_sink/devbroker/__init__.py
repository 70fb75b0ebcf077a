"""A strict, small, single-process Kafka broker for demos and tests."""
