"""Closed batches on their way to a broker, and the transactions that they are part of."""
