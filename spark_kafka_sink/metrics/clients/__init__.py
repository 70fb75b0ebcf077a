"""The metrics that producers and consumers have in common."""
