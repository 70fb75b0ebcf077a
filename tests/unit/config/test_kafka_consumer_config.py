"""The rules between the settings of a group consumer."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_kafka_sink.config.consumer_config import (
    CONSUMER_PROTOCOL,
    KAFKA_CONSUMER_CONFIG_DEF,
    REFUSED_KAFKA_CONSUMER,
    KafkaConsumerConfig,
)
from spark_kafka_sink.config.plug_ins import plug_in_settings
from spark_kafka_sink.config.plugin_reference import PluginReference
from spark_kafka_sink.consumer.subscription.partition_state import parse_offset_reset
from spark_kafka_sink.errors import ConfigError

#: The settings that only classic groups have, with a value, and what replaces them.
CLASSIC_ONLY = [
    ("session.timeout.ms", 45_000, "the broker's group.consumer.session.timeout.ms applies"),
    ("heartbeat.interval.ms", 3_000, "the broker's group.consumer.heartbeat.interval.ms applies"),
    ("partition.assignment.strategy", "range", "set group.remote.assignor"),
    ("partition.assignment.strategy", [], "set group.remote.assignor"),
]


def config(settings=(), prefix=""):
    return KafkaConsumerConfig.from_mapping(
        {"bootstrap.servers": "localhost:9092", **dict(settings)}, prefix=prefix
    )


def refusal(settings, prefix=""):
    with pytest.raises(ConfigError) as caught:
        config(settings, prefix)
    return str(caught.value)


def test_the_defaults_are_those_of_java():
    """The defaults are Java's, but for topics that are not created and the socket buffers."""
    made = config({"group.id": "billing"})
    assert ("billing", None, "classic", None) == (
        made.group_id,
        made.group_instance_id,
        made.group_protocol,
        made.group_remote_assignor,
    )
    assert (45_000, 3_000, 300_000, 500) == (
        made.session_timeout_ms,
        made.heartbeat_interval_ms,
        made.max_poll_interval_ms,
        made.max_poll_records,
    )
    assert (True, 5_000, "latest") == (
        made.enable_auto_commit,
        made.auto_commit_interval_ms,
        made.auto_offset_reset,
    )
    assert (1_048_576, 52_428_800, 1, 500, True, "read_uncommitted") == (
        made.max_partition_fetch_bytes,
        made.fetch_max_bytes,
        made.fetch_min_bytes,
        made.fetch_max_wait_ms,
        made.check_crcs,
        made.isolation_level,
    )
    assert (None, None) == (made.key_deserializer, made.value_deserializer)
    assert (60_000, 30_000) == (made.default_api_timeout_ms, made.request_timeout_ms)
    assert made.allow_auto_create_topics is False
    assert made.exclude_internal_topics is True
    assert 134_217_728 == made.max_uncompressed_batch_bytes
    assert "spark-kafka-sink-consumer" == made.client_id
    assert (-1, -1) == (made.receive_buffer_bytes, made.send_buffer_bytes)
    assert (100, 300_000) == (
        made.max_in_flight_requests_per_connection,
        made.metadata_max_idle_ms,
    )


def test_every_setting_has_an_attribute_of_its_name():
    """Each setting is an attribute, with underscores for dots; TLS and SASL are in `security`."""
    made = config()
    for name in KAFKA_CONSUMER_CONFIG_DEF.names:
        attribute = name.replace(".", "_")
        assert hasattr(made, attribute) or hasattr(made.security, attribute)


def test_configurations_are_immutable_and_compared_by_value():
    """Equal settings give equal configurations with equal hashes, which are immutable."""
    assert {config({"max.poll.records": 2})} == {config({"max.poll.records": " 2 "})}
    assert config() != config({"max.poll.records": 2})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().max_poll_records = 1


@pytest.mark.parametrize("creates", [True, False])
def test_a_configuration_survives_pickling(creates, monkeypatch):
    """A pickled configuration is equal to the original, also if it holds a secret."""
    monkeypatch.setenv("KEY_PASSWORD", "hunter2")
    made = config(
        {
            "allow.auto.create.topics": creates,
            "security.protocol": "SSL",
            "ssl.key.password": "${env:KEY_PASSWORD}",
        }
    )
    copy = pickle.loads(pickle.dumps(made))  # noqa: S301 - our own bytes
    assert made == copy
    assert creates is copy.allow_auto_create_topics
    assert "hunter2" not in repr(copy)


# --- the protocol


@pytest.mark.parametrize("written", ["consumer", "CONSUMER", " Consumer "])
def test_the_protocol_is_written_in_any_case(written):
    """The name of a protocol is compared without its case, as in Java."""
    assert CONSUMER_PROTOCOL == config({"group.protocol": written}).group_protocol


@pytest.mark.parametrize(("name", "value", "instead"), CLASSIC_ONLY)
def test_a_setting_of_classic_groups_is_refused_in_others(name, value, instead):
    """The broker has settings instead of these, whatever their value; the error names them."""
    error = refusal({"group.protocol": "consumer", name: value}, prefix="kafka.")
    assert error.startswith(f"kafka.{name} cannot be set with group.protocol=consumer: ")
    assert instead in error
    assert config({"group.protocol": "classic", name: value})


