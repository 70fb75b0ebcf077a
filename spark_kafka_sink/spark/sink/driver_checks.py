"""The checks on the driver before a write task runs, cheapest first.

First the options and the columns, then the path of the report, and last the cluster: whether it
answers, whether the topic exists, and whether this client may write to it. The checks create and
write nothing, except that with autoCreateTopics=true brokers create a missing topic, and then only
when the write really begins.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink import display
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import BrokerError, ConfigError, KafkaTimeoutError, NetworkError
from spark_kafka_sink.exactly_once.transactional_ids import check_prefix
from spark_kafka_sink.model import host_and_port
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.spark.idle_cache import fingerprint
from spark_kafka_sink.spark.sink.batch_log import BatchLog
from spark_kafka_sink.spark.sink.write_report import resolve_report_path
from spark_kafka_sink.spark.sink.write_schema import WriteSchema, write_schema
from spark_kafka_sink.spark.source_offsets import (
    check_offsets_directory,
    may_have_run,
    offsets_directory,
)
from spark_kafka_sink.spark.worker import without_collector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.config.source_table import LineageOptions
    from spark_kafka_sink.spark.sink.dry_run import DryRun

logger = logging.getLogger(__name__)

#: The error of a topic that the client may describe but not write to.
_UNAUTHORIZED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_CLEANUP_POLICY: Final = "cleanup.policy"
#: The policy of a topic that refuses records without a key, alone or with others.
_COMPACT: Final = "compact"
#: How long a check waits for brokers: short, since a user is waiting for the job to start.
_CHECK_SECONDS: Final = 15.0
#: The same for a running stream. Spark does not interrupt the check, so `stop` waits for it, too.
_BRIEF_CHECK_SECONDS: Final = 3.0
#: How long a stream trusts a successful check of its topic.
_TRUST_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedWrite:
    """A write that has passed all checks on the driver.

    `options` are the parsed options of the write, `schema` its columns. It shows itself as one
    line: `OK: 3 partitions of events, columns key, value`. With a sample, `dry_run` says what the
    write would do with it, and tables follow.

    >>> options = {"kafka.bootstrap.servers": "localhost:9092", "autoCreateTopics": "true"}
    >>> checked = KafkaSink.check(df, options, topic="orders")
    >>> checked.schema.topic
    'orders'
    """

    options: SinkOptions
    schema: WriteSchema
    #: Absolute; None if no report was requested.
    report_path: str | None
    #: The topic's partition count; None if a column names the topics, or if the topic is missing
    #: and the write would make brokers create it.
    partitions: int | None
    #: What tasks need to encode keys and values that have a format: a `PayloadSchema` of each.
    payload_schemas: Mapping[Any, Any] = field(default_factory=dict)
    #: How the Python that Spark starts differs from the one that checked; None if it does not.
    warning: str | None = None
    #: What the write would do with a sample of its rows; None if none was asked for.
    dry_run: DryRun | None = None

    def __repr__(self) -> str:
        """Show where the rows would go and which columns make up a record; no settings.

        The tables of a dry run follow.
        """
        warning = "" if self.warning is None else f"; warning: {self.warning}"
        line = f"{self._verdict()}: {self._destination()}, {self._columns()}{self._bad_rows()}"
        tables = "" if self.dry_run is None else f"\n{self.dry_run.to_text()}"
        return f"{line}{warning}{tables}"

    def _verdict(self) -> str:
        return "it would fail" if self.dry_run is not None and self.dry_run.failures else "OK"

    @property
    def schemas(self) -> Mapping[str, str]:
        """The schemas of keys and values that have a format: id, subject and version of each."""
        return {side: str(schema) for side, schema in self.payload_schemas.items()}

    def _destination(self) -> str:
        if self.schema.topic is None:
            return "topics are named by the column topic"
        if self.partitions is None:
            return f"topic {self.schema.topic} does not exist, and brokers may create it"
        return f"{display.counted(self.partitions, 'partition')} of {self.schema.topic}"

    def _bad_rows(self) -> str:
        on_error = self.options.on_error
        if on_error is None:
            return ""
        where = (
            "left out" if on_error.dlq_topic is None else f"dead letters in {on_error.dlq_topic}"
        )
        return f", bad rows: {where}"

    def _columns(self) -> str:
        used = f"column{'' if len(self.schema.used) == 1 else 's'} {', '.join(self.schema.used)}"
        used += "".join(f", {side}s by {schema}" for side, schema in self.schemas.items())
        ignored = display.listed(self.schema.ignored)
        return f"{used} (not written: {ignored})" if ignored else used

    def _repr_html_(self) -> str:
        """Show the topic, the columns, the guarantee and the brokers; no other settings."""
        exactly_once = self.options.exactly_once
        servers = [host_and_port(*address) for address in self.options.producer.bootstrap_servers]
        return display.block(
            f"{self._verdict()}: {self._destination()}",
            display.facts(
                {
                    "columns written": ", ".join(self.schema.used),
                    "columns not written": display.listed(self.schema.ignored, most=20) or None,
                    "guarantee": "at least once"
                    if exactly_once is None
                    else f"exactly once, as {exactly_once.prefix!r}",
                    **{f"schema of {side}s": schema for side, schema in self.schemas.items()},
                    "bad rows": self._bad_rows().removeprefix(", bad rows: ") or None,
                    "brokers": display.listed(servers),
                    "report": self.report_path,
                    "warning": self.warning,
                }
            ),
            *([] if self.dry_run is None else [self.dry_run._repr_html_()]),
        )


def check_write(
    schema: StructType, given: Mapping[str, object], *, is_dry_run: bool
) -> CheckedWrite:
    """Check a whole batch write; raises KafkaErrors. A dry run creates no topic."""
    options = _options(given)
    if not is_dry_run:
        _check_libraries(options)
    if options.source_consumer_group is not None:
        raise ConfigError(
            "sourceConsumerGroup is only for streams: a batch has no checkpoint with the offsets "
            "that it has read; remove the option"
        )
    columns = write_schema(schema, options.topic, options.formats)
    report_path = check_report_path(options)
    schemas = {}
    if options.formats.sides:
        from spark_kafka_sink.spark.sink.payload_writes import schemas_of_write

        schemas = schemas_of_write(schema, options, columns.topic, is_dry_run=True)
    partitions = check_cluster(options, columns.topic, is_dry_run=is_dry_run)
    if options.formats.auto_register and not is_dry_run:
        schemas = schemas_of_write(schema, options, columns.topic, is_dry_run=False)
    return CheckedWrite(
        options=options,
        schema=columns,
        report_path=report_path,
        partitions=partitions,
        payload_schemas=schemas,
    )


def stream_options(given: Mapping[str, object]) -> SinkOptions:
    """Parse the options of a stream; raises ConfigError."""
    options = _options(given)
    if options.exactly_once is not None and options.exactly_once.write_id is not None:
        raise ConfigError(
            "writeId is only for batches: a stream is identified by its query id; remove the option"
        )
    if options.source_consumer_group is not None:
        offsets_directory(options.checkpoint_location)
    return options


def _options(given: Mapping[str, object]) -> SinkOptions:
    options = SinkOptions.from_mapping(given)
    if options.exactly_once is not None:
        check_prefix(options.exactly_once.prefix)
    return options


def _check_libraries(options: SinkOptions) -> None:
    """Raise ConfigError if a library that options need is not installed on the driver."""
    check_lineage(options.lineage)
    if options.trace is not None:
        from spark_kafka_sink.spark.sink.trace_context import check_library

        check_library()


def check_lineage(lineage: LineageOptions | None) -> None:
    """Raise ConfigError if the library for lineage events is not installed on the driver."""
    if lineage is not None:
        from spark_kafka_sink.spark.lineage import check_library

        check_library()


def check_report_path(options: SinkOptions) -> str | None:
    """Return `reportPath` as an absolute path, or None; ConfigError if it cannot be written."""
    return None if options.report_path is None else resolve_report_path(options.report_path)


def check_batch_log(options: SinkOptions) -> None:
    """Raise ConfigError if the file at a stream's `reportPath` is not a stream's report."""
    path = check_report_path(options)
    if path is not None:
        try:
            BatchLog(path).check()
        except OSError as error:
            raise ConfigError(
                f"reportPath {options.report_path!r}: {error}. A stream appends a line for each "
                "micro-batch to its report, and changes no other file: choose a new file"
            ) from error


def warn_about_ignored_options(options: SinkOptions) -> None:
    """Log which options have no effect."""
    if options.ignored:
        logger.warning(
            "Kafka: these options are for reading from Kafka and have no effect on a write: %s",
            ", ".join(options.ignored),
        )


def check_cluster(
    options: SinkOptions,
    topic: str | None,
    *,
    is_dry_run: bool,
    timeout: float = _CHECK_SECONDS,
) -> int | None:
    """Check the topic, or only that the cluster answers when a column names the topics.

    Returns the topic's partition count, or None if there is no topic yet. Waits for brokers up to
    `timeout` seconds or max.block.ms, whichever is less, and as long for the settings of a topic
    of dead letters.
    """
    with without_collector():
        from spark_kafka_sink.admin.cluster_check import describe_topics

    dlq_topic = None if options.on_error is None else options.on_error.dlq_topic
    topics = [name for name in (topic, dlq_topic) if name is not None]
    described = describe_topics(options.producer, topics, is_dry_run=is_dry_run, timeout=timeout)
    for name, description in described.items():
        if description.can_write is False:
            raise BrokerError(
                f"topic {name!r}: this client is not authorized to write to it; grant it WRITE on "
                "the topic",
                code=_UNAUTHORIZED,
                name=_UNAUTHORIZED.name,
            )
    if dlq_topic in described:
        _check_keeps_letters(options.producer, dlq_topic, timeout)
    return described[topic].partitions if topic in described else None


def _check_keeps_letters(config: ProducerConfig, topic: str, timeout: float) -> None:
    """Raise ConfigError if a topic of dead letters is compacted, unless its settings are hidden.

    Kafka Connect refuses to start with topics of its own that might lose records, and starts if it
    may not describe them (`TopicAdmin.verifyTopicCleanupPolicyOnlyCompact`).
    """
    with without_collector():
        from spark_kafka_sink.admin.topic_settings import topic_setting

    policy = topic_setting(config, [topic], _CLEANUP_POLICY, timeout).get(topic, "")
    if _COMPACT in (part.strip() for part in policy.split(",")):
        raise ConfigError(
            f"dlqTopic {topic!r} has {_CLEANUP_POLICY}={policy}. A compacted topic refuses dead "
            "letters without a key, and keeps only the last of those with the same key: set "
            f"{_CLEANUP_POLICY}=delete for it, or choose another topic"
        )


class TrustedChecks:
    """The checks that have recently succeeded; times are seconds of any clock."""

    def __init__(self) -> None:
        self._until: dict[object, float] = {}

    def is_fresh(self, check: object, now: float) -> bool:
        """Return whether the check's last success still counts."""
        return now < self._until.get(check, now)

    def record(self, check: object, now: float) -> None:
        """Record a success and remove the expired ones."""
        self._until = {check: until for check, until in self._until.items() if now < until}
        self._until[check] = now + _TRUST_SECONDS


