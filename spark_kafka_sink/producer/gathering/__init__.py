"""Open batches: where records wait until there are enough of them to be sent."""