def test_an_empty_strategy_is_accepted_with_the_consumer_protocol():
    """An empty text is as good as no setting, as in Java."""
    made = config({"group.protocol": "consumer", "partition.assignment.strategy": " "})
    assert () == made.partition_assignment_strategy


def test_a_remote_assignor_requires_the_consumer_protocol():
    """In a classic group members assign the partitions, so the broker's assignor is refused."""
    assert (
        "group.remote.assignor requires group.protocol=consumer; in a classic group set "
        "partition.assignment.strategy" == refusal({"group.remote.assignor": "uniform"})
    )
    made = config({"group.remote.assignor": "uniform", "group.protocol": "consumer"})
    assert "uniform" == made.group_remote_assignor


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_empty_remote_assignor_is_none(protocol):
    """An empty name lets the broker choose, and is accepted in classic groups too."""
    made = config({"group.remote.assignor": "", "group.protocol": protocol})
    assert made.group_remote_assignor is None


# --- heartbeats


@pytest.mark.parametrize(("heartbeat", "session"), [(45_000, None), (6_000, 6_000), (7, 6)])
def test_a_heartbeat_must_be_due_within_the_session(heartbeat, session):
    """A given interval that reaches the session's timeout is an error."""
    settings = {"heartbeat.interval.ms": heartbeat}
    if session is not None:
        settings["session.timeout.ms"] = session
    assert (
        f"heartbeat.interval.ms is {heartbeat}, but must be less than session.timeout.ms, which is "
        f"{session or 45_000}: set it to a third of that" == refusal(settings)
    )
    settings["heartbeat.interval.ms"] = heartbeat - 2
    assert heartbeat - 2 == config(settings).heartbeat_interval_ms


@pytest.mark.parametrize(
    ("session", "heartbeat"), [(3_001, 3_000), (3_000, 1_000), (1_500, 500), (4, 1), (2, 1)]
)
def test_the_default_interval_gives_way_to_a_short_session(session, heartbeat):
    """Without heartbeat.interval.ms, a short session has three heartbeats."""
    made = config({"session.timeout.ms": session})
    assert (session, heartbeat) == (made.session_timeout_ms, made.heartbeat_interval_ms)


def test_a_session_of_a_millisecond_has_no_heartbeat():
    """No interval is less than the shortest session."""
    assert "must be less than session.timeout.ms, which is 1:" in refusal({"session.timeout.ms": 1})


def test_the_interval_of_polls_is_independent_of_the_session():
    """Java compares neither, since a thread of its own sends the heartbeats."""
    made = config({"max.poll.interval.ms": 1, "session.timeout.ms": 50_000})
    assert (1, 50_000) == (made.max_poll_interval_ms, made.session_timeout_ms)


# --- the group


def test_offsets_are_not_committed_without_a_group():
    """Without a group, enable.auto.commit is false, and an error if it is given as true."""
    assert config().enable_auto_commit is False
    assert config({"enable.auto.commit": False}).enable_auto_commit is False
    assert (
        "enable.auto.commit=true requires group.id: offsets are committed to a consumer group"
        == refusal({"enable.auto.commit": "true"})
    )


@pytest.mark.parametrize("commits", [True, False])
def test_a_group_may_commit_or_not(commits):
    """With a group, the setting is as given."""
    made = config({"group.id": "billing", "enable.auto.commit": commits})
    assert commits is made.enable_auto_commit


def test_a_group_id_must_not_be_empty():
    """Java refuses it too, when the consumer is created."""
    assert "group.id must not be empty, not ' '" == refusal({"group.id": " "})


@pytest.mark.parametrize("name", ["a", "a" * 249, "Host-1.example_2", "..."])
def test_a_static_member_has_a_name_like_a_topic(name):
    """Letters, digits, dots, hyphens and underscores are valid, as in Java."""
    made = config({"group.id": "billing", "group.instance.id": name})
    assert name == made.group_instance_id


@pytest.mark.parametrize("name", [".", "..", "a" * 250, "a b", "ä", "a/b"])
def test_another_name_of_a_static_member_is_refused(name):
    """A broker would refuse it when the group is joined."""
    assert (
        f"group.instance.id {name!r} is invalid: use up to 249 letters, digits, '.', '_' and '-', "
        "and neither '.' nor '..'" == refusal({"group.id": "billing", "group.instance.id": name})
    )


def test_a_static_member_needs_a_group():
    """Its name has no meaning without a group."""
    assert "group.instance.id requires group.id: it names a member of that group" == refusal(
        {"group.instance.id": "a"}
    )


# --- plug-ins


