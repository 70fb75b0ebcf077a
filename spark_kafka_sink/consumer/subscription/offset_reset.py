"""Where a partition starts if it has no valid position (`auto.offset.reset`, KIP-1106).

Pure values: the time is an argument, and nothing is looked up here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spark_kafka_sink.config.iso_durations import duration_ns
from spark_kafka_sink.errors import ConfigError, IllegalStateError

#: The timestamps by which ListOffsets names the two ends of a log.
LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2

_BY_DURATION: Final = "by_duration:"
_NANOSECONDS: Final = 1_000_000_000


class ResetType(StrEnum):
    """The kinds of start (AutoOffsetResetStrategy.StrategyType)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    BY_DURATION = "by_duration"


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A value of `auto.offset.reset` (Kafka's AutoOffsetResetStrategy).

    Two values are equal if they have the same kind and the same duration.
    """

    type: ResetType
    #: Nanoseconds before now, for BY_DURATION; 0 for the others.
    duration_ns: int = 0

    def __str__(self) -> str:
        """Return the kind, with the duration in seconds if there is one."""
        if self.type is not ResetType.BY_DURATION:
            return self.type.value
        return f"by_duration ({self.duration_ns / _NANOSECONDS:g} s)"

    def timestamp(self, now_ms: int) -> int:
        """Return the timestamp with which to ask ListOffsets for the start.

        `now_ms` and the result are milliseconds since 1970. A duration that reaches back beyond
        1970 gives 0, because negative timestamps have meanings of their own. Raise
        IllegalStateError for NONE, which has no start.

        Source: AutoOffsetResetStrategy.timestamp, KIP-1106.
        """
        match self.type:
            case ResetType.EARLIEST:
                return EARLIEST_TIMESTAMP
            case ResetType.LATEST:
                return LATEST_TIMESTAMP
            case ResetType.BY_DURATION:
                return max((now_ms * 1_000_000 - self.duration_ns) // 1_000_000, 0)
            case ResetType.NONE:
                raise IllegalStateError(
                    "auto.offset.reset is 'none': there is no offset to reset to"
                )


EARLIEST: Final = OffsetReset(ResetType.EARLIEST)
LATEST: Final = OffsetReset(ResetType.LATEST)
NONE: Final = OffsetReset(ResetType.NONE)
_NAMED: Final = {str(value): value for value in (EARLIEST, LATEST, NONE)}


def parse_offset_reset(value: str) -> OffsetReset:
    """Parse a value of `auto.offset.reset`; raise ConfigError for any other text.

    The values are `earliest`, `latest`, `none` and `by_duration:` with an ISO 8601 duration of
    days, hours, minutes and seconds that is not negative, such as `by_duration:PT36H`.

    Source: AutoOffsetResetStrategy.fromString, java.time.Duration.parse.
    """
    if value in _NAMED:
        return _NAMED[value]
    duration = duration_ns(value.removeprefix(_BY_DURATION))
    if not value.startswith(_BY_DURATION) or duration is None or duration < 0:
        raise ConfigError(
            f"auto.offset.reset: {value!r} is invalid. Use 'earliest', 'latest', 'none' or "
            "'by_duration:' with an ISO 8601 duration that is not negative, such as "
            "'by_duration:P1DT12H'"
        )
    return OffsetReset(ResetType.BY_DURATION, duration)
