from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from spark_kafka_sink.config.consumer_config import CONSUMER_ONLY
from spark_kafka_sink.config.format_options import FORMAT_OPTIONS, READ_FORMAT_OPTIONS
from spark_kafka_sink.config.plugin_reference import PARTITIONERS, PluginReference
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF, ProducerConfig
from spark_kafka_sink.config.sink_options import (
    REFUSED_IN_SPARK,
    PaceOptions,
    SinkOptions,
    TraceOptions,
)
from spark_kafka_sink.config.source_table import (
    LINEAGE_OPTIONS,
    SOURCE_OPTIONS_DEF,
    LineageOptions,
)
from spark_kafka_sink.errors import ConfigError

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def options(**given):
    return SinkOptions.from_mapping({**SERVERS, **given})


def refusal(given):
    with pytest.raises(ConfigError) as caught:
        SinkOptions.from_mapping({**SERVERS, **given})
    return str(caught.value)


def test_the_minimal_options_suffice():
    """Only kafka.bootstrap.servers is required; all other options have defaults."""
    assert (
        SinkOptions(
            topic=None,
            report_path=None,
            ignored=(),
            producer=replace(
                ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9092"}),
                allow_auto_create_topics=False,
            ),
            source_consumer_group=None,
            checkpoint_location=None,
            exactly_once=None,
            report="summary",
            report_id=None,
            progress=False,
        )
        == options()
    )


def test_bootstrap_servers_are_required():
    """The error for missing bootstrap servers names the option with its prefix."""
    with pytest.raises(ConfigError, match=r"^kafka\.bootstrap\.servers is required: "):
        SinkOptions.from_mapping({})


@pytest.mark.parametrize("name", ["reportPath", "reportpath", "REPORTPATH"])
def test_option_names_are_case_insensitive(name):
    """Option names are case-insensitive, since Spark lower-cases them."""
    assert "/tmp/x" == options(**{name: "/tmp/x"}).report_path  # noqa: S108 -- only a text


def test_kafka_settings_are_passed_through():
    """An option that starts with `kafka.`, in any case, is passed to the producer."""
    settings = options(**{"Kafka.Acks": "1", "kafka.batch.size": 5}).producer
    assert (1, 5) == (settings.acks, settings.batch_size)


def test_errors_show_kafka_settings_as_the_user_wrote_them():
    """Errors about producer settings show the option's name."""
    assert "kafka.acks must be one of: all, -1, 0, 1, not '3'" == refusal({"kafka.acks": "3"})


def test_a_topic_is_trimmed():
    """The topic is trimmed, as in Spark's sink."""
    assert "orders.eu_1-x" == options(topic=" orders.eu_1-x ").topic


@pytest.mark.parametrize("topic", ["", " ", ".", "..", "a b", "ä", "a/b", "x" * 250])
def test_an_invalid_topic_name_is_rejected(topic):
    """An invalid topic name is rejected before a broker is contacted."""
    assert (
        f"{topic.strip()!r} is not a valid topic name: use up to 249 letters, digits, '.', '_' "
        "and '-'" == refusal({"topic": topic})
    )


def test_a_topic_name_of_maximum_length_is_accepted():
    """A topic name may have 249 characters."""
    assert "x" * 249 == options(topic="x" * 249).topic


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in SOURCE_OPTIONS_DEF.names
        if name not in {*FORMAT_OPTIONS, *READ_FORMAT_OPTIONS, *LINEAGE_OPTIONS}
    ],
)
def test_options_of_the_source_are_ignored(name):
    """An option of the source has no effect, and is listed for a warning."""
    assert (name,) == options(**{name.lower(): "x"}).ignored


@pytest.mark.parametrize("name", READ_FORMAT_OPTIONS)
def test_options_of_typed_reads_are_rejected(name):
    """What a read does with payloads is an error in a write, as the reverse is in a read."""
    assert f"{name} is an option of reads; remove it" == refusal({name.upper(): "x"})


