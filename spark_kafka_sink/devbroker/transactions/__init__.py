"""The transaction coordinator, and its state of each transactional id."""
