"""Requests to a cluster that need no producer: topics, transactions, consumer groups."""
