"""The largest batch size of each topic: batch.size, until a broker refuses a batch as too large."""

from __future__ import annotations


class BatchSizes:
    """The sizes in bytes of batches on the wire. Only the network thread lowers them."""

    def __init__(self, batch_size: int) -> None:
        """Set the size (batch.size) for all topics."""
        self._batch_size = batch_size
        self._lowered: dict[str, int] = {}

    def size_of(self, topic: str) -> int:
        """Return the largest size that a batch of this topic may have."""
        return self._lowered.get(topic, self._batch_size)

    def lower(self, topic: str, refused_bytes: int) -> None:
        """Set a topic's size to half of that of a refused batch, unless it is smaller already."""
        self._lowered[topic] = min(self.size_of(topic), refused_bytes // 2)
