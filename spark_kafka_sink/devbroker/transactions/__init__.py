"""The coordinator of transactions, and what it remembers of each transactional id."""
