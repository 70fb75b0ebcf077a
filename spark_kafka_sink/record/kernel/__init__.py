"""The compiled loops that write and read records."""
