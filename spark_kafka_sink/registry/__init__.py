"""Clients of a Schema Registry: schemas by id and by subject, and framing. No Kafka, no Spark."""
