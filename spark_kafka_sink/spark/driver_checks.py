"""What is found out on the driver before a write task runs, cheapest first.

The options and the columns; the place of the report; at last the cluster: does it answer, is the
topic there, may we write to it? Nothing is created or written on the way, but for a missing topic
that brokers create with autoCreateTopics=true, and that only when the write really begins.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import BrokerError, ConfigError, KafkaTimeoutError, NetworkError
from spark_kafka_sink.exactly_once.transactional_ids import check_prefix
from spark_kafka_sink.spark.batch_log import BatchLog
from spark_kafka_sink.spark.producer_cache import fingerprint
from spark_kafka_sink.spark.source_offsets import (
    check_offsets_directory,
    may_have_run,
    offsets_directory,
)
from spark_kafka_sink.spark.write_report import resolve_report_path
from spark_kafka_sink.spark.write_schema import WriteSchema, write_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

#: Kafka's code for a topic that one may see but not write to.
_TOPIC_AUTHORIZATION_FAILED: Final = 29
#: How long a check waits for brokers: somebody waits for the job to start.
_CHECK_SECONDS: Final = 15.0
#: How long it does for a stream that is under way. Spark does not interrupt it: `stop` waits, too.
_GLANCE_SECONDS: Final = 3.0
#: What a stream was told about its topic is believed for so long, in seconds.
_BELIEVED_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedWrite:
    """A write that nothing on the driver speaks against.

    `options` are those of the write as they were understood, `schema` its columns.

    >>> options = {"kafka.bootstrap.servers": "localhost:9092", "autoCreateTopics": "true"}
    >>> checked = KafkaSink.check(df, options, topic="orders")
    >>> checked.schema.topic
    'orders'
    """

    options: SinkOptions
    schema: WriteSchema
    #: Absolute; None where no report is wanted.
    report_path: str | None
    #: How many partitions the topic has; None where a column names the topics, or where the topic
    #: is missing and the write would let brokers create it.
    partitions: int | None


def check_write(
    schema: StructType, given: Mapping[str, object], *, is_dry_run: bool
) -> CheckedWrite:
    """Check all of a batch write; raises KafkaErrors. A dry run creates no topic."""
    options = _options(given)
    if options.source_consumer_group is not None:
        raise ConfigError(
            "sourceConsumerGroup is for streams: a batch has no checkpoint that says what was read"
        )
    columns = write_schema(schema, options.topic)
    report_path = check_report_path(options)
    return CheckedWrite(
        options=options,
        schema=columns,
        report_path=report_path,
        partitions=check_cluster(options, columns.topic, is_dry_run=is_dry_run),
    )


def stream_options(given: Mapping[str, object]) -> SinkOptions:
    """Read the options of a stream; raises ConfigError."""
    options = _options(given)
    if options.exactly_once is not None and options.exactly_once.write_id is not None:
        raise ConfigError("writeId is for batches: a stream is known by its query id")
    if options.source_consumer_group is not None:
        offsets_directory(options.checkpoint_location)
    return options


def _options(given: Mapping[str, object]) -> SinkOptions:
    options = SinkOptions.from_mapping(given)
    if options.exactly_once is not None:
        check_prefix(options.exactly_once.prefix)
    return options


def check_report_path(options: SinkOptions) -> str | None:
    """Give `reportPath` as an absolute path, if it is set; ConfigError where it cannot be."""
    return None if options.report_path is None else resolve_report_path(options.report_path)


def check_batch_log(options: SinkOptions) -> None:
    """Raise ConfigError where a stream's `reportPath` has a file that is not a stream's report."""
    path = check_report_path(options)
    if path is not None:
        try:
            BatchLog(path).check()
        except OSError as error:
            raise ConfigError(
                f"reportPath {options.report_path!r}: {error}. A stream adds a line to its report "
                "for each micro-batch, and changes no other file: name a new file"
            ) from error


def warn_of_ignored(options: SinkOptions) -> None:
    """Say which options change nothing."""
    if options.ignored:
        logger.warning(
            "these options are for reading from Kafka and change nothing here: %s",
            ", ".join(options.ignored),
        )


def check_cluster(
    options: SinkOptions,
    topic: str | None,
    *,
    is_dry_run: bool,
    timeout: float = _CHECK_SECONDS,
) -> int | None:
    """Ask for the topic, or just for an answer when the topics stand in a column.

    Returns the number of its partitions, if it has any yet. Waits for brokers for `timeout` seconds
    or max.block.ms, whichever is less.
    """
    from spark_kafka_sink.admin.cluster_check import describe_topics

    topics = [] if topic is None else [topic]
    described = describe_topics(options.producer, topics, is_dry_run=is_dry_run, timeout=timeout)
    if topic not in described:
        return None
    if described[topic].can_write is False:
        raise BrokerError(
            f"topic {topic!r}: this client has no right to write to it; ask for the operation "
            "WRITE on the topic",
            code=_TOPIC_AUTHORIZATION_FAILED,
            name="TOPIC_AUTHORIZATION_FAILED",
        )
    return described[topic].partitions


class Believed:
    """Questions whose answers were good a short while ago; seconds of any clock."""

    def __init__(self) -> None:
        """Believe nothing."""
        self._until: dict[object, float] = {}

    def is_fresh(self, question: object, now: float) -> bool:
        """Tell whether the answer is still believed."""
        return now < self._until.get(question, now)

    def note(self, question: object, now: float) -> None:
        """Believe a good answer for a while; forget what is not believed any more."""
        self._until = {asked: until for asked, until in self._until.items() if now < until}
        self._until[question] = now + _BELIEVED_SECONDS


_believed = Believed()


def check_stream(options: SinkOptions, topic: str | None) -> None:
    """Check what `streamWriter` must not ask: files of the driver, and the cluster.

    Asked before each micro-batch, so this process asks brokers every few minutes only.
    """
    check_batch_log(options)
    if options.source_consumer_group is not None:
        check_offsets_directory(options.checkpoint_location)
    question = (fingerprint(options.producer), topic)
    if not _believed.is_fresh(question, time.monotonic()):
        warn_of_ignored(options)
        if may_have_run(options.checkpoint_location):
            if not _glance_at_cluster(options, topic):
                return
        else:
            check_cluster(options, topic, is_dry_run=False)
        _believed.note(question, time.monotonic())


def _glance_at_cluster(options: SinkOptions, topic: str | None) -> bool:
    """Check the cluster of a stream under way; return False where no broker answers.

    Its tasks wait for brokers as long as the settings say, and Spark can stop them meanwhile:
    brokers that are away for a moment must not end the stream here.
    """
    try:
        check_cluster(options, topic, is_dry_run=False, timeout=_GLANCE_SECONDS)
    except (NetworkError, KafkaTimeoutError) as error:
        logger.warning("the tasks of this micro-batch will have to wait for the cluster: %s", error)
        return False
    return True
