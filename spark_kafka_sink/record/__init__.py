"""Records: encoding Arrow columns as v2 record batches, and decoding record batches."""
