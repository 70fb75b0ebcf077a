"""The settings of a topic that this broker honours, and what it says to all others.

A setting is accepted if the broker does what it says, and refused with INVALID_CONFIG otherwise: a
setting that has no effect would be a promise not kept. Names, types, ranges and defaults are those
of Kafka's LogConfig.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MAX_INT64 = 2**63 - 1
_MAX_INT32 = 2**31 - 1
_CLEANUP_POLICIES = frozenset({"delete", "compact"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What a topic's settings come to."""

    #: Largest record batch in bytes, as it arrives (compressed), header included.
    max_message_bytes: int = 1024 * 1024 + 12
    #: The broker's clock replaces the producer's timestamps (message.timestamp.type).
    log_append_time: bool = False
    #: How far a record's timestamp may lie in the past, in milliseconds.
    message_timestamp_before_max_ms: int = _MAX_INT64
    #: How far it may lie in the future, in milliseconds (1 h since Kafka 4.0, KIP-937).
    message_timestamp_after_max_ms: int = 3_600_000
    #: Fewer replicas in sync take no records with acks=all; see `Partition.check_enough_replicas`.
    min_insync_replicas: int = 1
    cleanup_policy: str = "delete"
    #: Bytes of batches after which a log begins a new segment.
    segment_bytes: int = 1024**3
    #: Age after which it does so, in milliseconds.
    segment_ms: int = 7 * 24 * 3_600_000
    #: Most bytes of an index of a segment.
    segment_index_bytes: int = 10 * 1024**2
    #: Bytes of batches that get an entry in the indexes.
    index_interval_bytes: int = 4096
    #: Age of records after which a segment is deleted, in milliseconds; -1 is never.
    retention_ms: int = 7 * 24 * 3_600_000
    #: Bytes of a log beyond which segments are deleted; -1 is no limit.
    retention_bytes: int = -1
    #: How long compaction leaves a tombstone there, in milliseconds.
    delete_retention_ms: int = 24 * 3_600_000
    #: How much of a log must be new before it is compacted, from 0 to 1.
    min_cleanable_dirty_ratio: float = 0.5
    #: Age before which compaction leaves a record alone, in milliseconds.
    min_compaction_lag_ms: int = 0
    #: Records after which a log is flushed.
    flush_messages: int = _MAX_INT64
    #: Milliseconds after which a log is flushed.
    flush_ms: int = _MAX_INT64

    @property
    def compact(self) -> bool:
        """Whether records are kept by key, and so need one."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether records may be deleted by their age, or on request."""
        return "delete" in self.cleanup_policy

    @property
    def limits_past_timestamps(self) -> bool:
        """Whether a record can be too old."""
        return self.message_timestamp_before_max_ms < _MAX_INT64

    def with_values(self, values: Mapping[str, str]) -> TopicConfig:
        """Return these settings with some set anew, by Kafka's names and in Kafka's notation.

        Raises RefusedError with INVALID_CONFIG, naming the setting.
        """
        changes: dict[str, float | bool | str] = {}
        for name, value in values.items():
            key = _KEYS.get(name)
            if key is None:
                raise _invalid(_unknown_or_not_built(name))
            try:
                parsed = key.parse(value)
            except ValueError as error:
                raise _invalid(f"Invalid value {value} for configuration {name}: {error}") from None
            if key.attribute is not None:
                changes[key.attribute] = parsed
        # The table below pairs each attribute with a parser of its type.
        return replace(self, **changes)  # type: ignore[arg-type]

    def effective_values(self) -> dict[str, str]:
        """Return every setting that the broker honours, in Kafka's notation, sorted by name."""
        return {name: key.format(self) for name, key in sorted(_KEYS.items())}


class _Key(NamedTuple):
    """How one setting is read and shown."""

    #: None for settings that have only one value here.
    attribute: str | None
    parse: Callable[[str], float | bool | str]
    format: Callable[[TopicConfig], str]


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_CONFIG, message)


