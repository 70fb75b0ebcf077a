"""Closed batches: their queues, their requests, and the handling of the responses."""
