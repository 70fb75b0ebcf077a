"""The options of `df.write.format("pykafka")`: those of Spark's own Kafka sink, and a few more.

Every option must be one of these; any other is an error that suggests the nearest known one:

- an option of the sink itself, in camelCase like Spark's, in any case (Spark lower-cases them);
- `kafka.` followed by a setting of Kafka's producer, passed through to `ProducerConfig`, except for
  the few that have no meaning in a Spark write (`REFUSED_IN_SPARK`);
- `schema.registry.` followed by a setting of a Schema Registry's client (`RegistrySettings`);
- an option of `writeStream` that Spark passes on (`SPARK_OPTIONS`) and handles itself;
- an option of the *source*, or `kafka.` followed by a consumer-only setting. Many users share one
  dict for both directions, so these are ignored; `ignored` lists them for a warning. Those that say
  what to do with a payload (`READ_FORMAT_OPTIONS`) are refused, as a read refuses those of writes.

`includeHeaders` is one of the latter: Spark's sink writes a `headers` column whatever its value
(`KafkaWriter.headersExpression`), and so does this one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.config.client_config import KAFKA_PREFIX
from spark_kafka_sink.config.config_def import *
from spark_kafka_sink.config.config_def import nearest_name, unknown_option
from spark_kafka_sink.config.consumer_config import CONSUMER_ONLY
from spark_kafka_sink.config.format_options import (
    FORMAT_OPTIONS,
    READ_FORMAT_OPTIONS,
    WRITE_FORMAT_OPTIONS,
    FormatOptions,
    renamed_option,
)
from spark_kafka_sink.config.plugin_reference import (
    PARTITIONERS,
    REPORTERS,
    TOKEN_SOURCES,
    check_importable,
)
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF, REFUSED, ProducerConfig
from spark_kafka_sink.config.registry_settings import (
    REGISTRY_NAMES,
    RegistrySettings,
    registry_options,
)
from spark_kafka_sink.config.source_table import (
    LINEAGE_OPTIONS,
    SOURCE_OPTIONS_DEF,
    LineageOptions,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import is_topic_name

if TYPE_CHECKING:
    from collections.abc import Mapping


#: The values of the option `report`.
REPORT_NONE: Final = "none"
REPORT_SUMMARY: Final = "summary"
REPORT_FULL: Final = "full"

#: The values of the option `traceContext`.
NO_TRACE_CONTEXT: Final = "none"
INJECT: Final = "inject"

#: The values of the option `keyOrder`.
KEY_ORDER_WARN: Final = "warn"
KEY_ORDER_FAIL: Final = "fail"
KEY_ORDER_OFF: Final = "off"
KEY_ORDERS: Final = (KEY_ORDER_WARN, KEY_ORDER_FAIL, KEY_ORDER_OFF)


class OnError(StrEnum):
    """What happens to rows that can never be sent."""

    FAIL = "fail"
    SKIP = "skip"
    DLQ = "dlq"


#: Much more than floats lose, and less than a row of any write.
_ROUNDED_UP: Final = 1 + 1e-12


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """How many bad rows a write may have: a number, or a share of all its rows."""

    count: int | None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> ErrorLimit | None:
        """Return the limit of a text such as "1000" or "5%"; None if it is no limit."""
        number = text.strip()
        try:
            if number.endswith("%"):
                share = float(number.removesuffix("%")) / 100
                return cls(None, share) if 0 < share <= 1 else None
            count = int(number)
        except ValueError:
            return None
        return cls(count) if count > 0 else None

    def is_exceeded(self, bad: int, rows: int) -> bool:
        """Return whether `bad` of `rows` rows are too many."""
        if self.count is not None:
            return bad > self.count
        # 29% of 100 rows are 29, and as floats a little less.
        return self.share is not None and bad > self.share * rows * _ROUNDED_UP


class _ErrorLimitText:
    """A text that `ErrorLimit.parse` accepts."""

    def __str__(self) -> str:
        return "a number from 1 on, or a share such as 5%"

    def problem(self, value: str) -> str | None:
        """Parse it."""
        return f"must be {self}" if ErrorLimit.parse(value) is None else None


class _TraceParent:
    """A traceparent of W3C Trace Context, version 00."""

    _PATTERN: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

    def __str__(self) -> str:
        return "a traceparent: 00, a trace id, a span id and flags, in hexadecimal"

    def problem(self, value: str) -> str | None:
        """Check its form."""
        return f"must be {self}" if self._PATTERN.fullmatch(value) is None else None


AT_LEAST_ONCE: Final = "at_least_once"
EXACTLY_ONCE: Final = "exactly_once"
DEFAULT_LEDGER_TOPIC: Final = "spark-kafka-sink-ledger"
_DEFAULT_RETENTION_MS: Final = 7 * 24 * 60 * 60 * 1000
#: The broker's default for transaction.max.timeout.ms, since a stage often takes longer than the
#: Java producer's default of 60 seconds.
DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 900_000
#: Options that have no meaning in other writes, where they are errors: a user who sets
#: `transactionalIdPrefix` and forgets `deliveryGuarantee` would wrongly rely on exactly-once
#: delivery.
_EXACTLY_ONCE_ONLY: Final = (
    "transactionalIdPrefix",
    "ledgerTopic",
    "ledgerReplicationFactor",
    "writeId",
    "writeIdRetentionMs",
)

_OPTIONS: Final = {
    "topic": setting(STRING, None, HIGH).doc(
        "The topic of all rows. Takes precedence over a `topic` column; required if there is none."
    ),
    "autoCreateTopics": setting(BOOLEAN, False, MEDIUM).doc(
        "Whether brokers with auto.create.topics.enable may create a missing topic of the "
        "write. Otherwise a missing topic is an error: on the driver, or for a topic in the "
        "`topic` column, in the task that has the row."
    ),
    "deliveryGuarantee": setting(
        STRING, AT_LEAST_ONCE, HIGH, OneOfAnyCase((AT_LEAST_ONCE, EXACTLY_ONCE))
    ).doc(
        "Whether rows that Spark processes again are written again (at_least_once), or each "
        "row becomes visible to read_committed consumers once, whatever fails (exactly_once)."
    ),
    "transactionalIdPrefix": setting(STRING, None, HIGH).doc(
        "With exactly_once: the name of the query or job, unique and the same at every start. "
        "Two writers that use the same prefix at the same time fence each other: the one that "
        "planned its batch last continues, and a stream plans one with every micro-batch."
    ),
    "writeId": setting(STRING, None, HIGH, RequestText()).doc(
        "With exactly_once, for a batch: the name of what is written. A job that is run again"
        " with the same writeId writes neither rows nor a report if the rows were written "
        "before; any other write with it does the same, and is refused if it is to another topic."
    ),
    "writeIdRetentionMs": setting(LONG, _DEFAULT_RETENTION_MS, LOW, Range(0)).doc(
        "How long the ledger remembers a writeId."
    ),
    "ledgerTopic": setting(STRING, DEFAULT_LEDGER_TOPIC, MEDIUM, NotEmpty()).doc(
        "With exactly_once: the compacted topic that records which batches were written. It "
        "is created if it is missing; many queries and jobs may share it."
    ),
    "ledgerReplicationFactor": setting(INT, -1, MEDIUM, RangeOr(Range(1, 32_767), -1)).doc(
        "The number of replicas of a ledgerTopic that must be created; -1 is the cluster's default."
    ),
    "reportPath": setting(STRING, None, LOW).doc(
        "The file to which the driver writes the report of the write, as JSON: a local file "
        "in an existing directory. A batch replaces the file, whatever its content; a batch "
        "whose writeId was written before leaves it unchanged. A stream adds a line for each "
        "micro-batch, and refuses a symbolic link and a file that is not such a report."
    ),
    "report": setting(
        STRING, REPORT_SUMMARY, LOW, OneOfAnyCase((REPORT_NONE, REPORT_SUMMARY, REPORT_FULL))
    ).doc(
        "What the driver prints about a finished write: nothing (none), one line (summary), or a "
        "table of the partitions and their offsets as well (full). A stream prints at most once a "
        "minute, what it has written since. It does not affect reportPath and "
        "KafkaSink.last_report."
    ),
    "reportId": setting(STRING, None, LOW, NotEmpty()).doc(
        "A name by which KafkaSink.last_report finds the report of this write among others."
    ),
    "progress": setting(BOOLEAN, False, LOW).doc(
        "Whether each task prints every five seconds how many rows it has taken, to the "
        "executor's log or in local mode to the terminal."
    ),
    "maxBytesPerSecond": setting(LONG, None, MEDIUM, Range(1)).doc(
        "How many bytes a second the write may send, all tasks together, counted as brokers' "
        "quotas count them: compressed, with the headers of batches, and again if they are sent "
        "again. By default as many as brokers accept."
    ),
    "maxRecordsPerSecond": setting(LONG, None, MEDIUM, Range(1)).doc(
        "How many records a second the write may send, all tasks together."
    ),
    "pacedExecutors": setting(INT, None, LOW, Range(1)).doc(
        "With maxBytesPerSecond or maxRecordsPerSecond: among how many executors they are divided; "
        "the tasks of an executor share its part. By default the number in Spark's configuration: "
        "1 in local mode, spark.executor.instances on YARN and Kubernetes, "
        "spark.dynamicAllocation.maxExecutors with dynamic allocation, and spark.cores.max divided "
        "by spark.executor.cores on a standalone cluster. Required if that is unknown."
    ),
    "onError": setting(
        STRING, OnError.FAIL.value, MEDIUM, OneOfAnyCase(tuple(kind.value for kind in OnError))
    ).doc(
        "What happens to a row that can never be sent: it ends the write (fail), it is left out "
        "(skip), or it becomes a dead letter in dlqTopic (dlq). Errors of brokers, of the network "
        "and of the Schema Registry end the write in any case."
    ),
    "dlqTopic": setting(STRING, None, MEDIUM).doc(
        "With onError=dlq: the topic of the dead letters, which have the key and the value of the "
        "row, and headers that say what is wrong with it."
    ),
    "maxErrors": setting(STRING, "1000", MEDIUM, _ErrorLimitText()).doc(
        "With onError=skip or dlq: how many bad rows a write, or each micro-batch of a stream, may "
        "have, as a number or as a share of all its rows. One with more fails; 100% is no limit. A "
        "share is known only when all tasks have finished."
    ),
    "keyOrder": setting(STRING, KEY_ORDER_WARN, MEDIUM, OneOfAnyCase(KEY_ORDERS)).doc(
        "What happens if tasks of one write, or of one micro-batch, have written rows with the "
        "same key, whose order in the topic is then not defined: a warning in the report (warn), "
        "an error (fail), or nothing (off). Each task samples up to 128 of its keys."
    ),
    "sourceConsumerGroup": setting(STRING, None, LOW, RequestName()).doc(
        "For a stream from Kafka: the consumer group to which the offsets of each finished "
        "micro-batch are committed, for lag monitors. Requires checkpointLocation as an "
        "option of the stream, on a file system of the driver, and source and sink on the "
        "same cluster."
    ),
    "traceContext": setting(
        STRING, NO_TRACE_CONTEXT, LOW, OneOfAnyCase((NO_TRACE_CONTEXT, INJECT))
    ).doc(
        "Whether each task has a span of OpenTelemetry, whose `traceparent` is a header of its "
        "rows (inject). A row that has one keeps it. Requires the extra `opentelemetry` on the "
        "driver and on executors."
    ),
    "traceParent": setting(STRING, None, LOW, _TraceParent()).doc(
        "With traceContext: the `traceparent` of the span that the write is part of. By default "
        "that in the driver's environment variable TRACEPARENT, with TRACESTATE."
    ),
    **LINEAGE_OPTIONS,
    **FORMAT_OPTIONS,
    **WRITE_FORMAT_OPTIONS,
}
SINK_OPTIONS_DEF: Final = ConfigDef.named(_OPTIONS)

_BYTES_AS_THEY_ARE: Final = RefusedSetting(
    "keys and values are written as the bytes of their columns: convert the columns instead"
)
_TEXT_IS_UTF_8: Final = RefusedSetting(
    "text is written as UTF-8: for another encoding, convert the column to binary, for example "
    "with encode(value, 'ISO-8859-1')",
    ("utf-8", "utf8"),
)

#: Settings that `KafkaProducer` accepts and a Spark write does not.
REFUSED_IN_SPARK: Final[Mapping[str, RefusedSetting]] = {
    "interceptor.classes": RefusedSetting(
        "rows are written as columns, not record by record: change the columns instead", ("",)
    ),
    "key.serializer": _BYTES_AS_THEY_ARE,
    "key.serializer.encoding": _TEXT_IS_UTF_8,
    "serializer.encoding": _TEXT_IS_UTF_8,
    "transactional.id": RefusedSetting(
        "each task needs one of its own: set deliveryGuarantee=exactly_once and "
        "transactionalIdPrefix"
    ),
    "value.serializer": _BYTES_AS_THEY_ARE,
    "value.serializer.encoding": _TEXT_IS_UTF_8,
}

_CHECKPOINT_LOCATION: Final = "checkpointLocation"
_QUERY_NAME: Final = "queryName"
#: Options of a stream that Spark passes on (`DataStreamWriter`). The sink uses only
#: `checkpointLocation`, which `sourceConsumerGroup` needs, and `queryName` in lineage events.
SPARK_OPTIONS: Final = (
    "asyncProgressTrackingCheckpointIntervalMs",
    "asyncProgressTrackingEnabled",
    _CHECKPOINT_LOCATION,
    _QUERY_NAME,
)

_OWN: Final = {name.lower(): name for name in SINK_OPTIONS_DEF.names}
#: The names to suggest, by the name that is compared: without prefix, in lower case.
_SUPPORTED: Final = {
    **{name: f"{KAFKA_PREFIX}{name}" for name in PRODUCER_CONFIG_DEF.names},
    **_OWN,
}
_OF_TYPED_READS: Final = {name.lower(): name for name in READ_FORMAT_OPTIONS}
_IGNORED: Final = {
    name.lower(): name
    for name in (*SOURCE_OPTIONS_DEF.names, *(f"{KAFKA_PREFIX}{name}" for name in CONSUMER_ONLY))
}


_A_WRITE: Final = "a Spark write"
_SPARK_OPTION_NAMES: Final = frozenset(name.lower() for name in SPARK_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactlyOnceOptions:
    """The options of an exactly-once write."""

    prefix: str
    ledger_topic: str
    #: -1 for the cluster's default.
    ledger_replication_factor: int
    #: None for a stream, and for a job whose next run counts as a new write.
    write_id: str | None
    write_id_retention_ms: int
    transaction_timeout_ms: int


class PaceOptions(NamedTuple):
    """How fast a write may be, at least one of both limits."""

    bytes_per_second: int | None
    records_per_second: int | None
    #: None if it follows from Spark's configuration.
    executors: int | None = None


class TraceOptions(NamedTuple):
    """How the rows of a write carry trace context, if they do."""

    #: The span that the write is part of; None for that of the driver's environment.
    parent: str | None


class OnErrorOptions(NamedTuple):
    """What a write does with rows that can never be sent, if they do not end it."""

    limit: ErrorLimit
    #: None if they are left out.
    dlq_topic: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The validated options of one write; `ignored` has the names of those without effect."""

    topic: str | None
    report_path: str | None
    #: One of `REPORT_NONE`, `REPORT_SUMMARY` and `REPORT_FULL`.
    report: str
    report_id: str | None
    #: Whether tasks print how far they are.
    progress: bool
    ignored: tuple[str, ...]
    producer: ProducerConfig
    #: The group whose offsets follow what a stream has read from Kafka, or None.
    source_consumer_group: str | None
    #: As the user gave it to Spark; None if it is not set as an option.
    checkpoint_location: str | None
    #: None for an at_least_once write.
    exactly_once: ExactlyOnceOptions | None
    #: None for a write without limits.
    pace: PaceOptions | None = None
    #: None if a bad row ends the write.
    on_error: OnErrorOptions | None = None
    #: One of `KEY_ORDERS`; off if keys do not choose partitions.
    key_order: str = KEY_ORDER_WARN
    #: None without trace context.
    trace: TraceOptions | None = None
    #: None without lineage.
    lineage: LineageOptions | None = None
    #: The name of a stream's query; None if it has none.
    query_name: str | None = None
    formats: FormatOptions = field(default_factory=FormatOptions)
    #: None without schema.registry.url.
    registry: RegistrySettings | None = None

    @classmethod
    def from_mapping(cls, options: Mapping[str, object]) -> SinkOptions:
        """Parse options; their names are case-insensitive.

        Raises ConfigError for an option that is unknown, malformed, unsupported or in conflict with
        another one. No error shows the value of a secret.
        """
        own: dict[str, object] = {}
        kafka: dict[str, object] = {}
        ignored = []
        of_spark: dict[str, str] = {}
        for name, value in options.items():
            key = name.lower()
            if key in _OWN:
                own[_OWN[key]] = value
            elif key in _OF_TYPED_READS:
                raise ConfigError(f"{_OF_TYPED_READS[key]} is an option of reads; remove it")
            elif key in _IGNORED:
                ignored.append(_IGNORED[key])
            elif key in _SPARK_OPTION_NAMES:
                of_spark[key] = str(value)
            elif _is_kafka_setting(key):
                setting = key.removeprefix(KAFKA_PREFIX)
                _check_allowed_in_spark(setting, value)
                kafka[setting] = value
            elif not key.startswith(REGISTRY_NAMES):
                raise _unknown_option(name)
        settings = registry_options(options)
        values = SINK_OPTIONS_DEF.parse(own)
        producer = replace(
            ProducerConfig.from_mapping(kafka, prefix=KAFKA_PREFIX),
            allow_auto_create_topics=values["autoCreateTopics"],
        )
        _check_plugins(producer)
        values["deliveryGuarantee"] = values["deliveryGuarantee"].lower()
        topic = _topic(values["topic"])
        _topic(values["ledgerTopic"])
        return cls(
            topic=topic,
            report_path=values["reportPath"] or None,
            report=values["report"].lower(),
            report_id=values["reportId"],
            progress=values["progress"],
            ignored=tuple(sorted(ignored)),
            producer=producer,
            source_consumer_group=values["sourceConsumerGroup"],
            checkpoint_location=of_spark.get(_CHECKPOINT_LOCATION.lower()),
            exactly_once=_exactly_once_options(values, frozenset(own), kafka, producer, topic),
            pace=_pace(values),
            on_error=_on_error(values, frozenset(own), topic),
            key_order=_key_order(values["keyOrder"].lower(), producer, is_given="keyOrder" in own),
            trace=_trace(values),
            lineage=LineageOptions.parse(values),
            query_name=of_spark.get(_QUERY_NAME.lower()),
            formats=FormatOptions.parse(
                values, frozenset(own), has_registry=bool(settings), is_read=False
            ),
            registry=RegistrySettings.of_options(settings),
        )


