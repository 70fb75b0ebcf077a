"""A consumer at work: its coordinator, its positions and its fetches, on the network thread."""
