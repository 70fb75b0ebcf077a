"""Batches: what one holds, what becomes of it, and what its errors mean."""
