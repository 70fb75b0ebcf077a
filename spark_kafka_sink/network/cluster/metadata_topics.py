"""The topics that a producer needs metadata for, each as long as it is in use (ProducerMetadata).

A topic that has not been used for metadata.max.idle.ms is dropped, so that a producer that keeps
writing to new topics does not request all of them forever. A topic that no response has named yet
is never dropped. Any thread may add topics: a writing thread records the use of its topics without
involving the network thread. Reads no clock.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


class MetadataTopics:
    """Topics and their expiry times; callers pass times in seconds."""

    def __init__(self, *, max_idle: float) -> None:
        """Start without topics."""
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._expires_at: dict[str, float] = {}
        self._new: dict[str, None] = {}

    def add(self, topic: str, now: float) -> bool:
        """Record that a topic is used; return whether it is new."""
        with self._lock:
            is_new = topic not in self._expires_at
            self._expires_at[topic] = now + self._max_idle
            if is_new:
                self._new[topic] = None
            return is_new

    def ask_again(self, topic: str) -> None:
        """Treat a topic as if no response had ever named it."""
        with self._lock:
            if topic in self._expires_at:
                self._new[topic] = None

    @property
    def has_new(self) -> bool:
        """Whether there are topics that no response has named yet."""
        return bool(self._new)

    def all(self) -> tuple[str, ...]:
        """Return all topics, in the order they were added."""
        with self._lock:
            return tuple(self._expires_at)

    def new(self) -> tuple[str, ...]:
        """Return the topics that no response has named yet."""
        with self._lock:
            return tuple(self._new)

    def answered(self, topics: Collection[str]) -> None:
        """Record which topics a response has named."""
        with self._lock:
            for topic in topics:
                self._new.pop(topic, None)

    def expire(self, now: float) -> frozenset[str]:
        """Remove the topics that have not been used for too long, and return them."""
        with self._lock:
            expired = frozenset(
                topic
                for topic, expires_at in self._expires_at.items()
                if expires_at <= now and topic not in self._new
            )
            for topic in expired:
                del self._expires_at[topic]
            return expired
