"""One connection to one broker: how it is made, and requests in their order."""
