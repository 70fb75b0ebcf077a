"""The options of `spark.read.format("pykafka")` and `spark.readStream`: those of Spark's source.

Every option must be one of these; any other is an error that suggests the nearest known one:

- an option of the source, in any case (Spark lower-cases them), with the rules of Spark's
  `KafkaSourceProvider`;
- `kafka.` followed by a setting of Kafka's consumer, passed through to `ConsumerConfig`, except for
  those of consumer groups and polls, which Spark's source accepts and which change nothing here;
- `kafka.` followed by a setting that only the producer has: many users share one dict for both
  directions, so these are ignored;
- `schema.registry.` followed by a setting of a Schema Registry's client (`RegistrySettings`);
- an option of a stream that Spark passes on and handles itself (`SPARK_OPTIONS`).

The sink's own options are errors: a read with `topic` most likely means `subscribe`. `ignored`
lists the options that have no effect, and `warnings` has the sentences to log about them.

The cluster is not known here. Whether the JSON of offsets names the partitions that there are is
checked when the read is planned (`offset_specs.check_same_partitions`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.config.client_config import KAFKA_PREFIX
from spark_kafka_sink.config.config_def import nearest_name, unknown_option
from spark_kafka_sink.config.consumer_config import (
    CONSUMER_CONFIG_DEF,
    PRODUCER_ONLY,
    REFUSED_CONSUMER,
    WITHOUT_EFFECT,
    ConsumerConfig,
)
from spark_kafka_sink.config.durations import milliseconds
from spark_kafka_sink.config.format_options import (
    FORMAT_OPTIONS,
    READ_FORMAT_OPTIONS,
    EvolutionMode,
    FormatOptions,
    renamed_option,
)
from spark_kafka_sink.config.offset_specs import (
    Assign,
    Latest,
    OffsetSpec,
    Position,
    Selection,
    Subscribe,
    batch_range,
    selection,
    stream_start,
)
from spark_kafka_sink.config.plugin_reference import TOKEN_SOURCES, check_importable
from spark_kafka_sink.config.registry_settings import (
    REGISTRY_NAMES,
    RegistrySettings,
    registry_options,
)
from spark_kafka_sink.config.sink_options import SINK_OPTIONS_DEF, SPARK_OPTIONS
from spark_kafka_sink.config.source_table import SOURCE_OPTIONS_DEF, LineageOptions
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OWN: Final = {name.lower(): name for name in SOURCE_OPTIONS_DEF.names}
_OF_THE_SINK: Final = {name.lower(): name for name in SINK_OPTIONS_DEF.names}
_OF_SPARK: Final = frozenset(name.lower() for name in SPARK_OPTIONS)
#: What to set instead of an option of the sink.
_INSTEAD: Final = {
    "topic": ": set subscribe",
    "autoCreateTopics": ": a read creates no topics",
    "sourceConsumerGroup": ": set commitGroup",
}
#: The names to suggest, by the name that is compared: without prefix, in lower case.
_SUPPORTED: Final = {
    **{name: f"{KAFKA_PREFIX}{name}" for name in CONSUMER_CONFIG_DEF.names},
    **_OWN,
}
#: The reason why options of consumer groups have no effect.
_NO_GROUP: Final = WITHOUT_EFFECT["group.id"].reason
_ONLY_IN_STREAMS: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFormats:
    """What the columns of a read depend on."""

    include_headers: bool
    formats: FormatOptions
    #: None without schema.registry.url.
    registry: RegistrySettings | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The validated options of one read."""

    selection: Selection
    starting: OffsetSpec
    #: The option that `starting` comes from, for errors.
    starting_option: str
    #: Always Latest in a stream.
    ending: OffsetSpec
    ending_option: str
    #: What a starting timestamp without a matching record means: "error" or "latest".
    starting_timestamp_strategy: str
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    #: None in a batch, like the next one.
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    fetch_offset_num_retries: int
    fetch_offset_retry_interval_ms: int
    poll_timeout_ms: int
    #: The group to which a stream commits its progress, or None.
    commit_group: str | None
    #: None without lineage.
    lineage: LineageOptions | None = None
    formats: FormatOptions = field(default_factory=FormatOptions)
    #: None without schema.registry.url.
    registry: RegistrySettings | None = None
    #: The names of the options that have no effect.
    ignored: tuple[str, ...]
    #: What to log about them: a sentence for each reason.
    warnings: tuple[str, ...]
    consumer: ConsumerConfig

    @classmethod
    def from_mapping(cls, options: Mapping[str, object], *, is_stream: bool) -> SourceOptions:
        """Parse options; their names are case-insensitive.

        Raises ConfigError for an option that is unknown, malformed, unsupported or in conflict with
        another one. No error shows the value of a secret.
        """
        own, kafka, without_effect = _sort_out(options)
        values = SOURCE_OPTIONS_DEF.parse(own)
        read = _read_formats(values, frozenset(own), options)
        if is_stream:
            start, end = stream_start(values), Position(Latest(), "endingOffsets", ())
        else:
            start, end = batch_range(values)
            _check_batch(values)
            without_effect |= {n: "a batch has no triggers" for n in _ONLY_IN_STREAMS if n in own}
            if "schemaEvolutionMode" in own:
                without_effect["schemaEvolutionMode"] = "a batch is not started again"
        for position in (start, end):
            reason = f"{position.option} takes precedence"
            without_effect |= dict.fromkeys(position.overridden, reason)
        if values["groupIdPrefix"] is not None:
            without_effect["groupIdPrefix"] = _NO_GROUP
        _check_limits(values)
        consumer = ConsumerConfig.from_mapping(kafka, prefix=KAFKA_PREFIX)
        check_importable(
            f"{KAFKA_PREFIX}sasl.login.callback.handler.class",
            consumer.security.sasl_login_callback_handler_class,
            TOKEN_SOURCES,
            "a Spark read",
        )
        return cls(
            selection=selection(values),
            starting=start.spec,
            starting_option=start.option,
            ending=end.spec,
            ending_option=end.option,
            starting_timestamp_strategy=values["startingOffsetsByTimestampStrategy"].lower(),
            fail_on_data_loss=values["failOnDataLoss"],
            include_headers=read.include_headers,
            min_partitions=values["minPartitions"],
            max_records_per_partition=values["maxRecordsPerPartition"],
            max_offsets_per_trigger=values["maxOffsetsPerTrigger"] if is_stream else None,
            min_offsets_per_trigger=values["minOffsetsPerTrigger"] if is_stream else None,
            max_trigger_delay_ms=milliseconds(values["maxTriggerDelay"]),
            fetch_offset_num_retries=values["fetchOffset.numRetries"],
            fetch_offset_retry_interval_ms=values["fetchOffset.retryIntervalMs"],
            poll_timeout_ms=values["kafkaConsumer.pollTimeoutMs"],
            commit_group=values["commitGroup"],
            lineage=LineageOptions.parse(values),
            formats=(
                read.formats if is_stream else replace(read.formats, evolution=EvolutionMode.NONE)
            ),
            registry=read.registry,
            ignored=tuple(sorted(without_effect)),
            warnings=tuple(_warnings(without_effect, values["commitGroup"], is_stream=is_stream)),
            consumer=consumer,
        )


