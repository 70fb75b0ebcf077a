"""The producer's id, its sequence numbers and its transactions."""
