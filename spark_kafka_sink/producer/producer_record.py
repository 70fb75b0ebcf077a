"""A record as the caller of `KafkaProducer.send` gave it (Kafka's ProducerRecord)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record before its key and value are serialized.

    Frozen, since one interceptor hands it to the next: `dataclasses.replace` makes another one.
    """

    topic: str
    #: None deletes the key in a compacted topic (a tombstone).
    value: Any = None
    #: None leaves the partition to the partitioner's choice for records without a key.
    key: Any = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    #: None leaves it to the partitioner.
    partition: int | None = None
    #: Milliseconds since 1970 (UTC); None is the time of sending.
    timestamp: int | None = None
