from __future__ import annotations

import pickle

import pytest

from spark_kafka_sink.config.consumer_config import (
    CONSUMER_CONFIG_DEF,
    PRODUCER_ONLY,
    REFUSED_CONSUMER,
    WITHOUT_EFFECT,
    ConsumerConfig,
)
from spark_kafka_sink.config.format_options import FORMAT_OPTIONS, EvolutionMode
from spark_kafka_sink.config.offset_specs import (
    Earliest,
    Latest,
    Subscribe,
    SubscribePattern,
)
from spark_kafka_sink.config.sink_options import SINK_OPTIONS_DEF, SPARK_OPTIONS
from spark_kafka_sink.config.source_options import SourceOptions, read_formats
from spark_kafka_sink.config.source_table import (
    LINEAGE_OPTIONS,
    SOURCE_OPTIONS_DEF,
    LineageOptions,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
#: The options of both reads and writes.
SHARED = {*FORMAT_OPTIONS, *LINEAGE_OPTIONS}
EXAMPLE = '{"topicA": {"0": 23, "1": -2}}'


def batch(**given):
    return SourceOptions.from_mapping({**SERVERS, "subscribe": "a", **given}, is_stream=False)


def stream(**given):
    return SourceOptions.from_mapping({**SERVERS, "subscribe": "a", **given}, is_stream=True)


def refusal(given, *, is_stream=False):
    with pytest.raises(ConfigError) as caught:
        SourceOptions.from_mapping({**SERVERS, "subscribe": "a", **given}, is_stream=is_stream)
    return str(caught.value)


# --- the defaults


def test_the_minimal_options_of_a_batch_suffice():
    """A batch reads everything that there is, unless other options say otherwise."""
    assert (
        SourceOptions(
            selection=Subscribe(("a",)),
            starting=Earliest(),
            starting_option="startingOffsets",
            ending=Latest(),
            ending_option="endingOffsets",
            starting_timestamp_strategy="error",
            fail_on_data_loss=True,
            include_headers=False,
            min_partitions=None,
            max_records_per_partition=None,
            max_offsets_per_trigger=None,
            min_offsets_per_trigger=None,
            max_trigger_delay_ms=900_000,
            fetch_offset_num_retries=3,
            fetch_offset_retry_interval_ms=1_000,
            poll_timeout_ms=120_000,
            commit_group=None,
            ignored=(),
            warnings=(),
            consumer=ConsumerConfig.from_mapping({"bootstrap.servers": "localhost:9092"}),
        )
        == batch()
    )


def test_a_stream_starts_at_the_latest_offsets():
    """A stream without a checkpoint reads what comes, unless other options say otherwise."""
    assert (Latest(), "startingOffsets") == (stream().starting, stream().starting_option)
    assert Latest() == stream().ending


def test_bootstrap_servers_are_required():
    """The error for missing bootstrap servers names the option with its prefix."""
    with pytest.raises(ConfigError, match=r"^kafka\.bootstrap\.servers is required: "):
        SourceOptions.from_mapping({"subscribe": "a"}, is_stream=True)


@pytest.mark.parametrize("change", [str.lower, str.upper])
def test_option_names_are_case_insensitive(change):
    """Option names are case-insensitive, since Spark lower-cases them."""
    given = {
        "subscribePattern": "a.*",
        "startingOffsets": "Earliest",
        "startingOffsetsByTimestampStrategy": "LATEST",
        "failOnDataLoss": "false",
        "includeHeaders": "true",
        "minPartitions": "2",
        "maxRecordsPerPartition": "3",
        "maxOffsetsPerTrigger": "1111",
        "minOffsetsPerTrigger": "111",
        "maxTriggerDelay": "7s",
        "fetchOffset.numRetries": "8",
        "fetchOffset.retryIntervalMs": "9",
        "kafkaConsumer.pollTimeoutMs": "10",
        "commitGroup": "lag",
        "kafka.bootstrap.servers": "localhost:9092",
        "kafka.fetch.min.bytes": "12",
    }
    made = SourceOptions.from_mapping(
        {change(name): value for name, value in given.items()}, is_stream=True
    )
    assert (
        SourceOptions(
            selection=SubscribePattern("a.*"),
            starting=Earliest(),
            starting_option="startingOffsets",
            ending=Latest(),
            ending_option="endingOffsets",
            starting_timestamp_strategy="latest",
            fail_on_data_loss=False,
            include_headers=True,
            min_partitions=2,
            max_records_per_partition=3,
            max_offsets_per_trigger=1111,
            min_offsets_per_trigger=111,
            max_trigger_delay_ms=7_000,
            fetch_offset_num_retries=8,
            fetch_offset_retry_interval_ms=9,
            poll_timeout_ms=10,
            commit_group="lag",
            ignored=(),
            warnings=(),
            consumer=ConsumerConfig.from_mapping(
                {"bootstrap.servers": "localhost:9092", "fetch.min.bytes": 12}
            ),
        )
        == made
    )


def test_options_can_be_pickled():
    """Options equal themselves after pickling."""
    given = stream(startingOffsets='{"a":{"0":5}}', **{"kafka.group.id": "x"})
    assert given == pickle.loads(pickle.dumps(given))  # noqa: S301 -- our own bytes


# --- limits


def test_options_that_give_way_are_named():
    """An option that gives way to another one has no effect, and is listed for a warning."""
    made = batch(startingTimestamp="5", startingOffsetsByTimestamp="{}", startingOffsets="earliest")
    assert ("startingOffsets", "startingOffsetsByTimestamp") == made.ignored
    assert (
        (
            "startingOffsets, startingOffsetsByTimestamp have no effect: startingTimestamp takes "
            "precedence"
        ),
    ) == made.warnings


@pytest.mark.parametrize(
    ("name", "lowest"),
    [
        ("minPartitions", 1),
        ("maxRecordsPerPartition", 1),
        ("maxOffsetsPerTrigger", 1),
        ("minOffsetsPerTrigger", 0),
        ("fetchOffset.numRetries", 0),
        ("fetchOffset.retryIntervalMs", 0),
        ("kafkaConsumer.pollTimeoutMs", 1),
    ],
)
def test_limits_have_a_lowest_value(name, lowest):
    """A number below its lowest value is an error."""
    stream(**{name: lowest})
    assert f"{name} must be at least {lowest}, not '{lowest - 1}'" == refusal(
        {name: str(lowest - 1)}, is_stream=True
    )


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_minimum_above_the_maximum_is_rejected(is_stream):
    """A minimum may equal the maximum, but not exceed it."""
    assert 5 == stream(minOffsetsPerTrigger=5, maxOffsetsPerTrigger=5).min_offsets_per_trigger
    assert (
        "minOffsetsPerTrigger is 6, but must not exceed maxOffsetsPerTrigger, which is 5"
        == refusal({"minOffsetsPerTrigger": 6, "maxOffsetsPerTrigger": 5}, is_stream=is_stream)
    )


def test_a_delay_needs_a_known_unit():
    """The error for an invalid delay shows examples."""
    assert "maxTriggerDelay must be a time such as 15m or 500ms, not '5 s'" == refusal(
        {"maxTriggerDelay": "5 s"}, is_stream=True
    )


def test_options_of_triggers_only_warn_in_a_batch():
    """A batch has no triggers: their options have no effect, and are listed for a warning."""
    made = batch(maxOffsetsPerTrigger=5, minOffsetsPerTrigger=1, maxTriggerDelay="1s")
    assert (None, None) == (made.max_offsets_per_trigger, made.min_offsets_per_trigger)
    assert ("maxOffsetsPerTrigger", "maxTriggerDelay", "minOffsetsPerTrigger") == made.ignored
    assert (
        (
            "maxOffsetsPerTrigger, maxTriggerDelay, minOffsetsPerTrigger have no effect: a batch "
            "has no triggers"
        ),
    ) == made.warnings


@pytest.mark.parametrize("name", ["failOnDataLoss", "includeHeaders"])
def test_switches_are_true_or_false(name):
    """Other words than true and false are errors."""
    assert f"{name} must be true or false, not 'yes'" == refusal({name: "yes"})


# --- consumer groups


def test_the_consumer_group_is_ignored_with_one_notice():
    """A read joins no group, which one sentence says for all options of groups."""
    made = batch(groupIdPrefix="p", **{"kafka.group.id": "g", "kafka.session.timeout.ms": "9"})
    assert ("groupIdPrefix", "kafka.group.id", "kafka.session.timeout.ms") == made.ignored
    assert (
        (
            "groupIdPrefix, kafka.group.id, kafka.session.timeout.ms have no effect: a read joins "
            "no consumer group"
        ),
    ) == made.warnings


def test_the_notice_of_a_stream_names_the_option_for_lag_monitors():
    """The notice of a stream mentions commitGroup, unless it is set."""
    assert (
        (
            "kafka.group.id has no effect: a read joins no consumer group; to show a stream's "
            "progress in a group, set commitGroup"
        ),
    ) == stream(**{"kafka.group.id": "g"}).warnings
    assert ("kafka.group.id has no effect: a read joins no consumer group",) == stream(
        commitGroup="lag", **{"kafka.group.id": "g"}
    ).warnings
    assert not any("commitGroup" in each for each in stream(**{"kafka.acks": "1"}).warnings)
    assert not any(
        "commitGroup" in each for each in stream(**{"kafka.max.poll.records": "5"}).warnings
    )


def test_a_batch_commits_nothing():
    """The group of a batch's progress is an error."""
    assert "commitGroup is for streams: a batch has no progress to commit" == refusal(
        {"commitGroup": "lag"}
    )


def test_an_empty_group_is_rejected():
    """An empty group name is an error."""
    assert "commitGroup must not be empty, not ''" == refusal({"commitGroup": ""}, is_stream=True)


# --- settings of the consumer


def test_kafka_settings_are_passed_through():
    """An option that starts with `kafka.`, in any case, is passed to the consumer."""
    settings = batch(
        **{"Kafka.Isolation.Level": "read_committed", "kafka.fetch.min.bytes": 5}
    ).consumer
    assert ("read_committed", 5) == (settings.isolation_level, settings.fetch_min_bytes)


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_settings_without_effect_are_ignored(name):
    """A setting of groups or polls has no effect, and is listed for a warning, with the reason."""
    made = batch(**{f"kafka.{name}": "hunter2"})
    assert (f"kafka.{name}",) == made.ignored
    assert (f"kafka.{name} has no effect: {WITHOUT_EFFECT[name].reason}",) == made.warnings


@pytest.mark.parametrize("name", PRODUCER_ONLY)
def test_settings_of_the_producer_are_ignored(name):
    """A producer-only setting has no effect: many users share one dict for both directions."""
    made = batch(**{f"kafka.{name}": "hunter2"})
    assert (f"kafka.{name}",) == made.ignored
    assert (f"kafka.{name} has no effect: a read writes nothing to Kafka",) == made.warnings


@pytest.mark.parametrize("name", sorted(set(REFUSED_CONSUMER) - set(WITHOUT_EFFECT)))
def test_unsupported_settings_are_rejected_with_the_reason(name):
    """Other unsupported settings of the consumer are errors, as in Spark's own source."""
    assert f"kafka.{name} is not supported: {REFUSED_CONSUMER[name].reason}" == refusal(
        {f"kafka.{name}": "x"}
    )


def test_errors_show_kafka_settings_as_the_user_wrote_them():
    """Errors about consumer settings show the option's name."""
    assert "kafka.fetch.min.bytes must be at least 0, not '-1'" == refusal(
        {"kafka.fetch.min.bytes": "-1"}
    )


@pytest.mark.parametrize("name", ["kafka.sasl.jaas.config", "kafka.ssl.keystore.password"])
def test_secrets_are_not_shown(name):
    """Errors do not show a secret."""
    assert "hunter2" not in refusal({name: "hunter2"})


def test_the_repr_shows_no_secret(monkeypatch):
    """The repr of the options hides passwords and the values of references."""
    monkeypatch.setenv("KEY_PASSWORD", "hunter2")
    made = batch(
        **{"kafka.security.protocol": "SSL", "kafka.ssl.key.password": "${env:KEY_PASSWORD}"}
    )
    assert "hunter2" == made.consumer.security.ssl_key_password.value
    assert "hunter2" not in repr(made)
    assert b"hunter2" not in pickle.dumps(made)


def test_a_function_for_tokens_is_rejected():
    """A function that returns tokens is given by its import path, since tasks have to import it."""
    given = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.login.callback.handler.class": len,
    }
    assert (
        "kafka.sasl.login.callback.handler.class must be token_endpoint, unsecured, msk_iam or "
        "'package.module:attribute' in a Spark read, so that tasks can import it, not builtins.len"
        == refusal(given)
    )
    made = batch(**{**given, "kafka.sasl.login.callback.handler.class": "a.b:c"})
    assert "a.b:c" == made.consumer.security.sasl_login_callback_handler_class.import_path


