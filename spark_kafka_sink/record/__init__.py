"""Records: Arrow columns in, v2 record batches out, and back for readers."""