@pytest.mark.parametrize("name", CONSUMER_ONLY)
def test_consumer_settings_are_ignored(name):
    """A consumer-only setting has no effect, and is listed for a warning."""
    assert (f"kafka.{name}",) == options(**{f"kafka.{name}": "x"}).ignored


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("acks", "kafka.acks"),
        ("Bootstrap.Servers", "kafka.bootstrap.servers"),
        ("sasl.jaas.config", "kafka.sasl.jaas.config"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("linger.m", "kafka.linger.ms"),
        ("kafka.topic", "topic"),
        ("topics", "topic"),
        ("report_path", "reportPath"),
        ("auto.register.schemas", "autoRegisterSchemas"),
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


def test_the_mode_of_a_write_is_not_an_option():
    """The error says where the mode belongs; it is an option of Spark's functions for Avro."""
    assert "unknown option 'mode': a write is told its mode by mode('append')" == refusal(
        {"mode": "FAILFAST"}
    )


def test_an_unrecognizable_option_gets_no_suggestion():
    """The error for an unrecognizable option has no suggestion."""
    assert "unknown option 'xyzzy'" == refusal({"xyzzy": "1"})


def test_a_path_is_rejected_with_what_to_do():
    """The error for the path of `save(path)` names the option to use."""
    assert "save() does not accept a path: set the topic with the option 'topic'" == refusal(
        {"path": "events"}
    )


@pytest.mark.parametrize("name", ["kafka.sasl.jaas.config", "kafka.ssl.keystore.password"])
def test_secrets_are_not_shown(name):
    """Errors do not show a secret."""
    assert "hunter2" not in refusal({name: "hunter2"})


@pytest.mark.parametrize("name", ["kafka.key.serializer", "kafka.value.serializer"])
def test_serializers_are_rejected(name):
    """Serializers are rejected, as in Spark's sink."""
    assert f"{name} is not supported: keys and values are written as the bytes of their" in refusal(
        {name: "org.apache.kafka.common.serialization.StringSerializer"}
    )


def test_a_transactional_id_is_rejected():
    """A transactional id is rejected, since tasks cannot share one; the error says what to set."""
    assert (
        "kafka.transactional.id is not supported: each task needs one of its own: set "
        "deliveryGuarantee=exactly_once and transactionalIdPrefix"
        == refusal({"kafka.transactional.id": "1"})
    )


def test_interceptors_are_rejected():
    """Interceptors are rejected, since rows are written as columns; an empty list is accepted."""
    assert (
        "kafka.interceptor.classes is not supported: rows are written as columns, not record by "
        "record: change the columns instead" == refusal({"kafka.interceptor.classes": "a:b"})
    )
    assert () == options(**{"kafka.interceptor.classes": " "}).producer.interceptor_classes


@pytest.mark.parametrize("name", PARTITIONERS.names)
def test_built_in_partitioners_are_accepted(name):
    """Every built-in partitioner can be used in a Spark write."""
    settings = options(**{"kafka.partitioner.class": name}).producer
    expected = None if name == "default" else PluginReference(name)
    assert expected == settings.partitioner_class


@pytest.mark.parametrize(("given", "shown"), [("a.b:c", "'a.b:c'"), (len, "builtins.len")])
def test_other_partitioners_are_rejected(given, shown):
    """The error for a user's partitioner names the column to use."""
    assert (
        f"kafka.partitioner.class must be one of {', '.join(PARTITIONERS.names)} in a Spark "
        f"write, not {shown}; to choose partitions yourself, add a partition column"
        == refusal({"kafka.partitioner.class": given})
    )


def test_reporters_are_given_by_name_or_import_path():
    """A metrics reporter is given by its short name or its import path."""
    reporters = options(**{"kafka.metric.reporters": "logging, a.b:c"}).producer.metric_reporters
    assert [("logging", None), (None, "a.b:c")] == [(r.built_in, r.import_path) for r in reporters]


def test_a_reporter_object_is_rejected():
    """A reporter object is rejected, since tasks have to create their own."""
    assert (
        "kafka.metric.reporters must be logging or 'package.module:attribute' in a Spark write, "
        "so that tasks can import it, not builtins.len" == refusal({"kafka.metric.reporters": len})
    )


@pytest.mark.parametrize("part", ["", "key.", "value."])
def test_other_text_encodings_are_rejected_with_what_to_do(part):
    """The error for another encoding names a conversion in Spark; UTF-8 is accepted."""
    name = f"kafka.{part}serializer.encoding"
    assert refusal({name: "ISO-8859-1"}) == (
        f"{name} is not supported: text is written as UTF-8: for another encoding, "
        "convert the column to binary, for example with encode(value, 'ISO-8859-1')"
    )
    assert options() == options(**{name: "UTF-8"})


@pytest.mark.parametrize("name", [key for key in REFUSED_IN_SPARK if key in PRODUCER_CONFIG_DEF])
def test_the_table_says_which_settings_spark_writes_reject(name):
    """The documentation of a setting says whether Spark writes reject it."""
    [doc] = [key.doc for key in PRODUCER_CONFIG_DEF if key.name == name]
    assert doc.endswith(" Not in a Spark write.")


def test_options_can_be_pickled():
    """Options equal themselves after pickling."""
    given = options(topic="t", **{"kafka.group.id": "x"})
    assert given == pickle.loads(pickle.dumps(given))  # noqa: S301 -- our own bytes


def test_the_group_of_the_source_and_the_checkpoint_are_known():
    """The source's group and the checkpoint location are as given, or None."""
    found = options(sourceConsumerGroup="lag", CHECKPOINTLOCATION="/c")
    assert ("lag", "/c") == (found.source_consumer_group, found.checkpoint_location)
    assert (None, None) == (options().source_consumer_group, options().checkpoint_location)


def test_an_empty_group_name_is_rejected():
    """An empty group name is an error."""
    assert "sourceConsumerGroup must not be empty" in refusal({"sourceConsumerGroup": ""})


def test_a_write_has_no_limits_unless_they_are_set():
    """Each limit may be set alone; the number of executors belongs to them."""
    assert options().pace is None
    assert PaceOptions(1_000_000, None) == options(maxBytesPerSecond="1000000").pace
    given = {"maxRecordsPerSecond": "5", "pacedExecutors": "4"}
    assert PaceOptions(None, 5, 4) == options(**given).pace


@pytest.mark.parametrize("name", ["maxBytesPerSecond", "maxRecordsPerSecond", "pacedExecutors"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [("0", "at least 1"), ("-5", "at least 1"), ("fast", "integer"), ("1.5", "integer")],
)
def test_a_limit_is_a_positive_whole_number(name, value, reason):
    """The error names the option, the value, and what is accepted."""
    message = refusal({"maxRecordsPerSecond": "1", name: value})
    assert message.startswith(f"{name} ")
    assert value in message
    assert reason in message


def test_a_number_of_executors_without_a_limit_is_refused():
    """It would have no effect."""
    assert "set maxBytesPerSecond or maxRecordsPerSecond" in refusal({"pacedExecutors": "4"})


@pytest.mark.parametrize("value", ["warn", "Fail", "OFF"])
def test_the_key_order_is_one_of_three_words(value):
    """The words are accepted in any case, as those of other options."""
    assert value.lower() == options(keyOrder=value).key_order
    assert "must be one of: warn, fail, off, not 'maybe'" in refusal({"keyOrder": "maybe"})


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("kafka.partitioner.ignore.keys", "true", "kafka.partitioner.ignore.keys=true"),
        ("kafka.partitioner.class", "round_robin", "kafka.partitioner.class='round_robin'"),
    ],
)
def test_the_key_order_does_not_matter_where_keys_choose_no_partition(setting, value, named):
    """The check is off then, and asking for it is an error."""
    assert "off" == options(**{setting: value}).key_order
    assert "off" == options(**{setting: value, "keyOrder": "off"}).key_order
    message = refusal({setting: value, "keyOrder": "fail"})
    assert message.startswith(
        f"keyOrder=fail needs the records of a key in one partition, and {named}"
    )
    assert "warn" == options(**{"kafka.partitioner.class": "crc32"}).key_order


