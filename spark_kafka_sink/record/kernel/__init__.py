"""The compiled loops that write records, and where their machine code is kept."""