# --- other options


@pytest.mark.parametrize("name", SPARK_OPTIONS)
def test_options_that_spark_handles_are_accepted(name):
    """An option of a stream that Spark handles itself is accepted."""
    assert stream() == stream(**{name: "x"})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("topic", "set subscribe"),
        ("autoCreateTopics", "a read creates no topics"),
        ("sourceConsumerGroup", "set commitGroup"),
        ("deliveryGuarantee", "remove it"),
    ],
)
def test_options_of_the_sink_are_rejected_with_what_to_do(name, advice):
    """The error for an option of writes names the one to use in a read."""
    expected = f"{name} is an option of writes{';' if advice == 'remove it' else ':'} {advice}"
    assert expected == refusal({name.upper(): "x"})


@pytest.mark.parametrize("name", [n for n in SINK_OPTIONS_DEF.names if n not in SHARED])
def test_every_option_of_the_sink_is_rejected(name):
    """No option of the sink alone is accepted in a read."""
    assert refusal({name: "x"}).startswith(f"{name} is an option of writes")


def test_a_path_is_rejected_with_what_to_do():
    """The error for the path of `load(path)` names the option to use."""
    assert "load() does not accept a path: set the topic with subscribe" == refusal({"path": "a"})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("subscribes", "subscribe"),
        ("starting_offsets", "startingOffsets"),
        ("kafka.startingOffsets", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("isolation.level", "kafka.isolation.level"),
        ("Group.Id", "kafka.group.id"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("kafka.fetch.max.byte", "kafka.fetch.max.bytes"),
        ("mode", "onDecodeError"),
        ("avroSchemaEvolutionMode", "schemaEvolutionMode"),
        ("url", "schema.registry.url"),
        ("confluent.schema.registry.url", "schema.registry.url"),
        ("value.schema.id", "valueSchema"),
        ("key.schema.version", "keySchema"),
        ("value.schema.naming.strategy", "valueSubjectNameStrategy"),
        ("schema.name", "valueRecordName"),
        ("subject", "valueSubject"),
        ("schemaRegistrySubject", "valueSubject"),
        ("basic.auth.user.info", "schema.registry.basic.auth.user.info"),
        ("kafka.bearer.auth.token", "schema.registry.bearer.auth.token"),
    ],
)
def test_an_unknown_option_is_rejected_with_a_suggestion(name, nearest):
    """The error for a mistyped option suggests the nearest one, and does not show the value."""
    assert f"unknown option {name!r}; did you mean {nearest!r}?" == refusal({name: "hunter2"})


