"""The compiled loops that write and read records, and the cache of their machine code."""
