"""A single record before it is staged: how it is prepared, and what is rejected by name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_kafka_sink.config.plug_ins import PlugIns
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import (
    InvalidPartitionError,
    RecordTooLargeError,
    SerializationError,
)
from spark_kafka_sink.network.metadata import MetadataSnapshot
from spark_kafka_sink.producer.records.interceptors import ProducerRecord
from spark_kafka_sink.producer.records.partitioner import TopicPartitions, resolve_partitioner
from spark_kafka_sink.producer.records.record_preparation import (
    MAX_PARTITION,
    MAX_TIMESTAMP,
    RecordPreparation,
    check_place,
    check_timeout,
)
from spark_kafka_sink.producer.records.serializers import resolve_serializers

PARTITIONS = 3
MAX_RECORD_BYTES = 1_000


def _preparation(**settings: object) -> RecordPreparation:
    config = ProducerConfig.from_mapping({"bootstrap.servers": "127.0.0.1:9", **settings})
    return RecordPreparation(
        config,
        SimpleNamespace(
            topic_partitions=lambda topic: TopicPartitions(topic, PARTITIONS, range(PARTITIONS)),
            max_record_bytes=MAX_RECORD_BYTES,
            snapshot=MetadataSnapshot(),
        ),
        partitioner=resolve_partitioner(config.partitioner_class),
        serializers=resolve_serializers(config, PlugIns()),
    )


def _prepare(preparation: RecordPreparation | None = None, **fields: object):
    return (preparation or _preparation()).prepare(ProducerRecord("t", **fields))


def test_a_record_of_bytes_is_not_changed():
    """Without serializers and a partitioner a record is not changed."""
    preparation = _preparation()
    assert preparation.leaves_bytes_unchanged
    assert not preparation.partitions_each_record
    prepared = _prepare(
        preparation,
        value=b"v",
        key=b"k",
        headers=[("h", b"x"), ("n", None)],
        partition=2,
        timestamp=5,
    )
    assert ("t", b"v", b"k", [("h", b"x"), ("n", None)], 2, 5) == prepared


def test_missing_fields_of_a_record_stay_null():
    """No key, value, header, partition or timestamp is invented."""
    assert ("t", None, None, None, None, None) == _prepare()


def test_records_are_serialized_if_there_is_any_serializer():
    """Bytes bypass serialization only if neither the key nor the value is serialized."""
    assert not _preparation(**{"key.serializer": "string"}).leaves_bytes_unchanged
    assert not _preparation(**{"value.serializer": "json"}).leaves_bytes_unchanged
    assert _preparation(
        **{"key.serializer": "bytes", "value.serializer": "bytes"}
    ).leaves_bytes_unchanged


def test_key_and_value_have_their_own_serializers():
    """Each setting applies to its own part only."""
    preparation = _preparation(**{"key.serializer": "string", "value.serializer": "json"})
    prepared = _prepare(preparation, key="k", value={"a": 1})
    assert (b"k", b'{"a":1}') == (prepared.key, prepared.value.replace(b" ", b""))


def test_the_error_of_a_serializer_names_the_key_or_the_value():
    """The error names the part of the record."""
    with pytest.raises(SerializationError, match="value"):
        _prepare(value=12)
    with pytest.raises(SerializationError, match="key"):
        _prepare(key=object())


def test_header_values_become_bytes():
    """Bytes-like values are copied, so the caller may reuse its buffer."""
    given = bytearray(b"abc")
    prepared = _prepare(headers=(("h", given), ("m", memoryview(b"d"))))
    given[0] = 0
    assert [("h", b"abc"), ("m", b"d")] == prepared.headers


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([b"h"], "a header must be a pair"),
        ([("h", b"v", 1)], "a header must be a pair"),
        ([5], "a header must be a pair"),
        ([(b"h", b"v")], "the name of a header must be a str, not bytes"),
        ([(None, b"v")], "the name of a header must be a str, not NoneType"),
        ([("h", "v")], "the value of header 'h' must be bytes or None, not str"),
        ([("h", 5)], "the value of header 'h' must be bytes or None, not int"),
        (5, "the headers must be pairs"),
    ],
    ids=str,
)
def test_invalid_headers_are_rejected(headers, message):
    """A header is a name and bytes, and the error says which of them is invalid."""
    with pytest.raises(TypeError, match=message):
        _prepare(headers=headers)


def test_a_header_name_that_is_not_valid_text_is_rejected():
    """A lone surrogate has no UTF-8, and raises ValueError before anything is staged."""
    with pytest.raises(ValueError, match="surrogates not allowed"):
        _prepare(headers=[("\ud800", b"v")])


@pytest.mark.parametrize(
    ("timestamp", "error", "message"),
    [
        (1.5, TypeError, "the timestamp must be an int .* not float"),
        ("5", TypeError, "the timestamp must be an int .* not str"),
        (True, TypeError, "the timestamp must be an int .* not bool"),
        (-1, ValueError, "must be milliseconds since 1970, not -1"),
        (MAX_TIMESTAMP + 1, ValueError, "must be milliseconds since 1970"),
    ],
)
def test_invalid_timestamps_are_rejected(timestamp, error, message):
    """A timestamp must be a 64-bit number of milliseconds since 1970."""
    with pytest.raises(error, match=message):
        _prepare(timestamp=timestamp)


@pytest.mark.parametrize("timestamp", [0, MAX_TIMESTAMP])
def test_timestamps_at_the_limits_are_accepted(timestamp):
    """1970 and the last moment that fits into 64 bits are valid timestamps."""
    assert timestamp == _prepare(timestamp=timestamp).timestamp


@pytest.mark.parametrize(
    ("topic", "partition", "error", "message"),
    [
        (None, None, TypeError, "the topic must be a str, not NoneType"),
        (b"t", None, TypeError, "the topic must be a str, not bytes"),
        ("", None, ValueError, "the topic must not be empty"),
        ("\ud800", None, ValueError, "surrogates not allowed"),
        ("t" * 32_768, None, ValueError, "the topic has 32768 bytes; Kafka's limit is 32767"),
        ("é" * 16_384, None, ValueError, "the topic has 32768 bytes; Kafka's limit is 32767"),
        ("t", "0", TypeError, "the partition must be an int or None, not str"),
        ("t", 1.0, TypeError, "the partition must be an int or None, not float"),
        ("t", True, TypeError, "the partition must be an int or None, not bool"),
        ("t", -1, ValueError, "must be a number from 0 to .*, not -1"),
        ("t", MAX_PARTITION + 1, ValueError, "must be a number from 0"),
    ],
)
def test_invalid_topics_and_partitions_are_rejected(topic, partition, error, message):
    """An invalid topic or partition is rejected before the record is staged."""
    with pytest.raises(error, match=message):
        check_place(topic, partition)


def test_the_broker_validates_the_characters_of_a_topic_name():
    """The broker decides which topic names are valid."""
    check_place("größe", None)


@pytest.mark.parametrize("partition", [None, 0, MAX_PARTITION])
def test_valid_topics_and_partitions_are_accepted(partition):
    """Metadata shows later whether the topic has that partition."""
    check_place("t", partition)


def test_a_partition_that_does_not_exist_is_rejected():
    """The error reports the number of partitions."""
    with pytest.raises(
        InvalidPartitionError, match=r"partition 3: .* has 3 partitions, numbered from 0"
    ):
        _prepare(partition=3)


def test_a_partitioner_function_gets_bytes_and_its_result_is_checked():
    """The function is called after serialization, and only for records without a partition."""
    calls = []

    def choose(topic, key, value, partition_count, available):
        calls.append((topic, key, value, partition_count, list(available)))
        return int(key)

    preparation = _preparation(**{"partitioner.class": choose, "key.serializer": "string"})
    assert preparation.partitions_each_record
    assert 1 == _prepare(preparation, key="1", value=b"v").partition
    assert [("t", b"1", b"v", 3, [0, 1, 2])] == calls
    assert 2 == _prepare(preparation, key="0", partition=2).partition
    assert 1 == len(calls)
    assert [0, 2] == [_prepare(preparation, key=key).partition for key in ("0", "2")]
    for wrong in ("-1", "3", "7"):
        with pytest.raises(InvalidPartitionError, match=f"partition {wrong}"):
            _prepare(preparation, key=wrong)


@pytest.mark.parametrize(
    "fields",
    [
        {"value": bytes(MAX_RECORD_BYTES)},
        {"key": bytes(MAX_RECORD_BYTES)},
        {"headers": [("h", bytes(MAX_RECORD_BYTES))]},
        {"headers": [("h" * MAX_RECORD_BYTES, None)]},
        {"headers": [("h", b"")] * 100},
        {"key": bytes(500), "value": bytes(500)},
    ],
    ids=["value", "key", "header value", "header name", "many headers", "together"],
)
def test_an_oversized_record_is_rejected(fields):
    """The limit includes key, value and headers, and the error names the setting to raise."""
    with pytest.raises(RecordTooLargeError, match=r"allow at most 1000\. Raise max.request.size"):
        _prepare(**fields)


def test_a_record_of_the_largest_size_is_accepted():
    """A record that is certain to fit is accepted."""
    assert 979 == len(_prepare(value=bytes(979)).value)


@pytest.mark.parametrize("timeout", [None, 0, 0.0, 0.001, 1, 1e9])
def test_valid_timeouts_are_accepted(timeout):
    """None means no limit, and 0 means no waiting."""
    check_timeout(timeout)


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan")])
def test_invalid_timeouts_are_rejected(timeout):
    """A timeout must not be negative."""
    with pytest.raises(ValueError, match="0 seconds or more"):
        check_timeout(timeout)
