"""The operator's view of a prefix, and the repairs that an operator can make."""
