"""The table of the options of a read: those of Spark's own source, and more.

Names and defaults are Spark's (`KafkaSourceProvider`, 4.2), except for the default of
kafkaConsumer.pollTimeoutMs, which there is spark.network.timeout. The options of lineage are those
of writes as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.config.config_def import *
from spark_kafka_sink.config.durations import TimeText
from spark_kafka_sink.config.format_options import FORMAT_OPTIONS, READ_FORMAT_OPTIONS
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The values of the option `lineage`.
NO_LINEAGE: Final = "none"
OPEN_LINEAGE: Final = "openlineage"

#: The options that reads and writes share to report lineage.
LINEAGE_OPTIONS: Final = {
    "lineage": setting(STRING, NO_LINEAGE, LOW, OneOfAnyCase((NO_LINEAGE, OPEN_LINEAGE))).doc(
        "Whether the driver sends lineage events to the backend that OpenLineage's environment "
        "variables name (openlineage). Requires the extra `lineage` on the driver."
    ),
    "lineageJob": setting(STRING, None, LOW, NotEmpty()).doc(
        "With lineage: the name of the job in its events. A write's inputs are the reads with the "
        "same name. By default a job is named by the query or the topic, and a write's inputs are "
        "the reads without a name."
    ),
}


class LineageOptions(NamedTuple):
    """What to report of a read or a write that reports its lineage."""

    #: None if it is not named.
    job: str | None

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> LineageOptions | None:
        """Return the options, None without lineage; ConfigError for a name that has no effect."""
        job = values["lineageJob"]
        if values["lineage"].lower() == OPEN_LINEAGE:
            return cls(job)
        if job is not None:
            raise ConfigError(
                "lineageJob names the job of lineage events: set lineage=openlineage, or remove it"
            )
        return None


_OPTIONS: Final = {
    "subscribe": setting(STRING, None, HIGH).doc(
        "The topics to read, separated by commas. Exactly one of subscribe, subscribePattern and "
        "assign is required."
    ),
    "subscribePattern": setting(STRING, None, HIGH, NotEmpty()).doc(
        "A regular expression (Python's): the topics with a match anywhere in their names are "
        "read, except for internal ones. A stream also reads topics that are created later."
    ),
    "assign": setting(STRING, None, HIGH, NotEmpty()).doc(
        'The partitions to read, as JSON: `{"topicA": [0, 1], "topicB": [2, 4]}`.'
    ),
    "startingOffsets": setting(STRING, None, HIGH, NotEmpty()).doc(
        "Where to start: `earliest` (the default of a batch), `latest` (the default of a stream; "
        "not in a batch), or an offset for each partition, as JSON: "
        '`{"topicA": {"0": 23, "1": -2}, "topicB": "earliest"}`, where -2 means earliest and -1 '
        "latest (not in a batch), and a word stands for all partitions of a topic. "
        "A stream that has a checkpoint starts there, and reads new partitions from their "
        "beginning."
    ),
    "endingOffsets": setting(STRING, None, HIGH, NotEmpty()).doc(
        "Where a batch ends: `latest` (the default), or an offset for each partition, as JSON like "
        "that of startingOffsets, where -1 means latest; -2 and earliest are not accepted. The "
        "record at the offset is not read."
    ),
    "startingTimestamp": setting(LONG, None, MEDIUM, Range(0)).doc(
        "Start each partition at its first record with this timestamp or a later one, in ms since "
        "1970. Takes precedence over startingOffsetsByTimestamp and startingOffsets."
    ),
    "endingTimestamp": setting(LONG, None, MEDIUM, Range(0)).doc(
        "End each partition of a batch before its first record with this timestamp or a later "
        "one; at the latest offset if there is none. Takes precedence over "
        "endingOffsetsByTimestamp and endingOffsets."
    ),
    "startingOffsetsByTimestamp": setting(STRING, None, MEDIUM, NotEmpty()).doc(
        "Like startingTimestamp, with a timestamp for each partition, as JSON: "
        '`{"topicA": {"0": 1700000000000}}`. Takes precedence over startingOffsets.'
    ),
    "endingOffsetsByTimestamp": setting(STRING, None, MEDIUM, NotEmpty()).doc(
        "Like endingTimestamp, with a timestamp for each partition, as JSON. Takes precedence over "
        "endingOffsets."
    ),
    "startingOffsetsByTimestampStrategy": setting(
        STRING, "error", LOW, OneOfAnyCase(("error", "latest"))
    ).doc(
        "What to do if a partition has no record with the starting timestamp or a later one: "
        "fail, or start at its latest offset."
    ),
    "failOnDataLoss": setting(BOOLEAN, True, HIGH).doc(
        "Whether to fail if records may have been lost, because a topic was deleted or records "
        "expired before they were read. Otherwise a warning says how many offsets are missing."
    ),
    "includeHeaders": setting(BOOLEAN, False, MEDIUM).doc("Whether rows have a column `headers`."),
    "minPartitions": setting(INT, None, MEDIUM, Range(1)).doc(
        "A read has at least about this many tasks. Without it there is one task for each "
        "partition of Kafka that has something to read. If those are fewer, large ranges are split "
        "in proportion to their sizes. The number of parts of each range is rounded, so there may "
        "be a few tasks fewer than this, or more."
    ),
    "maxRecordsPerPartition": setting(LONG, None, MEDIUM, Range(1)).doc(
        "The maximum number of offsets that a task reads; larger ranges are divided."
    ),
    "maxOffsetsPerTrigger": setting(LONG, None, MEDIUM, Range(1)).doc(
        "The maximum number of offsets in a micro-batch, divided among the partitions in "
        "proportion to what they have. Only for streams."
    ),
    "minOffsetsPerTrigger": setting(LONG, None, LOW, Range(0)).doc(
        "The number of new offsets to wait for before a micro-batch, for up to maxTriggerDelay. "
        "Only for streams."
    ),
    "maxTriggerDelay": setting(STRING, "15m", LOW, TimeText()).doc(
        "How long to wait for minOffsetsPerTrigger. Only for streams."
    ),
    "fetchOffset.numRetries": setting(INT, 3, LOW, Range(0)).doc(
        "How often to ask again for offsets that cannot be right, since they go back."
    ),
    "fetchOffset.retryIntervalMs": setting(LONG, 1_000, LOW, Range(0)).doc(
        "How long to wait before each of these retries."
    ),
    "kafkaConsumer.pollTimeoutMs": setting(LONG, 120_000, LOW, Range(1)).doc(
        "How long a task may wait without receiving anything before it fails. The default of "
        "Spark's own source is spark.network.timeout."
    ),
    "groupIdPrefix": setting(STRING, None, LOW).doc(
        "Accepted without effect: a read joins no consumer group."
    ),
    "commitGroup": setting(STRING, None, LOW, RequestName()).doc(
        "For a stream: a consumer group to which the driver commits how far the query has got, "
        "for lag monitors. One micro-batch late; nothing reads it, and a failure is a warning."
    ),
    **LINEAGE_OPTIONS,
    **FORMAT_OPTIONS,
    **READ_FORMAT_OPTIONS,
}
SOURCE_OPTIONS_DEF: Final = ConfigDef.named(_OPTIONS)
