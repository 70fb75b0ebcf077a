"""The reading of record batches into Arrow tables."""
