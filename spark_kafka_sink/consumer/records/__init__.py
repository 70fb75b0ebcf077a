"""Records as a consumer returns them, made from the record batches of Fetch responses."""
