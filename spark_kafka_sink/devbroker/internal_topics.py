"""Kafka's internal topics, and which partition of them a group or transactional id belongs to.

Clients do not see the topics: the coordinators keep what they hold, in memory or in logs of their
own (`coordinator_log`). Their partitions matter even so: they decide which broker coordinates what,
and are what a transaction has in place of a group's offsets.
"""

from __future__ import annotations

import sys

from spark_kafka_sink.model import TopicPartition

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, "__share_group_state"})
#: Partitions of the first two (offsets.topic.num.partitions, transaction.state.log.num.partitions).
COORDINATOR_PARTITIONS = 50
_NATIVE_UTF_16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


def coordinator_partition(key: str) -> int:
    """Return the partition of an internal topic that a group or transactional id belongs to.

    Utils.abs of Java's String.hashCode, which counts in UTF-16.
    """
    units = memoryview(key.encode(_NATIVE_UTF_16, "surrogatepass")).cast("H")
    code = 0
    first = len(units) % 4
    for unit in units[:first]:
        code = 31 * code + unit
    # Four steps at once: a request may hold millions of characters.
    rest = iter(units[first:])
    for a, b, c, d in zip(rest, rest, rest, rest, strict=True):
        code = (31**4 * code + 31**3 * a + 31**2 * b + 31 * c + d) & 0xFFFFFFFF
    if code >= 1 << 31:
        # Java's abs leaves the smallest number as it is; Utils.abs makes it 0.
        code = ((1 << 32) - code) & 0x7FFFFFFF
    return code % COORDINATOR_PARTITIONS


def group_metadata_partition(group_id: str) -> TopicPartition:
    """Return the partition in which Kafka keeps a group's offsets."""
    return TopicPartition(GROUP_METADATA_TOPIC, coordinator_partition(group_id))
