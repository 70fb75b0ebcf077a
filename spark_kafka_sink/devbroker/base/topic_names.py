"""The names that topics may have (Kafka's Topic), and those of Kafka's internal topics.

The partitions of the internal topics decide which broker coordinates what, and a transaction that
includes a group's offsets includes the group's partition. With several brokers they are topics like
others. Clients do not see those of one broker, whose coordinators store their state in memory or in
logs of their own (`coordinator_log`).
"""

from __future__ import annotations

import re
import sys

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode

MAX_TOPIC_NAME_LENGTH = 249
_LEGAL_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")
GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, "__share_group_state"})
#: Partitions of the first two (offsets.topic.num.partitions, transaction.state.log.num.partitions).
COORDINATOR_PARTITIONS = 50
#: Internal topics whose partition leaders are coordinators.
COORDINATED_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})
_NATIVE_UTF_16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


def validate_topic_name(name: str) -> None:
    """Raise RefusedError with INVALID_TOPIC_EXCEPTION for a name that Topic.validate rejects."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in {".", ".."}:
        reason = f"{name!r} is not allowed"
    elif len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = f"it has {len(name)} characters, and at most {MAX_TOPIC_NAME_LENGTH} are allowed"
    elif not _LEGAL_TOPIC_NAME.fullmatch(name):
        reason = f"{name!r} contains characters other than ASCII letters, digits, '.', '_' and '-'"
    else:
        return
    raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def collision_key(name: str) -> str:
    """Return a key shared by names whose metrics would collide (Topic.unifyCollisionChars)."""
    return name.replace(".", "_")


def coordinator_partition(key: str) -> int:
    """Return the partition of an internal topic that a group or transactional id maps to.

    This is Utils.abs of Java's String.hashCode, which is computed over UTF-16 code units.
    """
    units = memoryview(key.encode(_NATIVE_UTF_16, "surrogatepass")).cast("H")
    code = 0
    first = len(units) % 4
    for unit in units[:first]:
        code = 31 * code + unit
    # Four units per step: a request may hold millions of characters.
    rest = iter(units[first:])
    for a, b, c, d in zip(rest, rest, rest, rest, strict=True):
        code = (31**4 * code + 31**3 * a + 31**2 * b + 31 * c + d) & 0xFFFFFFFF
    if code >= 1 << 31:
        # Java's Math.abs returns the smallest integer unchanged; Utils.abs makes it 0.
        code = ((1 << 32) - code) & 0x7FFFFFFF
    return code % COORDINATOR_PARTITIONS


def coordinates(topic_partition: TopicPartition) -> bool:
    """Return whether the leader of a partition is a coordinator."""
    topic, index = topic_partition
    return topic in COORDINATED_TOPICS and 0 <= index < COORDINATOR_PARTITIONS


def group_metadata_partition(group_id: str) -> TopicPartition:
    """Return the partition in which Kafka stores a group's offsets."""
    return TopicPartition(GROUP_METADATA_TOPIC, coordinator_partition(group_id))