def _sort_out(
    options: Mapping[str, object],
) -> tuple[dict[str, object], dict[str, object], dict[str, str]]:
    """Return the source's options, the consumer's settings, and the reasons to ignore the others.

    Raises ConfigError for an unknown option, and for one of the sink.
    """
    own: dict[str, object] = {}
    kafka: dict[str, object] = {}
    without_effect: dict[str, str] = {}
    for name, value in options.items():
        key = name.lower()
        setting = key.removeprefix(KAFKA_PREFIX) if key.startswith(KAFKA_PREFIX) else ""
        if key in _OWN:
            own[_OWN[key]] = value
        elif setting in WITHOUT_EFFECT:
            without_effect[key] = WITHOUT_EFFECT[setting].reason
        elif setting in PRODUCER_ONLY:
            without_effect[key] = "a read writes nothing to Kafka"
        elif setting in CONSUMER_CONFIG_DEF or setting in REFUSED_CONSUMER:
            kafka[setting] = value
        elif key not in _OF_SPARK and not key.startswith(REGISTRY_NAMES):
            raise _unknown_option(name)
    return own, kafka, without_effect


def read_formats(options: Mapping[str, object]) -> ReadFormats:
    """Parse those options that the columns of a read depend on; raises ConfigError.

    Spark asks for the columns before it is known whether the read is a batch or a stream. All other
    options are checked when it asks for the reader.
    """
    _sort_out(options)  # first, since a mistyped option may be the one that the others lack
    wanted = {
        name.lower(): name for name in ("includeHeaders", *FORMAT_OPTIONS, *READ_FORMAT_OPTIONS)
    }
    own = {wanted[name.lower()]: value for name, value in options.items() if name.lower() in wanted}
    return _read_formats(SOURCE_OPTIONS_DEF.parse(own), frozenset(own), options)


def _read_formats(
    values: Mapping[str, Any], given: frozenset[str], options: Mapping[str, object]
) -> ReadFormats:
    settings = registry_options(options)
    formats = FormatOptions.parse(values, given, has_registry=bool(settings), is_read=True)
    return ReadFormats(
        include_headers=values["includeHeaders"],
        formats=formats,
        registry=RegistrySettings.of_options(settings),
    )


def topics_of(options: Mapping[str, object]) -> tuple[str, ...] | None:
    """Return the topics that a read names, None if a pattern does; raises ConfigError."""
    own, _, _ = _sort_out(options)
    selected = selection(SOURCE_OPTIONS_DEF.parse(own))
    match selected:
        case Subscribe():
            return selected.topics
        case Assign():
            return tuple(dict.fromkeys(partition.topic for partition in selected.partitions))
    return None


def _check_batch(values: Mapping[str, Any]) -> None:
    if values["commitGroup"] is not None:
        raise ConfigError("commitGroup is for streams: a batch has no progress to commit")


def _check_limits(values: Mapping[str, Any]) -> None:
    least, most = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"minOffsetsPerTrigger is {least}, but must not exceed maxOffsetsPerTrigger, which is "
            f"{most}"
        )


def _warnings(
    without_effect: Mapping[str, str], commit_group: str | None, *, is_stream: bool
) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for name, reason in sorted(without_effect.items()):
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        verb = "has" if len(names) == 1 else "have"
        sentence = f"{', '.join(names)} {verb} no effect: {reason}"
        if reason == _NO_GROUP and is_stream and commit_group is None:
            sentence += "; to show a stream's progress in a group, set commitGroup"
        yield sentence


def _unknown_option(name: str) -> ConfigError:
    key = name.lower()
    if key in _OF_THE_SINK:
        own = _OF_THE_SINK[key]
        return ConfigError(f"{own} is an option of writes{_INSTEAD.get(own, '; remove it')}")
    if key == "path":
        return ConfigError("load() does not accept a path: set the topic with subscribe")
    if key in CONSUMER_CONFIG_DEF or key in REFUSED_CONSUMER:
        return unknown_option(name, KAFKA_PREFIX + key)
    renamed = renamed_option(name, is_read=True)
    if renamed is not None:
        return unknown_option(name, renamed)
    nearest = nearest_name(key.removeprefix(KAFKA_PREFIX), _SUPPORTED)
    return unknown_option(name, None if nearest is None else _SUPPORTED[nearest])