def _unknown_or_not_built(name: str) -> str:
    if name in _NOT_BUILT:
        return f"{name} is a setting of Kafka's that this broker does not have"
    return f"Unknown topic config name: {name}"


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("Not a number") from None
        if not low <= number <= high:
            raise ValueError(f"Value must be between {low} and {high}")
        return number

    return parse


def _ratio(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise ValueError("Not a number") from None
    if not 0 <= number <= 1:
        raise ValueError("Value must be between 0 and 1")
    return number


def _timestamp_type(value: str) -> bool:
    if value not in {"CreateTime", "LogAppendTime"}:
        raise ValueError("String must be one of: CreateTime, LogAppendTime")
    return value == "LogAppendTime"


def _cleanup_policy(value: str) -> str:
    policies = [policy.strip() for policy in value.split(",")]
    if not _CLEANUP_POLICIES.issuperset(policies):
        raise ValueError("Entry must be one of: compact, delete")
    return ",".join(dict.fromkeys(policies))


def _only(allowed: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value != allowed:
            raise ValueError(f"this broker has only {allowed}")
        return value

    return parse


_KEYS: dict[str, _Key] = {
    "max.message.bytes": _Key(
        "max_message_bytes", _integer(0, _MAX_INT32), lambda c: str(c.max_message_bytes)
    ),
    "message.timestamp.type": _Key(
        "log_append_time",
        _timestamp_type,
        lambda c: "LogAppendTime" if c.log_append_time else "CreateTime",
    ),
    "message.timestamp.before.max.ms": _Key(
        "message_timestamp_before_max_ms",
        _integer(0, _MAX_INT64),
        lambda c: str(c.message_timestamp_before_max_ms),
    ),
    "message.timestamp.after.max.ms": _Key(
        "message_timestamp_after_max_ms",
        _integer(0, _MAX_INT64),
        lambda c: str(c.message_timestamp_after_max_ms),
    ),
    "min.insync.replicas": _Key(
        "min_insync_replicas", _integer(1, _MAX_INT32), lambda c: str(c.min_insync_replicas)
    ),
    "cleanup.policy": _Key("cleanup_policy", _cleanup_policy, lambda c: c.cleanup_policy),
    "segment.bytes": _Key(
        "segment_bytes", _integer(1024**2, _MAX_INT32), lambda c: str(c.segment_bytes)
    ),
    "segment.ms": _Key("segment_ms", _integer(1, _MAX_INT64), lambda c: str(c.segment_ms)),
    "segment.index.bytes": _Key(
        "segment_index_bytes", _integer(4, _MAX_INT32), lambda c: str(c.segment_index_bytes)
    ),
    "index.interval.bytes": _Key(
        "index_interval_bytes", _integer(0, _MAX_INT32), lambda c: str(c.index_interval_bytes)
    ),
    "flush.messages": _Key(
        "flush_messages", _integer(1, _MAX_INT64), lambda c: str(c.flush_messages)
    ),
    "flush.ms": _Key("flush_ms", _integer(0, _MAX_INT64), lambda c: str(c.flush_ms)),
    # Batches are kept as they came, for as long as the broker runs.
    "compression.type": _Key(None, _only("producer"), lambda _: "producer"),
    "retention.ms": _Key("retention_ms", _integer(-1, _MAX_INT64), lambda c: str(c.retention_ms)),
    "retention.bytes": _Key(
        "retention_bytes", _integer(-1, _MAX_INT64), lambda c: str(c.retention_bytes)
    ),
    "delete.retention.ms": _Key(
        "delete_retention_ms", _integer(0, _MAX_INT64), lambda c: str(c.delete_retention_ms)
    ),
    "min.cleanable.dirty.ratio": _Key(
        "min_cleanable_dirty_ratio", _ratio, lambda c: str(c.min_cleanable_dirty_ratio)
    ),
    "min.compaction.lag.ms": _Key(
        "min_compaction_lag_ms", _integer(0, _MAX_INT64), lambda c: str(c.min_compaction_lag_ms)
    ),
}

#: The other settings of Kafka's LogConfig: known, so that they are not called unknown.
_NOT_BUILT = frozenset(
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
        "unclean.leader.election.enable",
    }
)
