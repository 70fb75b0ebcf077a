"""A record as passed to `KafkaProducer.send` (Kafka's ProducerRecord)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record before its key and value are serialized.

    It is frozen because interceptors pass it on: `dataclasses.replace` creates a changed copy.

    `topic` is the topic's name; `headers` are (name, bytes) pairs, with None for a header without a
    value.

    >>> from dataclasses import replace
    >>> record = ProducerRecord("orders", b"a book", key=b"alice")
    >>> replace(record, headers=[("source", b"web")]).headers
    [('source', b'web')]
    """

    topic: str
    #: None deletes the key in a compacted topic (a tombstone).
    value: Any = None
    #: None leaves the partition to the partitioner's rule for records without a key.
    key: Any = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    #: None leaves the choice to the partitioner.
    partition: int | None = None
    #: Milliseconds since 1970 (UTC); None means the time of sending.
    timestamp: int | None = None