def test_lineage_is_reported_on_request():
    """By default no lineage is reported; lineageJob names its job."""
    assert options().lineage is options(lineage="none").lineage is None
    assert LineageOptions(None) == options(lineage="OpenLineage").lineage
    assert LineageOptions("copy") == options(lineage="openlineage", lineageJob="copy").lineage
    assert "must be one of: none, openlineage, not 'marquez'" in refusal({"lineage": "marquez"})


def test_a_lineage_job_without_lineage_is_refused():
    """A name of a job that is not reported is an error."""
    message = "lineageJob names the job of lineage events: set lineage=openlineage, or remove it"
    assert message == refusal({"lineageJob": "copy"})


def test_the_name_of_a_query_is_known():
    """The name that Spark passes on is that of a stream's job in lineage events."""
    assert (None, "q") == (options().query_name, options(queryName="q").query_name)


TRACE_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_trace_context_is_injected_on_request():
    """By default rows have no trace context; traceParent names the span of the write."""
    assert options().trace is options(traceContext="none").trace is None
    assert TraceOptions(None) == options(traceContext="Inject").trace
    given = options(traceContext="inject", traceParent=TRACE_PARENT)
    assert TraceOptions(TRACE_PARENT) == given.trace
    assert "must be one of: none, inject, not 'on'" in refusal({"traceContext": "on"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        TRACE_PARENT.upper(),
        f"{TRACE_PARENT}-00",
        TRACE_PARENT.replace("00-", "01-", 1),
        f"00-{0:032x}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{0:016x}-01",
    ],
)
def test_a_malformed_trace_parent_is_refused(text):
    """What is not a traceparent of version 00 is an error, not a broken trace."""
    message = refusal({"traceContext": "inject", "traceParent": text})
    assert "traceParent must be a traceparent: 00, a trace id" in message


def test_a_trace_parent_without_trace_context_is_refused():
    """A parent of spans that there are not is an error."""
    message = "traceParent is for writes with trace context: set traceContext=inject, or remove it"
    assert message == refusal({"traceParent": TRACE_PARENT})
