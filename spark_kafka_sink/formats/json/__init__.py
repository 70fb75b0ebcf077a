"""JSON as Spark's `to_json` writes it and `from_json` reads it, from and to columns of Arrow."""
