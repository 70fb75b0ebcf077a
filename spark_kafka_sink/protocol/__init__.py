"""Kafka's wire protocol as data: one declaration per message, from which both codecs are built."""
