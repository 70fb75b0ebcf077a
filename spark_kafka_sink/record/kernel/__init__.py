"""The compiled loops that write records, and the cache of their machine code."""
