"""Closed batches: their queues, their requests, and what is done about the answers."""
