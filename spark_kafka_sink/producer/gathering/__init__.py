"""Open batches, in which records wait until there are enough of them to send."""
