"""Batches: their contents, their results, and the meaning of their errors."""
