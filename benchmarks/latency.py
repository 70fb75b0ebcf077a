"""The latency of single records, each acknowledged before the next is sent, with linger.ms=0.

acks=all, idempotent, not compressed, one partition. The caller measures the time from the send to
the acknowledgement. Each client first sends many records that are not measured, as a warm-up for
Java's compiler. The clients of Python also send to the embedded broker, a process of its own.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import aiokafka
import confluent_kafka
import numpy as np

from benchmarks.embedded_broker import our_broker
from benchmarks.measuring import heading, progress, table
from benchmarks.payloads import RECORD_BYTES
from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.admin.values import NewTopic
from spark_kafka_sink.producer.aio_kafka_producer import AIOKafkaProducer
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from tests.support.kafka.java_tools import run_java_tool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from benchmarks.setting import Setting

OURS = "ours, send().result()"
ASYNCIO = "ours, await send()"
AIOKAFKA = "aiokafka, await send_and_wait()"
CONFLUENT = "confluent-kafka"
JAVA = "Java, send().get()"
WARM_UP = 3_000
COUNT = 5_000

_SOURCE = Path(__file__).with_name("SingleSends.java")
_VALUE = bytes(RECORD_BYTES)


def run(setting: Setting) -> None:
    """Measure all clients in alternating rounds; each percentile is that of its best round."""
    ours = {ASYNCIO: _asyncio, OURS: _ours, AIOKAFKA: _aiokafka, CONFLUENT: _confluent}

    def on_kafka(client: Callable[[str, str], list[int]]) -> list[int]:
        topic = setting.kafka.create_topic()
        nanoseconds = client(setting.kafka.bootstrap_servers, topic)
        setting.check_count(topic, WARM_UP + COUNT)
        setting.kafka.delete_topics([topic])
        return nanoseconds

    _measure(setting, "Apache Kafka", {**ours, JAVA: _java}, on_kafka)
    with our_broker() as (port, _), AdminClient(_servers(f"127.0.0.1:{port}")) as admin:

        def on_embedded(client: Callable[[str, str], list[int]]) -> list[int]:
            admin.create_topics([NewTopic("latency", 1)])
            nanoseconds = client(f"127.0.0.1:{port}", "latency")
            admin.delete_topics(["latency"])
            return nanoseconds

        _measure(setting, "the embedded broker", ours, on_embedded)


def _measure(
    setting: Setting,
    broker: str,
    clients: Mapping[str, Callable[[str, str], list[int]]],
    measure: Callable[[Callable[[str, str], list[int]]], list[int]],
) -> None:
    best = {name: np.full(2, np.inf) for name in clients}
    for number in range(1, setting.rounds + 1):
        for name, client in clients.items():
            progress(f"round {number}/{setting.rounds}: {name}")
            best[name] = np.minimum(best[name], np.percentile(measure(client), [50, 99]))
    progress("")
    heading(
        f"Single sends of {RECORD_BYTES} bytes to {broker}, linger 0, acks=all, idempotent, "
        f"{COUNT:,} per round, best of {setting.rounds} rounds, milliseconds"
    )
    table(
        ["client", "p50", "p99", "await send() / theirs: p50", "send().result() / theirs: p50"],
        [
            [
                name,
                *(f"{nanoseconds / 1e6:.3f}" for nanoseconds in percentiles),
                f"{best[ASYNCIO][0] / percentiles[0]:.2f}x",
                f"{best[OURS][0] / percentiles[0]:.2f}x",
            ]
            for name, percentiles in best.items()
        ],
    )


def _timed(send_one: Callable[[], object]) -> list[int]:
    """Return the time of each call after the first `WARM_UP`, in nanoseconds."""
    for _ in range(WARM_UP):
        send_one()
    times = [0] * COUNT
    for number in range(COUNT):
        started = time.perf_counter_ns()
        send_one()
        times[number] = time.perf_counter_ns() - started
    return times


async def _timed_on_loop(send_one: Callable[[], Awaitable[object]]) -> list[int]:
    for _ in range(WARM_UP):
        await send_one()
    times = [0] * COUNT
    for number in range(COUNT):
        started = time.perf_counter_ns()
        await send_one()
        times[number] = time.perf_counter_ns() - started
    return times


def _servers(bootstrap_servers: str) -> dict[str, object]:
    return {"bootstrap.servers": bootstrap_servers}


def _asyncio(bootstrap_servers: str, topic: str) -> list[int]:
    settings = {**_servers(bootstrap_servers), "compression.type": "none", "linger.ms": 0}

    async def main() -> list[int]:
        async with AIOKafkaProducer(settings) as producer:
            return await _timed_on_loop(lambda: producer.send(topic, _VALUE))

    return asyncio.run(main())


def _aiokafka(bootstrap_servers: str, topic: str) -> list[int]:
    async def main() -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap_servers, enable_idempotence=True, linger_ms=0
        )
        await producer.start()
        try:
            return await _timed_on_loop(lambda: producer.send_and_wait(topic, _VALUE))
        finally:
            await producer.stop()

    return asyncio.run(main())


def _ours(bootstrap_servers: str, topic: str) -> list[int]:
    config = {
        "bootstrap.servers": bootstrap_servers,
        "compression.type": "none",
        "linger.ms": 0,
    }
    with KafkaProducer(config) as producer:
        return _timed(lambda: producer.send(topic, _VALUE).result())


def _confluent(bootstrap_servers: str, topic: str) -> list[int]:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 0}
    )
    answers: list[confluent_kafka.KafkaError | None] = []

    def on_delivery(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        answers.append(error)

    def send_one() -> None:
        answers.clear()
        producer.produce(topic, _VALUE, on_delivery=on_delivery)
        while not answers:
            producer.poll(1)
        if answers[0] is not None:
            raise RuntimeError(f"confluent-kafka could not deliver: {answers[0]}")

    return _timed(send_one)


def _java(bootstrap_servers: str, topic: str) -> list[int]:
    output = run_java_tool(
        str(_SOURCE), bootstrap_servers, topic, str(WARM_UP), str(COUNT), str(RECORD_BYTES)
    )
    return [int(line) for line in output.split() if line.isdecimal()]