def _pace(values: Mapping[str, Any]) -> PaceOptions | None:
    pace = PaceOptions(
        values["maxBytesPerSecond"], values["maxRecordsPerSecond"], values["pacedExecutors"]
    )
    if pace.bytes_per_second is not None or pace.records_per_second is not None:
        return pace
    if pace.executors is not None:
        raise ConfigError(
            "pacedExecutors is for writes with a limit: set maxBytesPerSecond or "
            "maxRecordsPerSecond, or remove it"
        )
    return None


def _trace(values: Mapping[str, Any]) -> TraceOptions | None:
    if values["traceContext"].lower() == INJECT:
        return TraceOptions(values["traceParent"])
    if values["traceParent"] is not None:
        raise ConfigError(
            "traceParent is for writes with trace context: set traceContext=inject, or remove it"
        )
    return None


def _on_error(
    values: Mapping[str, Any], given: frozenset[str], topic: str | None
) -> OnErrorOptions | None:
    """Return what happens to bad rows; raises ConfigError for options that have no effect."""
    policy = OnError(values["onError"].lower())
    dlq_topic = _topic(values["dlqTopic"])
    if policy is OnError.FAIL and "maxErrors" in given:
        raise ConfigError(
            "maxErrors is for writes that go on after a bad row: set onError=skip or onError=dlq, "
            "or remove it"
        )
    if policy is not OnError.DLQ and dlq_topic is not None:
        raise ConfigError("dlqTopic is for dead letters: set onError=dlq, or remove it")
    if policy is OnError.FAIL:
        return None
    if policy is OnError.DLQ:
        if dlq_topic is None:
            raise ConfigError("onError=dlq requires dlqTopic: the topic of the dead letters")
        if dlq_topic == topic:
            raise ConfigError("dlqTopic must not be the topic that rows are written to")
        if values["deliveryGuarantee"] == EXACTLY_ONCE and dlq_topic == values["ledgerTopic"]:
            raise ConfigError("dlqTopic must not be the ledgerTopic")
    limit = ErrorLimit.parse(values["maxErrors"]) or ErrorLimit(None)
    return OnErrorOptions(limit, dlq_topic)


