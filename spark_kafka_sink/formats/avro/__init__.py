"""Avro: schemas, their resolution, and the plans by which payloads become columns."""
