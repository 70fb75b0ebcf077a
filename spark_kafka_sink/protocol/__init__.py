"""Kafka's wire protocol as data: messages declared once, encoded and decoded from that declaration."""
