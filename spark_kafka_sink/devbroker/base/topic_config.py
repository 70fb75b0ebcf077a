"""The settings of a topic that this broker supports.

A setting is accepted if the broker does what it says, and rejected with INVALID_CONFIG otherwise: a
setting without effect would be a broken promise. Names, types, ranges and defaults are those of
Kafka's LogConfig.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: The setting on which the controller acts, and not the logs.
UNCLEAN_LEADER_ELECTION: Final = "unclean.leader.election.enable"
_MAX_INT64 = 2**63 - 1
_MAX_INT32 = 2**31 - 1
_CLEANUP_POLICIES = frozenset({"delete", "compact"})
#: The settings without an attribute of the same name.
_TIMESTAMP_TYPE = "message.timestamp.type"
_COMPRESSION_TYPE = "compression.type"


class ConfigType(IntEnum):
    """The value types of Kafka's DescribeConfigsResponse.ConfigType."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The effective settings of a topic.

    `cleanup_policy` is "delete", "compact" or both, separated by a comma. The `values` passed to
    `with_values` are strings, as in Kafka.

    >>> TopicConfig(retention_ms=60_000).with_values({"cleanup.policy": "compact"}).compact
    True
    """

    #: Maximum size of a record batch in bytes, as received (compressed), header included.
    max_message_bytes: int = 1024 * 1024 + 12
    #: Whether the broker's clock replaces the producer's timestamps (message.timestamp.type).
    log_append_time: bool = False
    #: How far in the past a record's timestamp may lie, in milliseconds.
    message_timestamp_before_max_ms: int = _MAX_INT64
    #: How far in the future it may lie, in milliseconds (1 h since Kafka 4.0, KIP-937).
    message_timestamp_after_max_ms: int = 3_600_000
    #: Minimum in-sync replicas for writes with acks=all; see `Partition.check_enough_replicas`.
    min_insync_replicas: int = 1
    cleanup_policy: str = "delete"
    #: Size of the batches at which a log rolls to a new segment, in bytes.
    segment_bytes: int = 1024**3
    #: Age at which it does so, in milliseconds.
    segment_ms: int = 7 * 24 * 3_600_000
    #: Maximum size of a segment's index in bytes.
    segment_index_bytes: int = 10 * 1024**2
    #: Bytes of batches between two index entries.
    index_interval_bytes: int = 4096
    #: Age of records at which a segment is deleted, in milliseconds; -1 means never.
    retention_ms: int = 7 * 24 * 3_600_000
    #: Size of a log above which segments are deleted, in bytes; -1 means unlimited.
    retention_bytes: int = -1
    #: How long compaction retains a tombstone, in milliseconds.
    delete_retention_ms: int = 24 * 3_600_000
    #: The fraction of a log that must be new before it is compacted, from 0 to 1.
    min_cleanable_dirty_ratio: float = 0.5
    #: Minimum age of a record before compaction may remove it, in milliseconds.
    min_compaction_lag_ms: int = 0
    #: Number of records after which a log is flushed.
    flush_messages: int = _MAX_INT64
    #: Milliseconds after which a log is flushed.
    flush_ms: int = _MAX_INT64

    @property
    def compact(self) -> bool:
        """Whether the log is compacted, so that every record needs a key."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether records may be deleted by age or size, or on request."""
        return "delete" in self.cleanup_policy

    def with_values(self, values: Mapping[str, str]) -> TopicConfig:
        """Return a copy with some settings replaced, by Kafka's names and in Kafka's notation.

        Raises RefusedError with INVALID_CONFIG; the message names the setting.
        """
        changes: dict[str, float | bool | str] = {}
        for name, value in values.items():
            parse = _PARSERS.get(name)
            if parse is None:
                if name in _UNSUPPORTED:
                    raise _invalid(f"{name} is a Kafka setting that this broker does not support")
                raise _invalid(f"Unknown topic config name: {name}")
            try:
                parsed = parse(value)
            except ValueError as error:
                raise _invalid(f"Invalid value {value} for configuration {name}: {error}") from None
            if name == _TIMESTAMP_TYPE:
                changes["log_append_time"] = parsed == "LogAppendTime"
            elif name != _COMPRESSION_TYPE:
                changes[_attribute(name)] = parsed
        # The table below pairs each setting with a parser of its attribute's type.
        return replace(self, **changes)  # type: ignore[arg-type]

    def effective_values(self) -> dict[str, str]:
        """Return all supported settings, in Kafka's notation, sorted by name."""
        without_attribute = {
            _TIMESTAMP_TYPE: "LogAppendTime" if self.log_append_time else "CreateTime",
            _COMPRESSION_TYPE: "producer",
        }
        return {
            name: without_attribute.get(name) or str(getattr(self, _attribute(name)))
            for name in sorted(_PARSERS)
        }


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_CONFIG, message)


