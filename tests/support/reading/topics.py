"""Topics with everything that a reader must understand, written by clients that are not ours.

`CASES` is the table: each case has its own topic. `write_topics` writes them all.
"""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import confluent_kafka

from tests.support.kafka.java_tools import run_java_tool
from tests.support.kafka.readers import read_with_confluent
from tests.support.kafka.real_kafka import wait_until
from tests.support.reading.writers import (
    LibrdkafkaTransactions,
    RawName,
    write_with_aiokafka,
    write_with_kafka_python,
    write_with_librdkafka,
)
from tests.support.record.rows import Row, mixed_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.kafka.real_kafka import KafkaCluster

    Write = Callable[[KafkaCluster, str], object]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
_JAVA = Path(__file__).with_name("WriteTopics.java")
_NOW_MS = 1_700_000_000_000
#: Records of the past must not expire.
_KEPT = {"retention.ms": "-1"}
_LARGE_BYTES = 5_000_000
_CLEANER_SECONDS = 120
_COMPACTED_WRITES = 4
_COMPACTED_ROWS = 50


class Case(NamedTuple):
    """A topic: its number of partitions, its configuration, and the function that writes it."""

    #: Called with the cluster and the topic; None if Java writes it, see `write_topics`.
    write: Write | None
    partitions: int = 1
    config: Mapping[str, str] = MappingProxyType({})
    #: Whether it must be read with both isolation levels.
    is_transactional: bool = False


def _with_all_codecs(write: Callable[[str, str, list[Row], str], None]) -> Write:
    """Write rows of every kind to three partitions, with each codec."""

    def write_all(kafka: KafkaCluster, topic: str) -> None:
        for seed, codec in enumerate(CODECS):
            rows = mixed_rows(60, PARTITIONS, now_ms=_NOW_MS, seed=seed)
            write(kafka.bootstrap_servers, topic, rows, codec)

    return write_all


def _librdkafka_codec(servers: str, topic: str, rows: list[Row], codec: str) -> None:
    write_with_librdkafka(servers, topic, rows, compression_codec=codec)


def _kafka_python_codec(servers: str, topic: str, rows: list[Row], codec: str) -> None:
    name = None if codec == "none" else codec
    write_with_kafka_python(servers, topic, rows, compression_type=name)


def _aiokafka_codec(servers: str, topic: str, rows: list[Row], codec: str) -> None:
    name = None if codec == "none" else codec
    write_with_aiokafka(servers, topic, rows, partitions=PARTITIONS, compression_type=name)


def _headers(kafka: KafkaCluster, topic: str) -> None:
    names = [
        b"\xff\xfe",
        "größe".encode("latin-1"),
        b"\xc3\x28 \xe2\x82",
        b"\xf0\x9f\x98",
        b"\xc0\x80 \xe0\x80\x80",
        b"\xed\xa0\x80\xed\xb0\x80",
        b"\xf4\x90\x80\x80 \xf8\x88\x80\x80\x80",
        b"nul\x00nul",
    ]
    headers = [
        None,
        [],
        [("a", b"1")],
        [("a", None), ("b", b""), ("c", b"3")],
        [("same", b"1"), ("same", b"1"), ("same", None)],
        [("", b"no name"), ("größe", b"42"), ("\U0001f5dd", b"key")],
        [(f"h{i}", b"x" * i) for i in range(300)],
    ]
    rows = [Row(value=b"%d" % i, headers=each, partition=0) for i, each in enumerate(headers)]
    write_with_librdkafka(kafka.bootstrap_servers, topic, rows * 2)
    not_utf_8 = [(RawName(name), name) for name in names]
    row = Row(value=b"not UTF-8", headers=not_utf_8, partition=0)
    write_with_kafka_python(kafka.bootstrap_servers, topic, [row, row])


def _one_record_batches(kafka: KafkaCluster, topic: str) -> None:
    rows = mixed_rows(400, 2, now_ms=_NOW_MS)
    for codec in ("none", "lz4"):
        write_with_librdkafka(
            kafka.bootstrap_servers,
            topic,
            rows,
            compression_codec=codec,
            batch_num_messages=1,
            linger_ms=0,
        )


def _large_record(kafka: KafkaCluster, topic: str) -> None:
    large = random.Random(5).randbytes(_LARGE_BYTES)
    for codec in ("none", "zstd"):
        rows = [Row(b"before", b"", partition=0), Row(b"large", large, partition=0)]
        write_with_librdkafka(
            kafka.bootstrap_servers,
            topic,
            [*rows, Row(b"after", b"", partition=0)],
            message_max_bytes=2 * _LARGE_BYTES,
            compression_codec=codec,
        )


def _compacted(kafka: KafkaCluster, topic: str) -> None:
    """Write repeated keys and tombstones, in a segment of the log for each write."""
    for number in range(_COMPACTED_WRITES):
        rows = [
            Row(
                b"key-%d" % (i % 7),
                None if i % 11 == 0 else b"%d %d" % (number, i),
                # A batch that is later than segment.ms by its timestamp begins a new segment.
                timestamp=(_NOW_MS + number * 1000) * 1000,
                partition=0,
            )
            for i in range(_COMPACTED_ROWS)
        ]
        write_with_librdkafka(
            kafka.bootstrap_servers, topic, rows, batch_num_messages=8, compression_codec="lz4"
        )


