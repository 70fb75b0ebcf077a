from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from spark_kafka_sink.config.plugin_reference import PARTITIONERS, PluginReference
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.producer_settings import PRODUCER_CONFIG_DEF
from spark_kafka_sink.config.sink_options import (
    CONSUMER_SETTINGS,
    REFUSED_IN_SPARK,
    SOURCE_OPTIONS,
    SinkOptions,
)
from spark_kafka_sink.errors import ConfigError

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def options(**given):
    return SinkOptions.from_mapping({**SERVERS, **given})


def refusal(given):
    with pytest.raises(ConfigError) as caught:
        SinkOptions.from_mapping({**SERVERS, **given})
    return str(caught.value)


def test_the_least_that_can_be_given():
    """Only kafka.bootstrap.servers is needed; everything else has a default."""
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
        )
        == options()
    )


def test_bootstrap_servers_are_required():
    """Without kafka.bootstrap.servers there is no write; the name is that of the option."""
    with pytest.raises(ConfigError, match=r"^kafka\.bootstrap\.servers is required: "):
        SinkOptions.from_mapping({})


@pytest.mark.parametrize("name", ["reportPath", "reportpath", "REPORTPATH"])
def test_the_case_of_names_does_not_matter(name):
    """Spark lower-cases the names of options, users do not."""
    assert "/tmp/x" == options(**{name: "/tmp/x"}).report_path  # noqa: S108 -- only a text


def test_kafka_settings_are_passed_through():
    """An option that starts with `kafka.` is the producer's, in any case."""
    settings = options(**{"Kafka.Acks": "1", "kafka.batch.size": 5}).producer
    assert (1, 5) == (settings.acks, settings.batch_size)


def test_errors_name_kafka_settings_as_the_user_wrote_them():
    """An error about a producer setting shows its option's name."""
    assert "kafka.acks must be one of: all, -1, 0, 1, not '3'" == refusal({"kafka.acks": "3"})


def test_a_topic_is_trimmed():
    """The topic is trimmed, as Spark's sink trims it."""
    assert "orders.eu_1-x" == options(topic=" orders.eu_1-x ").topic


@pytest.mark.parametrize("topic", ["", " ", ".", "..", "a b", "ä", "a/b", "x" * 250])
def test_a_topic_that_kafka_cannot_have_is_refused(topic):
    """A topic name that Kafka does not allow is refused before anything is asked of a broker."""
    assert (
        f"topic {topic.strip()!r} is no name of a topic: letters, digits, '.', '_' and '-', "
        "at most 249" == refusal({"topic": topic})
    )


def test_the_longest_topic_is_taken():
    """A topic name may have 249 characters."""
    assert "x" * 249 == options(topic="x" * 249).topic


@pytest.mark.parametrize("name", SOURCE_OPTIONS)
def test_options_of_sparks_kafka_source_are_ignored(name):
    """An option of the source changes nothing, and is listed for a warning."""
    assert (name,) == options(**{name.lower(): "x"}).ignored


@pytest.mark.parametrize("name", CONSUMER_SETTINGS)
def test_settings_of_the_consumer_are_ignored(name):
    """A setting that only Kafka's consumer has changes nothing, and is listed for a warning."""
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
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest(name, nearest):
    """A mistyped option is answered with the one that was probably meant, never with its value."""
    assert f"unknown option {name!r}; did you mean {nearest!r}?" == refusal({name: "hunter2"})


def test_an_option_like_no_other_gets_no_suggestion():
    """An option that resembles none is refused without a suggestion."""
    assert "unknown option 'xyzzy'" == refusal({"xyzzy": "1"})


def test_a_path_is_refused_with_what_to_do():
    """The path of `save(path)` is answered with the option that was meant."""
    assert "save() takes no path here: name the topic by the option 'topic'" == refusal(
        {"path": "events"}
    )


@pytest.mark.parametrize("name", ["kafka.sasl.jaas.config", "kafka.ssl.keystore.password"])
def test_secrets_do_not_show(name):
    """The error about an unsupported secret does not repeat it."""
    assert "hunter2" not in refusal({name: "hunter2"})