def _attribute(name: str) -> str:
    return name.replace(".", "_")


def _number(low: int, high: int, kind: type[float] = int) -> Callable[[str], float]:
    def parse(value: str) -> float:
        try:
            number = kind(value)
        except ValueError:
            raise ValueError("Not a number") from None
        if not low <= number <= high:
            raise ValueError(f"Value must be between {low} and {high}")
        return number

    return parse


def _timestamp_type(value: str) -> str:
    if value not in {"CreateTime", "LogAppendTime"}:
        raise ValueError("String must be one of: CreateTime, LogAppendTime")
    return value


def _cleanup_policy(value: str) -> str:
    policies = [policy.strip() for policy in value.split(",")]
    if not _CLEANUP_POLICIES.issuperset(policies):
        raise ValueError("Entry must be one of: compact, delete")
    return ",".join(dict.fromkeys(policies))


def _compression_type(value: str) -> str:
    # Batches are stored as the producer compressed them.
    if value != "producer":
        raise ValueError("this broker supports only producer")
    return value


_PARSERS: dict[str, Callable[[str], float | str]] = {
    "max.message.bytes": _number(0, _MAX_INT32),
    _TIMESTAMP_TYPE: _timestamp_type,
    "message.timestamp.before.max.ms": _number(0, _MAX_INT64),
    "message.timestamp.after.max.ms": _number(0, _MAX_INT64),
    "min.insync.replicas": _number(1, _MAX_INT32),
    "cleanup.policy": _cleanup_policy,
    "segment.bytes": _number(1024**2, _MAX_INT32),
    "segment.ms": _number(1, _MAX_INT64),
    "segment.index.bytes": _number(4, _MAX_INT32),
    "index.interval.bytes": _number(0, _MAX_INT32),
    "flush.messages": _number(1, _MAX_INT64),
    "flush.ms": _number(0, _MAX_INT64),
    _COMPRESSION_TYPE: _compression_type,
    "retention.ms": _number(-1, _MAX_INT64),
    "retention.bytes": _number(-1, _MAX_INT64),
    "delete.retention.ms": _number(0, _MAX_INT64),
    "min.cleanable.dirty.ratio": _number(0, 1, float),
    "min.compaction.lag.ms": _number(0, _MAX_INT64),
}

#: The type of each setting.
TOPIC_CONFIG_TYPES = {
    "max.message.bytes": ConfigType.INT,
    "message.timestamp.type": ConfigType.STRING,
    "message.timestamp.before.max.ms": ConfigType.LONG,
    "message.timestamp.after.max.ms": ConfigType.LONG,
    "min.insync.replicas": ConfigType.INT,
    "cleanup.policy": ConfigType.LIST,
    "compression.type": ConfigType.STRING,
    "retention.ms": ConfigType.LONG,
    "retention.bytes": ConfigType.LONG,
    "segment.bytes": ConfigType.INT,
    "segment.ms": ConfigType.LONG,
    "segment.index.bytes": ConfigType.INT,
    "index.interval.bytes": ConfigType.INT,
    "flush.messages": ConfigType.LONG,
    "flush.ms": ConfigType.LONG,
    "delete.retention.ms": ConfigType.LONG,
    "min.cleanable.dirty.ratio": ConfigType.DOUBLE,
    "min.compaction.lag.ms": ConfigType.LONG,
}

#: The other settings of Kafka's LogConfig, so that they are not reported as unknown.
_UNSUPPORTED = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "file.delete.delay.ms",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "message.downconversion.enable",
        "preallocate",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "segment.jitter.ms",
        UNCLEAN_LEADER_ELECTION,
    }
)


def without_controllers(values: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a topic without those on which the controller acts."""
    return {name: value for name, value in values.items() if name != UNCLEAN_LEADER_ELECTION}