@pytest.mark.parametrize(
    "written",
    [
        "sticky, org.apache.kafka.clients.consumer.RoundRobinAssignor",
        ["org.apache.kafka.clients.consumer.StickyAssignor", "roundrobin"],
    ],
)
def test_assignors_are_named_as_in_requests_or_in_java(written):
    """A built-in assignor has two names; the order is kept."""
    assert (PluginReference("sticky"), PluginReference("roundrobin")) == config(
        {"partition.assignment.strategy": written}
    ).partition_assignment_strategy


def test_assignors_may_be_objects_or_imported():
    """Assignors of a user are references, to be created with the consumer."""
    own = object()
    made = config({"partition.assignment.strategy": [own, "a.b:C", "range"]})
    assert (
        PluginReference(target=own),
        PluginReference(import_path="a.b:C"),
        PluginReference("range"),
    ) == made.partition_assignment_strategy


def test_an_unknown_assignor_is_refused():
    """The error lists the built-in ones."""
    assert refusal({"partition.assignment.strategy": "Range"}).startswith(
        "partition.assignment.strategy must be one of range, roundrobin, sticky, "
        "cooperative-sticky, "
    )


@pytest.mark.parametrize("repeated", ["range", "org.apache.kafka.clients.consumer.RangeAssignor"])
def test_an_assignor_is_named_only_once(repeated):
    """A repeated assignor is an error, by whichever name."""
    assert (
        "partition.assignment.strategy has the assignor 'range' twice; name each only once"
        == refusal({"partition.assignment.strategy": f"range,sticky,{repeated}"})
    )


@pytest.mark.parametrize("part", ["key", "value"])
def test_deserializers_are_named_as_serializers_are(part):
    """Names of Java's deserializers are understood; `bytes` needs no deserializer."""
    name = f"{part}.deserializer"
    java = "org.apache.kafka.common.serialization."
    for written, expected in {
        "string": PluginReference("string"),
        f"{java}LongDeserializer": PluginReference("int64"),
        f"{java}ByteArrayDeserializer": None,
        "bytes": None,
    }.items():
        assert expected == getattr(config({name: written}), f"{part}_deserializer")
    assert refusal({name: f"{java}StringSerializer"}).startswith(f"{name} names a Java class")


def test_interceptors_and_reporters_are_references():
    """Both settings take several plug-ins, in order."""
    made = config({"interceptor.classes": "a:B,c:D", "metric.reporters": "logging"})
    assert ("a:B", "c:D") == tuple(each.import_path for each in made.interceptor_classes)
    assert (PluginReference("logging"),) == made.metric_reporters


def test_plug_ins_are_configured_with_these_settings():
    """A plug-in sees the settings by Kafka's names, but none of security."""
    seen = plug_in_settings(config({"group.id": "billing"}))
    assert ("billing", 500) == (seen["group.id"], seen["max.poll.records"])
    assert "security" not in seen


# --- the start


@pytest.mark.parametrize("value", ["earliest", "latest", "none", "by_duration:P1DT12H"])
def test_the_start_of_a_partition_is_kept_as_text(value):
    """A valid value is the attribute."""
    assert value == config({"auto.offset.reset": f" {value} "}).auto_offset_reset


@given(
    st.sampled_from(["earliest", "latest", "none", "EARLIEST", "by_duration", "by_duration:", ""])
    | st.from_regex(
        r"(by_duration:)?[-+]?P(-?[0-9]{1,20}D)?(T(-?[0-9]{1,3}[HMS])?)?", fullmatch=True
    )
)
@example("by_duration:PT0S")
@example("by_duration:-PT0S")
@example("by_duration:PT-1S")
@example("P1D")
def test_the_settings_accept_exactly_what_the_consumer_understands(value):
    """The check of the setting and the parser of the consumer agree."""
    try:
        parse_offset_reset(value)
    except ConfigError:
        assert refusal({"auto.offset.reset": value}) == (
            "auto.offset.reset must be latest, earliest, none, or by_duration: with an ISO 8601 "
            f"duration that is not negative, such as by_duration:PT36H, not {value!r}"
        )
    else:
        assert value == config({"auto.offset.reset": value}).auto_offset_reset


# --- fetches and the rest


def test_a_broker_must_not_wait_longer_than_the_request():
    """The rule of reads applies here too."""
    assert refusal({"fetch.max.wait.ms": 30_000}).startswith("fetch.max.wait.ms is 30000, but must")
    assert 250 == config({"request.timeout.ms": 500}).fetch_max_wait_ms


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name, refused in REFUSED_KAFKA_CONSUMER.items()
        for value in refused.accepted
    ],
)
def test_unsupported_settings_are_accepted_if_they_change_nothing(name, value):
    """An unsupported setting is accepted with a value that describes the actual behaviour."""
    assert config() == config({name: value})


def test_an_unknown_setting_is_rejected_with_a_suggestion():
    """The error for an unknown setting suggests the nearest known one."""
    assert "unknown option 'max.poll.record'; did you mean 'max.poll.records'?" == refusal(
        {"max.poll.record": 1}
    )
    assert "unknown option 'linger.ms'" == refusal({"linger.ms": 5})
