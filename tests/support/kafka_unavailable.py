"""The one error of all ways to get a real Kafka."""

from __future__ import annotations


class KafkaUnavailableError(Exception):
    """A real Kafka cannot be had in this way; the message says why."""
