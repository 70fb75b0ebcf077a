"""Kafka's wire protocol as data: each message declared once, both directions derived from it."""
