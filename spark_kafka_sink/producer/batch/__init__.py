"""Closed batches: memory, compression, outcomes and errors, and what an interrupt leaves behind."""
