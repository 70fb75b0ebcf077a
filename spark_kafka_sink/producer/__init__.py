"""The producer: records become batches, and a thread of its own sends them."""
