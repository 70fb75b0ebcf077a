"""One connection to one broker: opening it, and sending requests in order."""
