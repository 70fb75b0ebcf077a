"""The decoding of record batches into Arrow."""