@pytest.mark.parametrize("name", ["kafka.key.serializer", "kafka.value.serializer"])
def test_serializers_are_refused(name):
    """Serializers are refused, as Spark's sink refuses them."""
    assert f"{name} is not supported: keys and values are written as the bytes of their" in refusal(
        {name: "org.apache.kafka.common.serialization.StringSerializer"}
    )


def test_a_transactional_id_is_refused():
    """One id for all tasks cannot be; the refusal says what to set instead."""
    assert (
        "kafka.transactional.id is not supported: each task needs one of its own: set "
        "deliveryGuarantee=exactly_once and transactionalIdPrefix"
        == refusal({"kafka.transactional.id": "1"})
    )


def test_interceptors_are_refused():
    """There is no record to intercept where rows are written as columns; none is no interceptor."""
    assert (
        "kafka.interceptor.classes is not supported: rows are written as columns, not record by "
        "record: change the columns instead" == refusal({"kafka.interceptor.classes": "a:b"})
    )
    assert () == options(**{"kafka.interceptor.classes": " "}).producer.interceptor_classes


@pytest.mark.parametrize("name", PARTITIONERS.names)
def test_partitioners_are_chosen_by_name(name):
    """Each partitioner that the package brings can be chosen for a Spark write."""
    settings = options(**{"kafka.partitioner.class": name}).producer
    expected = None if name == "default" else PluginReference(name)
    assert expected == settings.partitioner_class


@pytest.mark.parametrize(("given", "shown"), [("a.b:c", "'a.b:c'"), (len, "builtins.len")])
def test_other_partitioners_are_refused(given, shown):
    """A partitioner of one's own is refused, with the column that does its work."""
    assert (
        f"kafka.partitioner.class must be one of {', '.join(PARTITIONERS.names)} in a Spark "
        f"write, not {shown}; a partition column places rows otherwise"
        == refusal({"kafka.partitioner.class": given})
    )


def test_reporters_are_named_by_where_tasks_import_them():
    """A reporter of metrics is given by its short name or by its import path."""
    reporters = options(**{"kafka.metric.reporters": "logging, a.b:c"}).producer.metric_reporters
    assert [("logging", None), (None, "a.b:c")] == [(r.built_in, r.import_path) for r in reporters]


def test_a_reporter_that_cannot_travel_is_refused():
    """An object of the driver's cannot report on tasks."""
    assert (
        "kafka.metric.reporters must be logging or 'package.module:attribute' in a Spark write, "
        "for tasks to make, not builtins.len" == refusal({"kafka.metric.reporters": len})
    )


@pytest.mark.parametrize("part", ["", "key.", "value."])
def test_another_encoding_of_text_is_refused_with_what_spark_offers(part):
    """The advice names a conversion of the column; UTF-8 is what is written anyway."""
    name = f"kafka.{part}serializer.encoding"
    assert refusal({name: "ISO-8859-1"}) == (
        f"{name} is not supported: text is written as UTF-8: for another encoding convert the "
        "column to binary, such as with encode(value, 'ISO-8859-1')"
    )
    assert options() == options(**{name: "UTF-8"})


@pytest.mark.parametrize("name", [key for key in REFUSED_IN_SPARK if key in PRODUCER_CONFIG_DEF])
def test_the_table_says_what_does_not_work_in_spark(name):
    """The documentation of a setting that a Spark write refuses says so."""
    [doc] = [key.doc for key in PRODUCER_CONFIG_DEF if key.name == name]
    assert doc.endswith(" Not in a Spark write.")


def test_options_travel_to_tasks():
    """Options are the same after pickling."""
    given = options(topic="t", **{"kafka.group.id": "x"})
    assert given == pickle.loads(pickle.dumps(given))  # noqa: S301 -- our own bytes


def test_the_group_of_the_source_and_the_checkpoint_are_known():
    """Both are None where they are not given, and as they were given where they are."""
    found = options(sourceConsumerGroup="lag", CHECKPOINTLOCATION="/c")
    assert ("lag", "/c") == (found.source_consumer_group, found.checkpoint_location)
    assert (None, None) == (options().source_consumer_group, options().checkpoint_location)


def test_a_group_without_a_name_is_refused():
    """An empty name is a mistake, not a wish for no group."""
    assert "sourceConsumerGroup must not be empty" in refusal({"sourceConsumerGroup": ""})
