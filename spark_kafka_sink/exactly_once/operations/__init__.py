"""What an operator sees of a prefix, and can do about it."""