def test_a_mistyped_option_is_named_before_what_is_missing_without_it():
    """The columns of a read depend on few options, but a mistyped one may be one of them."""
    with pytest.raises(ConfigError) as caught:
        read_formats({"valueFormat": "avro", "schemaRegistryUrl": "http://a"})
    expected = "unknown option 'schemaRegistryUrl'; did you mean 'schema.registry.url'?"
    assert expected == str(caught.value)


def test_an_unrecognizable_option_gets_no_suggestion():
    """The error for an unrecognizable option has no suggestion."""
    assert "unknown option 'xyzzy'" == refusal({"xyzzy": "1"})


def test_no_option_has_two_meanings():
    """Options of reads alone are neither those of writes nor Spark's nor settings of Kafka."""
    own = {name.lower() for name in SOURCE_OPTIONS_DEF.names if name not in SHARED}
    assert own.isdisjoint(name.lower() for name in (*SINK_OPTIONS_DEF.names, *SPARK_OPTIONS))
    assert own.isdisjoint({*CONSUMER_CONFIG_DEF.names, *REFUSED_CONSUMER, *PRODUCER_ONLY})


@pytest.mark.parametrize("prefix", ["value.", "spark."])
def test_the_registry_has_one_prefix(prefix):
    """Names that only contain that of a registry are unknown."""
    assert refusal({f"{prefix}schema.registry.url": "http://a"}).startswith("unknown option")


def test_a_batch_is_not_started_again():
    """In a batch, schemaEvolutionMode has no effect, and is listed for a warning."""
    options = batch(
        valueFormat="avro",
        schemaEvolutionMode="restart",
        **{"schema.registry.url": "http://localhost:8081"},
    )
    assert EvolutionMode.NONE is options.formats.evolution
    assert ("schemaEvolutionMode",) == options.ignored


def test_lineage_is_reported_on_request():
    """By default no lineage is reported; lineageJob names its job."""
    for read in (batch, stream):
        assert read().lineage is None
        given = read(lineage="openlineage", lineageJob="copy")
        assert LineageOptions("copy") == given.lineage
    message = "lineageJob names the job of lineage events: set lineage=openlineage, or remove it"
    assert message == refusal({"lineageJob": "copy"})