_trusted_checks = TrustedChecks()


def check_stream(options: SinkOptions, topic: str | None) -> None:
    """Check what `streamWriter` must not: the driver's files and the cluster.

    This runs before each micro-batch, so a process queries brokers only every few minutes.
    """
    check_batch_log(options)
    _check_libraries(options)
    if options.source_consumer_group is not None:
        check_offsets_directory(options.checkpoint_location)
    check = (fingerprint(options.producer), topic, options.on_error)
    if not _trusted_checks.is_fresh(check, time.monotonic()):
        warn_about_ignored_options(options)
        if may_have_run(options.checkpoint_location):
            if not _check_cluster_briefly(options, topic):
                return
        else:
            check_cluster(options, topic, is_dry_run=False)
        _trusted_checks.record(check, time.monotonic())


def _check_cluster_briefly(options: SinkOptions, topic: str | None) -> bool:
    """Check the cluster of a running stream; return False if no broker answers.

    Brokers that are briefly unavailable must not end the stream here: its tasks wait for them as
    long as the settings say, and Spark can interrupt a task.
    """
    try:
        check_cluster(options, topic, is_dry_run=False, timeout=_BRIEF_CHECK_SECONDS)
    except (NetworkError, KafkaTimeoutError) as error:
        logger.warning(
            "could not check the cluster; the tasks of this micro-batch will wait for it: %s", error
        )
        return False
    return True