def _wait_for_gaps(kafka: KafkaCluster, topic: str) -> None:
    """Wait until the cleaner has removed all that it will, so that a topic has gaps.

    If it were still at work, two readers could find different records.
    """

    def is_clean() -> bool:
        records = read_with_confluent(kafka.bootstrap_servers, topic)
        # The last segment is never cleaned.
        last = (_COMPACTED_WRITES - 1) * _COMPACTED_ROWS
        keys = [record.key for record in records if record.offset < last]
        return len(keys) == len(set(keys))

    wait_until(is_clean, seconds=_CLEANER_SECONDS, what=f"the log cleaner on {topic}")


def _transactions(kafka: KafkaCluster, topic: str) -> None:
    """Write transactions that alternate, and one that stays open, between plain records."""
    first, second = (
        LibrdkafkaTransactions(kafka.bootstrap_servers, topic, name) for name in ("one", "two")
    )

    def rows(name: str) -> list[Row]:
        return [Row(b"key", b"%s %d" % (name.encode(), i), partition=i % 2) for i in range(12)]

    def plain(name: str) -> None:
        write_with_librdkafka(kafka.bootstrap_servers, topic, rows(name))

    plain("plain 1")
    with first.aborted(), second.transaction():
        first.send(rows("aborted 1"))
        second.send(rows("committed 1"))
        first.send(rows("aborted 2"))
        plain("plain 2")
    with first.transaction(), second.aborted():
        second.send(rows("aborted 3"))
        first.send(rows("committed 2"))
    with second.aborted():
        second.send(rows("aborted 4"))
    first.begin()
    first.send([Row(b"key", b"open", partition=1)])
    plain("after the open one's first record")
    with second.transaction():
        second.send(rows("committed 3"))


def _all_aborted(kafka: KafkaCluster, topic: str) -> None:
    producer = LibrdkafkaTransactions(kafka.bootstrap_servers, topic, "one")
    for _ in range(3):
        with producer.aborted() as aborted:
            aborted.send([Row(b"key", b"aborted", partition=0)] * 5)


def _timestamps(kafka: KafkaCluster, topic: str) -> None:
    milliseconds = (0, -1, 1, 999, 1000, _NOW_MS, 253_402_300_799_999)
    rows = [Row(value=b"%d" % each, timestamp=each * 1000, partition=0) for each in milliseconds]
    for more in ({}, {"compression_type": "gzip"}):
        write_with_aiokafka(kafka.bootstrap_servers, topic, rows, partitions=1, **more)


def _deleted_head(kafka: KafkaCluster, topic: str) -> None:
    write_with_librdkafka(kafka.bootstrap_servers, topic, mixed_rows(50, 2, now_ms=_NOW_MS))
    # In the middle of a batch.
    place = confluent_kafka.TopicPartition(topic, 1, 7)
    for deleted in kafka.admin.delete_records([place]).values():
        deleted.result()


def _some_empty_partitions(kafka: KafkaCluster, topic: str) -> None:
    rows = [Row(value=b"%d" % i, partition=(1, 3)[i % 2]) for i in range(20)]
    write_with_librdkafka(kafka.bootstrap_servers, topic, rows)


CASES = {
    # First, since the log cleaner needs some seconds.
    "compacted": Case(
        _compacted,
        config={
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.01",
        },
    ),
    "java": Case(None, PARTITIONS),
    "java transactions": Case(None, 2, is_transactional=True),
    "librdkafka": Case(_with_all_codecs(_librdkafka_codec), PARTITIONS),
    "kafka-python": Case(_with_all_codecs(_kafka_python_codec), PARTITIONS),
    "aiokafka": Case(_with_all_codecs(_aiokafka_codec), PARTITIONS),
    "headers": Case(_headers),
    "one-record batches": Case(_one_record_batches, 2),
    "5 MB record": Case(_large_record, config={"max.message.bytes": str(2 * _LARGE_BYTES)}),
    "transactions": Case(_transactions, 2, is_transactional=True),
    "all aborted": Case(_all_aborted, is_transactional=True),
    "log append time": Case(
        _with_all_codecs(_librdkafka_codec),
        PARTITIONS,
        {"message.timestamp.type": "LogAppendTime"},
    ),
    "timestamps": Case(_timestamps, config={"message.timestamp.after.max.ms": str(2**63 - 1)}),
    "deleted head": Case(_deleted_head, 2),
    "empty partitions": Case(_some_empty_partitions, 5),
    "no records": Case(lambda kafka, topic: None, 2),
}


def write_topics(kafka: KafkaCluster) -> dict[str, str]:
    """Write the topics of all cases; return their names by case.

    Their names begin with their cases', since the rows that an error shows have them.
    """
    topics = {
        name: kafka.create_topic(
            case.partitions,
            name=f"{name.replace(' ', '-')}-{uuid.uuid4().hex[:12]}",
            config={**_KEPT, **case.config},
        )
        for name, case in CASES.items()
    }
    for name, case in CASES.items():
        if case.write is not None:
            case.write(kafka, topics[name])
    by_java = (topic for name, topic in topics.items() if CASES[name].write is None)
    run_java_tool(str(_JAVA), kafka.bootstrap_servers, *by_java)
    _wait_for_gaps(kafka, topics["compacted"])
    return topics
