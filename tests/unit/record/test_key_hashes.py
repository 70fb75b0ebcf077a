"""Partitions for keys, compared with the code of other Kafka clients."""

from __future__ import annotations

import ctypes
import json
import zlib
from pathlib import Path

import confluent_kafka
import numpy as np
import pytest
from confluent_kafka import cimpl
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.record.kernel.kernel import STICKY_SLOT, assign_slots
from spark_kafka_sink.record.kernel.kernel_hashes import murmur2, partition_for_key
from spark_kafka_sink.record.key_hashes import DEFAULT_KEY_RULE, KEY_RULES, KeyHash, KeyRule
from tests.support.record.record_columns import columns

GOLDEN = Path(__file__).parent / "golden"
SARAMA = json.loads((GOLDEN / "sarama_partitions.json").read_text())
JAVA = json.loads((GOLDEN / "java_partitions.json").read_text())

#: Our names of rules, and librdkafka's.
LIBRDKAFKA_NAMES = [
    ("consistent", "consistent"),
    ("consistent_random", "consistent_random"),
    ("murmur2_consistent", "murmur2"),
    ("murmur2_random", "murmur2_random"),
    ("fnv1a_consistent", "fnv1a"),
    ("fnv1a_random", "fnv1a_random"),
]
HASHES_OF_LIBRDKAFKA = [
    (KeyHash.CRC32, "consistent"),
    (KeyHash.MURMUR2, "murmur2"),
    (KeyHash.FNV1A, "fnv1a"),
]
PARTITION_COUNTS = st.integers(1, 2**31 - 1)


def placed(keys, partition_count: int, rule: KeyRule, **options) -> list[int]:
    """Return the partitions of keys from the compiled loop; `STICKY_SLOT` is a keyless record."""
    rows = columns([b"v"] * len(keys), keys=keys)
    result = assign_slots(
        rows, np.zeros(1, np.int32), np.array([partition_count], np.int32), key_rule=rule, **options
    )
    return result.row_slots.tolist()


def librdkafka(name: str, key: bytes, partition_count: int) -> int:
    """Call the partitioner of the librdkafka that confluent-kafka has loaded."""
    function = getattr(ctypes.CDLL(cimpl.__file__), f"rd_kafka_msg_partitioner_{name}")
    function.restype = ctypes.c_int32
    pointer = ctypes.c_void_p
    function.argtypes = [
        pointer,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_int32,
        pointer,
        pointer,
    ]
    return function(None, key, len(key), partition_count, None, None)


@pytest.mark.parametrize("row", SARAMA["rows"], ids=lambda row: row["key"])
def test_fnv1a_places_keys_as_in_sarama(row):
    """Keys get the partitions of Sarama's HashPartitioner, including the hash -2**31."""
    key = bytes.fromhex(row["key"])
    counts = SARAMA["partition_counts"]
    assert row["partitions"] == [placed([key], c, KEY_RULES["fnv1a"])[0] for c in counts]
    assert row["partitions"] == [partition_for_key(KeyHash.FNV1A, key, c) for c in counts]


def test_the_sarama_table_has_the_hash_without_an_absolute_value():
    """The table has the key of Sarama's regression test, whose hash is -2**31."""
    assert 2**31 % 50 == partition_for_key(KeyHash.FNV1A, b"1468509572224", 50)
    assert b"1468509572224".hex() in [row["key"] for row in SARAMA["rows"]]


@pytest.mark.parametrize(("key_hash", "name"), HASHES_OF_LIBRDKAFKA)
@given(key=st.binary(max_size=100), partition_count=PARTITION_COUNTS)
def test_keys_are_placed_as_in_librdkafka(key_hash, name, key, partition_count):
    """Keys get librdkafka's partitions, whatever their length and the partition count."""
    assert librdkafka(name, key, partition_count) == partition_for_key(
        key_hash, key, partition_count
    )


@given(key=st.binary(max_size=200), partition_count=PARTITION_COUNTS)
def test_crc32_equals_that_of_zlib(key, partition_count):
    """The hash is the CRC-32 of IEEE 802.3, as an unsigned number."""
    assert zlib.crc32(key) % partition_count == partition_for_key(
        KeyHash.CRC32, key, partition_count
    )


@given(
    keys=st.lists(st.none() | st.binary(max_size=40), max_size=20), partition_count=PARTITION_COUNTS
)
@pytest.mark.parametrize("name", KEY_RULES)
def test_columns_are_placed_like_single_keys(name, keys, partition_count):
    """The compiled loop hashes exactly the keys that are long enough for the rule."""
    rule = KEY_RULES[name]
    assert [
        STICKY_SLOT
        if (-1 if key is None else len(key)) < rule.shortest_key
        else partition_for_key(rule.key_hash, key or b"", partition_count)
        for key in keys
    ] == placed(keys, partition_count, rule)


@pytest.mark.parametrize(
    ("name", "null_partition", "empty_partition"),
    [
        ("murmur2", STICKY_SLOT, (murmur2(b"") & 0x7FFFFFFF) % 1000),
        ("crc32", STICKY_SLOT, STICKY_SLOT),
        ("consistent", 0, 0),
        ("fnv1a", STICKY_SLOT, 0x7EE3623B % 1000),
    ],
)
def test_null_and_empty_keys_are_hashed_as_by_the_client(name, null_partition, empty_partition):
    """Each rule hashes null and empty keys as its client does."""
    assert [null_partition, empty_partition] == placed([None, b""], 1000, KEY_RULES[name])


@pytest.mark.parametrize("name", KEY_RULES)
def test_all_keys_can_be_ignored(name):
    """partitioner.ignore.keys applies to every hash."""
    rule = KEY_RULES[name]
    assert [STICKY_SLOT] * 3 == placed([None, b"", b"key"], 7, rule, ignore_keys=True)


def test_the_default_rule_is_that_of_java():
    """Without a rule, keys are placed as by Java's BuiltInPartitioner."""
    keys = [bytes.fromhex(row["key"]) for row in JAVA["keys"]]
    for place, count in enumerate(JAVA["partition_counts"]):
        expected = [row["partitions"][place] for row in JAVA["keys"]]
        assert expected == placed(keys, count, DEFAULT_KEY_RULE)
    assert DEFAULT_KEY_RULE == KEY_RULES["murmur2"]


@pytest.mark.parametrize("count", [0, -1])
def test_a_key_cannot_be_placed_without_partitions(count):
    """A key cannot be placed without partitions."""
    with pytest.raises(ValueError, match=f"a key cannot be placed on {count} partitions"):
        partition_for_key(KeyHash.CRC32, b"k", count)


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "theirs"), LIBRDKAFKA_NAMES)
def test_a_confluent_producer_places_records_in_the_same_partitions(ours, theirs):
    """A confluent-kafka producer and our rule of that name place or spread keys alike."""
    count, copies = 5, 40
    keys = [b"", b"foobar", *(b"key-%d" % n for n in range(30)), None]
    partitions: dict[bytes | None, set[int]] = {key: set() for key in keys}

    def note(error, message):
        assert error is None
        partitions[message.key()].add(message.partition())

    with DevBroker(topics={"t": count}) as broker:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "partitioner": theirs,
                "sticky.partitioning.linger.ms": 0,
            }
        )
        for key in keys * copies:
            producer.produce("t", key=key, value=b"v", on_delivery=note)
        assert 0 == producer.flush(20)
    for key, partition in zip(keys, placed(keys, count, KEY_RULES[ours]), strict=True):
        if partition == STICKY_SLOT:
            assert 1 < len(partitions[key])
        else:
            assert {partition} == partitions[key]
