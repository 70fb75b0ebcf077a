"""The topic configs that the broker supports, and those that it refuses."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.protocol.error_codes import ErrorCode


def test_defaults_are_kafkas():
    """A topic without configs has Kafka's defaults."""
    assert {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "delete.retention.ms": "86400000",
        "flush.messages": "9223372036854775807",
        "flush.ms": "9223372036854775807",
        "index.interval.bytes": "4096",
        "max.message.bytes": "1048588",
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": "9223372036854775807",
        "message.timestamp.type": "CreateTime",
        "min.cleanable.dirty.ratio": "0.5",
        "min.compaction.lag.ms": "0",
        "min.insync.replicas": "1",
        "retention.bytes": "-1",
        "retention.ms": "604800000",
        "segment.bytes": "1073741824",
        "segment.index.bytes": "10485760",
        "segment.ms": "604800000",
    } == TopicConfig().effective_values()


@pytest.mark.parametrize(
    ("name", "value", "attribute", "expected"),
    [
        ("max.message.bytes", "1000", "max_message_bytes", 1000),
        ("segment.bytes", "1048576", "segment_bytes", 1_048_576),
        ("message.timestamp.type", "LogAppendTime", "log_append_time", True),
        ("message.timestamp.type", "CreateTime", "log_append_time", False),
        ("message.timestamp.before.max.ms", "5", "message_timestamp_before_max_ms", 5),
        ("message.timestamp.after.max.ms", "0", "message_timestamp_after_max_ms", 0),
        ("min.insync.replicas", "2", "min_insync_replicas", 2),
        ("cleanup.policy", "compact", "compact", True),
        ("cleanup.policy", "compact, delete", "cleanup_policy", "compact,delete"),
        ("cleanup.policy", "delete", "compact", False),
    ],
)
def test_settings_take_effect(name, value, attribute, expected):
    """An accepted config is reflected in an attribute of the topic."""
    assert expected == getattr(TopicConfig().with_values({name: value}), attribute)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max.message.bytes", "many", "Not a number"),
        ("max.message.bytes", "-1", "between"),
        ("max.message.bytes", "2147483648", "between"),
        ("message.timestamp.type", "logappendtime", "one of"),
        ("min.insync.replicas", "0", "between"),
        ("cleanup.policy", "keep", "one of"),
        ("cleanup.policy", "", "one of"),
        ("compression.type", "gzip", "only producer"),
        ("retention.ms", "-2", "between"),
        ("retention.bytes", "x", "Not a number"),
        ("min.cleanable.dirty.ratio", "1.5", "between 0 and 1"),
        ("min.cleanable.dirty.ratio", "half", "Not a number"),
        ("segment.jitter.ms", "1000", "does not support"),
        ("segment.bytes", "1048575", "between"),
        ("retention.hours", "1", "Unknown topic config name: retention.hours"),
    ],
)
def test_settings_that_would_have_no_effect_are_refused(name, value, message):
    """An unsupported config is INVALID_CONFIG, and never silently accepted."""
    with pytest.raises(RefusedError, match=message) as caught:
        TopicConfig().with_values({name: value})

    assert ErrorCode.INVALID_CONFIG == caught.value.error_code


def test_the_only_supported_value_may_be_set():
    """The only supported value of a config may be set explicitly."""
    assert TopicConfig() == TopicConfig().with_values({"compression.type": "producer"})


def test_settings_build_on_those_before():
    """Configs that are not given keep their values."""
    base = TopicConfig(max_message_bytes=77)

    assert 77 == base.with_values({"min.insync.replicas": "2"}).max_message_bytes