def _key_order(key_order: str, producer: ProducerConfig, *, is_given: bool) -> str:
    """Return the option, off if the order of a key's records does not matter to the write."""
    setting = None
    if producer.partitioner_ignore_keys:
        setting = "partitioner.ignore.keys=true"
    elif (
        producer.partitioner_class is not None
        and producer.partitioner_class.built_in == "round_robin"
    ):
        setting = f"partitioner.class={producer.partitioner_class}"
    if setting is None or key_order == KEY_ORDER_OFF:
        return key_order
    if is_given:
        raise ConfigError(
            f"keyOrder={key_order} needs the records of a key in one partition, and "
            f"{KAFKA_PREFIX}{setting} spreads them over all: remove one of both"
        )
    return KEY_ORDER_OFF


def _check_allowed_in_spark(name: str, value: object) -> None:
    refused = REFUSED_IN_SPARK.get(name)
    if refused is not None and str(value).strip().lower() not in refused.accepted:
        raise ConfigError(f"{KAFKA_PREFIX}{name} is not supported: {refused.reason}")


def _check_plugins(producer: ProducerConfig) -> None:
    partitioner = producer.partitioner_class
    if partitioner is not None and partitioner.built_in is None:
        raise ConfigError(
            f"{KAFKA_PREFIX}partitioner.class must be one of {', '.join(PARTITIONERS.names)} in a "
            f"Spark write, not {partitioner}; to choose partitions yourself, add a partition column"
        )
    tokens = producer.security.sasl_login_callback_handler_class
    name = f"{KAFKA_PREFIX}sasl.login.callback.handler.class"
    check_importable(name, tokens, TOKEN_SOURCES, _A_WRITE)
    for reporter in producer.metric_reporters:
        check_importable(f"{KAFKA_PREFIX}metric.reporters", reporter, REPORTERS, _A_WRITE)


