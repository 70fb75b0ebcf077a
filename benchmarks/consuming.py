"""Both consumers against confluent-kafka: records per second, and the time until a record is read.

Each run is a new process, `python -m benchmarks.consuming CLIENT TOPIC SERVERS ROWS`, which prints
its seconds. The records' times are measured with a producer in a process of its own that sends one
every 3 ms, with the time on the machine's clock as its value.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, TypeVar

import confluent_kafka
import numpy as np

from benchmarks.measuring import Trial, contest, heading, progress, table, verdict
from benchmarks.payloads import RECORD_BYTES
from benchmarks.setting import ROOT
from spark_kafka_sink.consumer.aio_kafka_consumer import AIOKafkaConsumer
from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.setting import Setting

ARROW = "poll_arrow"
OBJECTS = "poll"
ITERATION = "for record in consumer"
ASYNC_ARROW = "await poll_arrow"
ASYNC_ITERATION = "async for record in consumer"
CONFLUENT = "confluent-kafka, consume()"
PARTITIONS = 4
AT_ONCE = 500
#: `poll_arrow` against confluent-kafka, and `poll`.
ARROW_TARGET, OBJECTS_TARGET = 5.0, 1.0
#: `async for` against `for`.
ASYNC_TARGET = 0.8
#: Milliseconds by which the time until a record is read may exceed confluent-kafka's.
LATER_BY = 0.3
WARM_UP, COUNT = 500, 2_000
_PAUSE = 0.003
_CHUNK = 100_000


def run(setting: Setting) -> None:
    """Measure all ways of reading in alternating rounds."""
    servers = setting.kafka.bootstrap_servers
    topic = setting.kafka.create_topic(PARTITIONS)
    _fill(servers, topic, setting.rows)

    def measured(client: str) -> Trial:
        [seconds] = _in_new_process(client, topic, servers, str(setting.rows))
        return Trial(setting.rows, seconds=seconds)

    best = contest(
        {client: lambda client=client: measured(client) for client in _READERS},
        rounds=setting.rounds,
    )
    setting.kafka.delete_topics([topic])
    theirs, looped = best[CONFLUENT].rate, best[ITERATION].rate
    targets = {
        ARROW: verdict(best[ARROW].rate / theirs, at_least=ARROW_TARGET),
        OBJECTS: verdict(best[OBJECTS].rate / theirs, at_least=OBJECTS_TARGET),
        ASYNC_ITERATION: "to `for`: "
        + verdict(best[ASYNC_ITERATION].rate / looped, at_least=ASYNC_TARGET),
    }
    heading(
        f"Consumers, {setting.rows:,} records of {RECORD_BYTES} bytes, lz4, {PARTITIONS} "
        "partitions, million records/s"
    )
    table(
        ["client", "rate", "ours / theirs", "target"],
        [
            [
                client,
                f"{best[client].rate:.2f}",
                f"{best[client].rate / theirs:.2f}x",
                targets.get(client, ""),
            ]
            for client in _READERS
        ],
    )
    _measure_latency(setting)


def _measure_latency(setting: Setting) -> None:
    best = {name: np.full(2, np.inf) for name in (OBJECTS, ASYNC_ITERATION, CONFLUENT)}
    servers = setting.kafka.bootstrap_servers
    for number in range(1, setting.rounds + 1):
        for name, before in best.items():
            progress(f"round {number}/{setting.rounds}: {name}")
            topic = setting.kafka.create_topic()
            nanoseconds = _in_new_process(f"{name}, one by one", topic, servers, "0")
            setting.kafka.delete_topics([topic])
            best[name] = np.minimum(before, np.percentile(nanoseconds, [50, 99]))
    progress("")
    later = {name: (times - best[CONFLUENT])[0] / 1e6 for name, times in best.items()}
    heading(f"From the send to the return of poll, {COUNT:,} records, milliseconds")
    table(
        ["client", "p50", "p99", "p50, ours - theirs", "target"],
        [
            [
                name,
                *(f"{each / 1e6:.3f}" for each in times),
                f"{later[name]:.3f}" if name != CONFLUENT else "",
                verdict(later[name], at_most=LATER_BY) if name != CONFLUENT else "",
            ]
            for name, times in best.items()
        ],
    )


def _fill(servers: str, topic: str, rows: int) -> None:
    import pyarrow as pa  # noqa: PLC0415  not in the measured processes

    values = pa.array([b"%0*d" % (RECORD_BYTES, number) for number in range(_CHUNK)], pa.binary())
    chunk = pa.table({"value": values, "key": pa.array([b"%d" % n for n in range(_CHUNK)])})
    with KafkaProducer({"bootstrap.servers": servers, "compression.type": "lz4"}) as producer:
        for start in range(0, rows, _CHUNK):
            producer.send_arrow(chunk.slice(0, min(_CHUNK, rows - start)), topic=topic)
        producer.flush()


def _in_new_process(*arguments: str) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.consuming", *arguments]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    times: list[float] = json.loads(output.splitlines()[-1])
    return times


# --- in a process of its own


C = TypeVar("C", KafkaConsumer, AIOKafkaConsumer)


def _ours(kind: type[C], servers: str, topic: str, partitions: int) -> C:
    consumer = kind(
        {
            "bootstrap.servers": servers,
            "auto.offset.reset": "earliest",
            "max.poll.records": AT_ONCE,
        }
    )
    consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
    return consumer


def _theirs(servers: str, topic: str, partitions: int) -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "none",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 8 << 20,
            "queued.min.messages": 1_000_000,
        }
    )
    begin = confluent_kafka.OFFSET_BEGINNING
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, each, begin) for each in range(partitions)]
    )
    return consumer


def _read_arrow(servers: str, topic: str, rows: int) -> None:
    with _ours(KafkaConsumer, servers, topic, PARTITIONS) as consumer:
        while rows > 0:
            rows -= consumer.poll_arrow(10).num_rows


def _read_objects(servers: str, topic: str, rows: int) -> None:
    with _ours(KafkaConsumer, servers, topic, PARTITIONS) as consumer:
        while rows > 0:
            rows -= consumer.poll(10).count


def _iterate(servers: str, topic: str, rows: int) -> None:
    with _ours(KafkaConsumer, servers, topic, PARTITIONS) as consumer:
        for record in consumer:
            record.key, record.value, record.offset  # noqa: B018  as the others do
            rows -= 1
            if not rows:
                return


def _read_arrow_on_loop(servers: str, topic: str, rows: int) -> None:
    async def read(rows: int) -> None:
        async with _ours(AIOKafkaConsumer, servers, topic, PARTITIONS) as consumer:
            while rows > 0:
                rows -= (await consumer.poll_arrow(10)).num_rows

    asyncio.run(read(rows))


def _iterate_on_loop(servers: str, topic: str, rows: int) -> None:
    async def iterate(rows: int) -> None:
        async with _ours(AIOKafkaConsumer, servers, topic, PARTITIONS) as consumer:
            async for record in consumer:
                record.key, record.value, record.offset  # noqa: B018  as the others do
                rows -= 1
                if not rows:
                    return

    asyncio.run(iterate(rows))


def _read_messages(servers: str, topic: str, rows: int) -> None:
    consumer = _theirs(servers, topic, PARTITIONS)
    while rows > 0:
        for message in consumer.consume(AT_ONCE, 10):
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
            message.key(), message.value(), message.offset()
            rows -= 1
    consumer.close()


def _sender(topic: str, servers: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.consuming", "send", topic, servers, "0"], cwd=ROOT
    )


def _send(servers: str, topic: str, _: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 0})
    for _number in range(WARM_UP + COUNT):
        time.sleep(_PAUSE)
        producer.produce(topic, b"%d" % time.monotonic_ns())
        producer.poll(0)
    producer.flush()


def _times(poll: Callable[[], list[bytes]], topic: str, servers: str) -> list[int]:
    """Return the nanoseconds from the send of each record until it was read."""
    times: list[int] = []
    with _sender(topic, servers):
        while len(times) < WARM_UP + COUNT:
            values = poll()
            now = time.monotonic_ns()
            times += [now - int(value) for value in values]
    return times[WARM_UP:]


def _time_on_loop(servers: str, topic: str, _: int) -> list[int]:
    async def read() -> list[int]:
        times: list[int] = []
        async with _ours(AIOKafkaConsumer, servers, topic, 1) as consumer:
            with _sender(topic, servers):
                async for record in consumer:
                    times.append(time.monotonic_ns() - int(record.value))
                    if len(times) == WARM_UP + COUNT:
                        break
        return times[WARM_UP:]

    return asyncio.run(read())


def _time_objects(servers: str, topic: str, _: int) -> list[int]:
    with _ours(KafkaConsumer, servers, topic, 1) as consumer:
        return _times(
            lambda: [record.value for record in consumer.poll(10).records()], topic, servers
        )


def _time_messages(servers: str, topic: str, _: int) -> list[int]:
    consumer = _theirs(servers, topic, 1)

    def poll() -> list[bytes]:
        message = consumer.poll(10)
        return [] if message is None or message.error() else [message.value() or b"0"]

    try:
        return _times(poll, topic, servers)
    finally:
        consumer.close()


_READERS = {
    ARROW: _read_arrow,
    ASYNC_ARROW: _read_arrow_on_loop,
    OBJECTS: _read_objects,
    ITERATION: _iterate,
    ASYNC_ITERATION: _iterate_on_loop,
    CONFLUENT: _read_messages,
}


def main(client: str, topic: str, servers: str, rows: str) -> None:
    """Read a topic, twice if it is timed as a whole, and print the time or the times."""
    jobs = {
        **_READERS,
        "send": _send,
        f"{OBJECTS}, one by one": _time_objects,
        f"{ASYNC_ITERATION}, one by one": _time_on_loop,
        f"{CONFLUENT}, one by one": _time_messages,
    }
    job = jobs[client]
    if client in _READERS:
        job(servers, topic, int(rows))
    started = time.perf_counter()
    times = job(servers, topic, int(rows))
    print(json.dumps(times or [time.perf_counter() - started]))


if __name__ == "__main__":
    main(*sys.argv[1:])
