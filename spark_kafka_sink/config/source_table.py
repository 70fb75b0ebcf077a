"""The table of the options of a read: those of Spark's own Kafka source, and `commitGroup`.

Names and defaults are Spark's (`KafkaSourceProvider`, 4.2), except for the default of
kafkaConsumer.pollTimeoutMs, which there is spark.network.timeout. `milliseconds` parses the values
that are times.
"""

from __future__ import annotations

import re
from typing import Final

from spark_kafka_sink.config.config_def import (
    LONG_MAX,
    ConfigDef,
    ConfigType,
    Importance,
    NotEmpty,
    OneOfAnyCase,
    Range,
    RequestName,
)

_BOOLEAN, _STRING, _INT, _LONG = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
)
_HIGH, _MEDIUM, _LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW

_TIME: Final = re.compile(r"([0-9]+)([a-z]*)")
#: Microseconds in each unit; a number alone is in milliseconds.
_UNITS: Final = {
    "us": 1,
    "": 1_000,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
#: More digits than any time has: Python limits the number of digits that it parses.
_MOST_DIGITS: Final = 19


def milliseconds(text: str) -> int:
    """Return a time in milliseconds, rounded down; raise ValueError if the text is not a time.

    Times are as Spark's options write them: `15m`, `30s`, `500ms` (its `JavaUtils.timeStringAsMs`).
    """
    match = _TIME.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS or len(match[1]) > _MOST_DIGITS:
        raise ValueError("must be a time such as 15m or 500ms")
    return min(int(match[1]) * _UNITS[match[2]] // 1_000, LONG_MAX)


class TimeText:
    """A validator of times."""

    def __str__(self) -> str:
        """Format it for the documentation."""
        return "a time with a unit (us, ms, s, m, min, h or d), or in ms"

    def problem(self, value: str) -> str | None:
        """Check that the text is a time."""
        try:
            milliseconds(value)
        except ValueError as error:
            return str(error)
        return None


SOURCE_OPTIONS_DEF: Final = (
    ConfigDef()
    .define(
        "subscribe",
        _STRING,
        None,
        None,
        _HIGH,
        "The topics to read, separated by commas. Exactly one of subscribe, subscribePattern and "
        "assign is required.",
    )
    .define(
        "subscribePattern",
        _STRING,
        None,
        NotEmpty(),
        _HIGH,
        "A regular expression (Python's): the topics with a match anywhere in their names are "
        "read, except for internal ones. A stream also reads topics that are created later.",
    )
    .define(
        "assign",
        _STRING,
        None,
        NotEmpty(),
        _HIGH,
        'The partitions to read, as JSON: `{"topicA": [0, 1], "topicB": [2, 4]}`.',
    )
    .define(
        "startingOffsets",
        _STRING,
        None,
        NotEmpty(),
        _HIGH,
        "Where to start: `earliest` (the default of a batch), `latest` (the default of a stream; "
        "not in a batch), or an offset for each partition, as JSON: "
        '`{"topicA": {"0": 23, "1": -2}, "topicB": "earliest"}`, where -2 means earliest and -1 '
        "latest (not in a batch), and a word stands for all partitions of a topic. "
        "A stream that has a checkpoint starts there, and reads new partitions from their "
        "beginning.",
    )
    .define(
        "endingOffsets",
        _STRING,
        None,
        NotEmpty(),
        _HIGH,
        "Where a batch ends: `latest` (the default), or an offset for each partition, as JSON like "
        "that of startingOffsets, where -1 means latest; -2 and earliest are not accepted. The "
        "record at the offset is not read.",
    )
    .define(
        "startingTimestamp",
        _LONG,
        None,
        Range(0),
        _MEDIUM,
        "Start each partition at its first record with this timestamp or a later one, in ms since "
        "1970. Takes precedence over startingOffsetsByTimestamp and startingOffsets.",
    )
    .define(
        "endingTimestamp",
        _LONG,
        None,
        Range(0),
        _MEDIUM,
        "End each partition of a batch before its first record with this timestamp or a later "
        "one; at the latest offset if there is none. Takes precedence over "
        "endingOffsetsByTimestamp and endingOffsets.",
    )
    .define(
        "startingOffsetsByTimestamp",
        _STRING,
        None,
        NotEmpty(),
        _MEDIUM,
        "Like startingTimestamp, with a timestamp for each partition, as JSON: "
        '`{"topicA": {"0": 1700000000000}}`. Takes precedence over startingOffsets.',
    )
    .define(
        "endingOffsetsByTimestamp",
        _STRING,
        None,
        NotEmpty(),
        _MEDIUM,
        "Like endingTimestamp, with a timestamp for each partition, as JSON. Takes precedence over "
        "endingOffsets.",
    )
    .define(
        "startingOffsetsByTimestampStrategy",
        _STRING,
        "error",
        OneOfAnyCase(("error", "latest")),
        _LOW,
        "What to do if a partition has no record with the starting timestamp or a later one: "
        "fail, or start at its latest offset.",
    )
    .define(
        "failOnDataLoss",
        _BOOLEAN,
        True,
        None,
        _HIGH,
        "Whether to fail if records may have been lost, because a topic was deleted or records "
        "expired before they were read. Otherwise a warning says how many offsets are missing.",
    )
    .define(
        "includeHeaders",
        _BOOLEAN,
        False,
        None,
        _MEDIUM,
        "Whether rows have a column `headers`.",
    )
    .define(
        "minPartitions",
        _INT,
        None,
        Range(1),
        _MEDIUM,
        "A read has at least about this many tasks. Without it there is one task for each "
        "partition of Kafka that has something to read. If those are fewer, large ranges are split "
        "in proportion to their sizes. The number of parts of each range is rounded, so there may "
        "be a few tasks fewer than this, or more.",
    )
    .define(
        "maxRecordsPerPartition",
        _LONG,
        None,
        Range(1),
        _MEDIUM,
        "The maximum number of offsets that a task reads; larger ranges are divided.",
    )
    .define(
        "maxOffsetsPerTrigger",
        _LONG,
        None,
        Range(1),
        _MEDIUM,
        "The maximum number of offsets in a micro-batch, divided among the partitions in "
        "proportion to what they have. Only for streams.",
    )
    .define(
        "minOffsetsPerTrigger",
        _LONG,
        None,
        Range(0),
        _LOW,
        "The number of new offsets to wait for before a micro-batch, for up to maxTriggerDelay. "
        "Only for streams.",
    )
    .define(
        "maxTriggerDelay",
        _STRING,
        "15m",
        TimeText(),
        _LOW,
        "How long to wait for minOffsetsPerTrigger. Only for streams.",
    )
    .define(
        "fetchOffset.numRetries",
        _INT,
        3,
        Range(0),
        _LOW,
        "How often to ask again for offsets that cannot be right, since they go back.",
    )
    .define(
        "fetchOffset.retryIntervalMs",
        _LONG,
        1_000,
        Range(0),
        _LOW,
        "How long to wait before each of these retries.",
    )
    .define(
        "kafkaConsumer.pollTimeoutMs",
        _LONG,
        120_000,
        Range(1),
        _LOW,
        "How long a task may wait without receiving anything before it fails. The default of "
        "Spark's own source is spark.network.timeout.",
    )
    .define(
        "groupIdPrefix",
        _STRING,
        None,
        None,
        _LOW,
        "Accepted without effect: a read joins no consumer group.",
    )
    .define(
        "commitGroup",
        _STRING,
        None,
        RequestName(),
        _LOW,
        "For a stream: a consumer group to which the driver commits how far the query has got, "
        "for lag monitors. One micro-batch late; nothing reads it, and a failure is a warning.",
    )
)
