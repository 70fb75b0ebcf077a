"""Our producer from an Arrow table against other clients: lz4, acks=all, idempotent, no keys.

All write the same documents. The other clients are tuned (linger 50 ms, batches of 1 MB) and get
their values as existing objects, so that only their own work is measured. The figure of Java's
client comes from its ProducerPerformance, which excludes the start of the JVM.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import warnings
from typing import TYPE_CHECKING

import aiokafka

from benchmarks.confluent_loop import BATCH_BYTES, LINGER_MS, produce_all
from benchmarks.measuring import Trial, contest, heading, table, trial, verdict
from benchmarks.payloads import (
    BATCH_ROWS,
    RECORD_BYTES,
    documents,
    record_batch,
    repeated_documents,
)
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.record.arrow.record_columns import record_columns
from tests.support.kafka.java_tools import run_java_tool

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka as kafka_python

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.setting import Setting

PARTITIONS = 6
OURS = "ours, from Arrow"
CONFLUENT = "confluent-kafka"
JAVA = "Java ProducerPerformance"
KAFKA_PYTHON = "kafka-python"
AIOKAFKA = "aiokafka"
TARGETS = {CONFLUENT: 6.0, JAVA: 4.0}
#: Number of rows that a client writes for each row of ours: slow clients would take minutes.
SHARES = {OURS: 1.0, CONFLUENT: 0.5, JAVA: 1.0, KAFKA_PYTHON: 0.05, AIOKAFKA: 0.05}

_JAVA_RESULT = re.compile(r"records sent, ([\d.]+) records/sec")


def run(setting: Setting) -> None:
    """Measure all clients."""
    # Created and cached here, so that it does not count towards any client's time.
    record_batch(key=False)
    documents(BATCH_ROWS, RECORD_BYTES)
    clients = {
        OURS: _ours,
        CONFLUENT: _confluent,
        JAVA: _java,
        KAFKA_PYTHON: _kafka_python,
        AIOKAFKA: _aiokafka,
    }
    contestants = {name: _contestant(setting, name, client) for name, client in clients.items()}
    best = contest(contestants, rounds=setting.rounds)
    heading(
        f"Bare producers, records of {RECORD_BYTES} bytes, lz4, acks=all, idempotent, "
        f"best of {setting.rounds} rounds"
    )
    results = []
    for name, result in best.items():
        ratio = best[OURS].rate / result.rate
        target = verdict(ratio, at_least=TARGETS[name]) if name in TARGETS else ""
        cpu = f"{result.cpu_per_million:.2f}"
        results.append([name, f"{result.rate:.2f}", cpu, f"{ratio:.1f}x", target])
    table(
        ["client", "million rows/s", "CPU s per million rows", "ours / theirs", "target"], results
    )


def _contestant(
    setting: Setting, name: str, client: Callable[[str, str, Trial], None]
) -> Callable[[], Trial]:
    rows = max(BATCH_ROWS, int(setting.rows * SHARES[name]) // BATCH_ROWS * BATCH_ROWS)

    def write() -> Trial:
        topic = setting.kafka.create_topic(PARTITIONS)
        reported = Trial(rows)
        with trial(rows, exclude=setting.broker_processes) as result:
            client(setting.kafka.bootstrap_servers, topic, reported)
        result.seconds = reported.seconds or result.seconds
        setting.check_count(topic, rows)
        setting.kafka.delete_topics([topic])
        return result

    return write


def _ours(bootstrap_servers: str, topic: str, reported: Trial) -> None:
    batch = record_batch(key=False)
    config = ProducerConfig.from_mapping(
        {"bootstrap.servers": bootstrap_servers, "compression.type": "lz4"}
    )
    with KafkaProducer(config, lingers=False) as producer:
        for first_row in range(0, reported.rows, BATCH_ROWS):
            producer.append(record_columns(batch, topic=topic), first_row=first_row)


def _confluent(bootstrap_servers: str, topic: str, reported: Trial) -> None:
    produce_all(bootstrap_servers, topic, repeated_documents(reported.rows), codec="lz4")


def _java(bootstrap_servers: str, topic: str, reported: Trial) -> None:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(b"\n".join(documents(BATCH_ROWS, RECORD_BYTES)))
        file.flush()
        output = run_java_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(reported.rows), "--throughput", "-1"),
            *("--payload-file", file.name, "--producer-props"),
            f"bootstrap.servers={bootstrap_servers}",
            "compression.type=lz4",
            "acks=all",
            "enable.idempotence=true",
            f"linger.ms={LINGER_MS}",
            f"batch.size={BATCH_BYTES}",
            "buffer.memory=67108864",
        )
    rate = float(_JAVA_RESULT.findall(output)[-1])
    reported.seconds = reported.rows / rate


def _kafka_python(bootstrap_servers: str, topic: str, reported: Trial) -> None:
    producer = kafka_python.KafkaProducer(
        bootstrap_servers=bootstrap_servers,
        compression_type="lz4",
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
    )
    for value in repeated_documents(reported.rows):
        producer.send(topic, value)
    producer.flush()
    producer.close()


def _aiokafka(bootstrap_servers: str, topic: str, reported: Trial) -> None:
    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap_servers,
            compression_type="lz4",
            acks="all",
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            max_batch_size=BATCH_BYTES,
        )
        await producer.start()
        try:
            for value in repeated_documents(reported.rows):
                await producer.send(topic, value)
            await producer.flush()
        finally:
            await producer.stop()

    asyncio.run(write())
