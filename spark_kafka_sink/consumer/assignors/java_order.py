"""The order in which Java's hash tables iterate, and in which it compares strings.

Several of Java's assignors walk through a HashMap, so which member keeps a partition, or the order
of a member's partitions, follows from hash codes. To assign as they do, ours walk in that order:
by bucket, and within a bucket in the order of insertion.

A table starts with 16 buckets, doubles them when more than three quarters would be used, and never
shrinks. From nine keys in one bucket on, Java makes a tree of it, which has another order. That is
not imitated: it takes hundreds of members, or ids chosen for it.

Sources: java.util.HashMap (hash, resize, putVal); java.lang.String (hashCode, compareTo);
org.apache.kafka.common.TopicPartition (hashCode).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_kafka_sink.model import TopicPartition

_BUCKETS: Final = 16
_UINT32: Final = 0xFFFFFFFF


def text_order(text: str) -> bytes:
    """Return the sort key of a string: Java compares UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


@lru_cache(maxsize=4096)
def text_hash(text: str) -> int:
    """Return Java's hash code of a string, as an unsigned number."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", text_order(text)):
        value = (31 * value + unit) & _UINT32
    return value


def partition_hash(topic_partition: TopicPartition) -> int:
    """Return Java's hash code of a partition, as an unsigned number."""
    topic, partition = topic_partition
    return (31 * (31 + partition) + text_hash(topic)) & _UINT32


def hash_ordered(texts: Iterable[str]) -> list[str]:
    """Return distinct strings in the order of a HashMap or HashSet that they were put into."""
    distinct = dict.fromkeys(texts)
    buckets = _grown(_BUCKETS, len(distinct))
    return sorted(distinct, key=lambda text: _bucket(text_hash(text), buckets))


class HashOrderedPartitions:
    """A set of partitions that knows which of them a HashSet would return first."""

    __slots__ = ("_buckets", "_partitions")

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, None] = {}
        self._buckets = _BUCKETS

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, topic_partition: TopicPartition) -> None:
        """Add a partition."""
        self._partitions[topic_partition] = None
        self._buckets = _grown(self._buckets, len(self._partitions))

    def remove(self, topic_partition: TopicPartition) -> None:
        """Remove a partition, which must be there."""
        del self._partitions[topic_partition]

    def first(self) -> TopicPartition:
        """Return the first partition; there must be one."""
        return min(
            self._partitions,
            key=lambda topic_partition: _bucket(partition_hash(topic_partition), self._buckets),
        )


def _grown(buckets: int, size: int) -> int:
    while 4 * size > 3 * buckets:
        buckets *= 2
    return buckets


def _bucket(hash_code: int, buckets: int) -> int:
    return (hash_code ^ (hash_code >> 16)) & (buckets - 1)