def _is_kafka_setting(key: str) -> bool:
    """Return whether `ProducerConfig` handles the option, if only to reject it with a reason."""
    name = key.removeprefix(KAFKA_PREFIX)
    return key.startswith(KAFKA_PREFIX) and (name in PRODUCER_CONFIG_DEF or name in REFUSED)


def _unknown_option(name: str) -> ConfigError:
    key = name.lower()
    if key == "path":
        return ConfigError("save() does not accept a path: set the topic with the option 'topic'")
    if _is_kafka_setting(KAFKA_PREFIX + key):
        return unknown_option(name, KAFKA_PREFIX + key)
    if key == "mode":
        return ConfigError(f"unknown option {name!r}: a write is told its mode by mode('append')")
    renamed = renamed_option(name, is_read=False)
    if renamed is not None:
        return unknown_option(name, renamed)
    nearest = nearest_name(key.removeprefix(KAFKA_PREFIX), _SUPPORTED)
    return unknown_option(name, None if nearest is None else _SUPPORTED[nearest])


def _topic(name: str | None) -> str | None:
    if name is None:
        return None
    if not is_topic_name(name):
        raise ConfigError(
            f"{name!r} is not a valid topic name: use up to 249 letters, digits, '.', '_' and '-'"
        )
    return name


def _exactly_once_options(
    values: Mapping[str, Any],
    given: frozenset[str],
    kafka: Mapping[str, object],
    producer: ProducerConfig,
    topic: str | None,
) -> ExactlyOnceOptions | None:
    """Return the options of an exactly-once write; None for at_least_once.

    `values` holds all options of the sink, `given` the names of those that the user set, and
    `kafka` the producer settings that the user set. Raises ConfigError for contradictory options.
    """
    if values["deliveryGuarantee"] == AT_LEAST_ONCE:
        superfluous = [name for name in _EXACTLY_ONCE_ONLY if name in given]
        if superfluous:
            raise ConfigError(
                f"{superfluous[0]} is for exactly-once writes: set deliveryGuarantee=exactly_once, "
                "or remove it"
            )
        if "transaction.timeout.ms" in kafka:
            raise ConfigError(
                "kafka.transaction.timeout.ms is for exactly-once writes: set "
                "deliveryGuarantee=exactly_once, or remove it"
            )
        return None
    if not values["transactionalIdPrefix"]:
        raise ConfigError(
            "deliveryGuarantee=exactly_once requires transactionalIdPrefix: a unique name for this "
            "query or job, the same at every start"
        )
    if not producer.enable_idempotence:
        raise ConfigError(
            "deliveryGuarantee=exactly_once requires kafka.enable.idempotence=true, which requires "
            "kafka.acks=all and kafka.retries greater than 0"
        )
    if topic is not None and topic == values["ledgerTopic"]:
        raise ConfigError("ledgerTopic must not be the topic that rows are written to")
    if "writeIdRetentionMs" in given and not values["writeId"]:
        raise ConfigError(
            "writeIdRetentionMs is for writes with a writeId: set writeId, or remove it"
        )
    timeout_given = "transaction.timeout.ms" in kafka
    return ExactlyOnceOptions(
        prefix=values["transactionalIdPrefix"],
        ledger_topic=values["ledgerTopic"],
        ledger_replication_factor=values["ledgerReplicationFactor"],
        write_id=values["writeId"] or None,
        write_id_retention_ms=values["writeIdRetentionMs"],
        transaction_timeout_ms=(
            producer.transaction_timeout_ms if timeout_given else DEFAULT_TRANSACTION_TIMEOUT_MS
        ),
    )
