"""The topics that a producer asks about, each for as long as it is used (ProducerMetadata).

A topic that was not used for metadata.max.idle.ms is dropped, so that a producer which writes to
ever new topics does not ask about all of them for ever. One that has not been answered for yet is
never dropped. Any thread may add topics: a writing thread notes the use of its topics without
asking the network thread. Reads no clock.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


class MetadataTopics:
    """Topics with the time of their expiry; times are seconds, given by the caller."""

    def __init__(self, *, max_idle: float) -> None:
        """Start with none."""
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._expires_at: dict[str, float] = {}
        self._new: dict[str, None] = {}

    def add(self, topic: str, now: float) -> bool:
        """Note that a topic is used; give whether it is a new one."""
        with self._lock:
            is_new = topic not in self._expires_at
            self._expires_at[topic] = now + self._max_idle
            if is_new:
                self._new[topic] = None
            return is_new

    def ask_again(self, topic: str) -> None:
        """Treat a topic as if it had never been answered for."""
        with self._lock:
            if topic in self._expires_at:
                self._new[topic] = None

    @property
    def has_new(self) -> bool:
        """Whether there are topics that no answer has named yet."""
        return bool(self._new)

    def all(self) -> tuple[str, ...]:
        """Give all topics, in the order of their coming."""
        with self._lock:
            return tuple(self._expires_at)

    def new(self) -> tuple[str, ...]:
        """Give the topics that no answer has named yet."""
        with self._lock:
            return tuple(self._new)

    def answered(self, topics: Collection[str]) -> None:
        """Note which topics an answer has named."""
        with self._lock:
            for topic in topics:
                self._new.pop(topic, None)

    def expire(self, now: float) -> frozenset[str]:
        """Drop the topics that were not used for too long, and name them."""
        with self._lock:
            expired = frozenset(
                topic
                for topic, expires_at in self._expires_at.items()
                if expires_at <= now and topic not in self._new
            )
            for topic in expired:
                del self._expires_at[topic]
            return expired
