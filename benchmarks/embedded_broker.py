"""The embedded broker against Apache Kafka: produce and fetch rates, CPU time, memory, and start.

The client is one socket that sends prepared requests, five in flight, and reads the responses
without decoding them; offsets are checked at the end. So nearly all the measured work is that of
the broker, a separate process in both cases. Ours uses at most one core, and starts with compiled
bytecode, like an installed package.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.measuring import MILLION, heading, progress, table, verdict
from benchmarks.payloads import RECORD_BYTES, documents
from benchmarks.processes import memory_bytes, own_cpu_seconds
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.devbroker.broker_asker import Asker, produce_request
from tests.support.record.plain_batches import PlainRecord, plain_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.setting import Setting

OURS, KAFKA = "embedded", "Apache Kafka"
#: Records of 119 bytes each; the batch is a little smaller than Kafka's limit of one megabyte.
BATCH_RECORDS = 8_500
BATCHES = 200
SINGLE_BATCHES = 5_000
IN_FLIGHT = 5
STARTS = 10
MB = 1_000_000
PRODUCE, FETCH = 9, 12
_COLUMNS = (
    "produce: million records/s",
    "CPU s per million",
    "fetch: million records/s",
    "CPU s per million",
    "batches of one record/s",
)


class Figures:
    """The measurements of one broker, each from its best round."""

    def __init__(self) -> None:
        """Start without measurements."""
        self.taken = 0.0
        self.given = 0.0
        self.single = 0.0
        self.taken_cpu = self.given_cpu = float("inf")
        self.idle_bytes = self.full_bytes = float("nan")


def run(setting: Setting) -> None:
    """Measure both brokers in alternating rounds."""
    value = documents(1, RECORD_BYTES)[0]
    now_ms = int(time.time() * 1000)
    large = plain_batch([PlainRecord(value, timestamp=now_ms)] * BATCH_RECORDS)
    small = plain_batch([PlainRecord(value, timestamp=now_ms)])
    kafka_port = int(setting.kafka.bootstrap_servers.rpartition(":")[2])
    (kafka_process,) = setting.broker_processes or [0]
    figures = {OURS: Figures(), KAFKA: Figures()}
    for number in range(setting.rounds + 1):
        for name, found in figures.items():
            progress(f"round {number}/{setting.rounds}: {name}")
            # Ours has all records in memory, so each round starts a new one.
            with our_broker() if name == OURS else _given(kafka_port, kafka_process) as broker:
                _measure(*broker, found, large, small)
    progress("starting the embedded broker repeatedly")
    starts = [_time_start() for _ in range(STARTS)]
    imports = [_time_import() for _ in range(STARTS)]
    progress("")
    _print(setting, figures, len(large))
    heading("Start of the embedded broker, seconds")
    table(
        ["", "median", "best", "target"],
        [
            [
                "from process start to listening",
                *_two(starts),
                verdict(np.median(starts), at_most=0.3),
            ],
            ["a process that only imports it", *_two(imports), ""],
        ],
    )


def _print(setting: Setting, figures: dict[str, Figures], batch_bytes: int) -> None:
    records = BATCHES * BATCH_RECORDS
    heading(
        f"The embedded broker and Kafka, batches of {batch_bytes / MB:.2f} MB, not compressed, "
        f"records of {RECORD_BYTES} bytes, best of {setting.rounds} rounds"
    )
    table(
        ["broker", *_COLUMNS],
        [
            [
                name,
                f"{found.taken:.2f}",
                f"{found.taken_cpu:.2f}",
                f"{found.given:.2f}",
                f"{found.given_cpu:.2f}",
                f"{found.single:,.0f}",
            ]
            for name, found in figures.items()
        ],
    )
    ours = figures[OURS]
    print(
        f"target for produce: {verdict(ours.taken, at_least=1)}, "
        f"for fetch: {verdict(ours.given, at_least=1)}\n"
        f"memory: {ours.idle_bytes / MB:.0f} MB idle, {ours.full_bytes / MB:.0f} MB with "
        f"{records * batch_bytes / BATCH_RECORDS / MB:.0f} MB of records; "
        f"Kafka's process {figures[KAFKA].full_bytes / MB:.0f} MB"
    )


def _measure(port: int, process: int, found: Figures, large: bytes, small: bytes) -> None:
    asker = Asker(port)
    try:
        topics = [asker.topic(), asker.topic()]
        found.idle_bytes = memory_bytes(process)
        produce = asker.client.frame(produce_request(topics[0], large), PRODUCE)
        rate, cpu = _timed(process, lambda: _pipeline(asker, [produce] * BATCHES))
        _check_end(asker, topics[0], BATCHES * BATCH_RECORDS)
        found.taken = max(found.taken, rate * BATCH_RECORDS * BATCHES / MILLION)
        found.taken_cpu = min(found.taken_cpu, cpu / (BATCHES * BATCH_RECORDS) * MILLION)
        found.full_bytes = memory_bytes(process)
        fetches = [_fetch(asker, topics[0], i * BATCH_RECORDS, len(large)) for i in range(BATCHES)]
        received = 0

        def read_all() -> None:
            nonlocal received
            received = _pipeline(asker, fetches)

        rate, cpu = _timed(process, read_all)
        if received < BATCHES * len(large):
            raise RuntimeError(f"received {received} of {BATCHES * len(large)} bytes")
        found.given = max(found.given, rate * BATCH_RECORDS * BATCHES / MILLION)
        found.given_cpu = min(found.given_cpu, cpu / (BATCHES * BATCH_RECORDS) * MILLION)
        single = asker.client.frame(produce_request(topics[1], small), PRODUCE)
        rate, _ = _timed(process, lambda: _pipeline(asker, [single] * SINGLE_BATCHES))
        _check_end(asker, topics[1], SINGLE_BATCHES)
        found.single = max(found.single, rate * SINGLE_BATCHES)
    finally:
        asker.close()


def _timed(process: int, work: Callable[[], object]) -> tuple[float, float]:
    """Return 1 / duration in seconds, and the broker's CPU seconds."""
    cpu, started = own_cpu_seconds(process), time.perf_counter()
    work()
    return 1 / (time.perf_counter() - started), own_cpu_seconds(process) - cpu


def _pipeline(asker: Asker, frames: list[bytes]) -> int:
    """Send requests with `IN_FLIGHT` in flight; return the number of response bytes."""
    received = 0
    for number, frame in enumerate(frames):
        asker.client.send_bytes(frame)
        if number >= IN_FLIGHT - 1:
            received += len(asker.client.receive_frame())
    for _ in range(IN_FLIGHT - 1):
        received += len(asker.client.receive_frame())
    return received


def _fetch(asker: Asker, topic: str, offset: int, most_bytes: int) -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=most_bytes)
    request = FetchRequest(
        max_wait_ms=1000,
        min_bytes=1,
        topics=(FetchTopic(topic=topic, partitions=(partition,)),),
    )
    return asker.client.frame(request, FETCH)


def _check_end(asker: Asker, topic: str, records: int) -> None:
    ((_, _, end, _),) = asker.offsets((topic, 0, -1))
    if end != records:
        raise RuntimeError(f"{topic} has {end} of {records} records")


@contextmanager
def _given(port: int, process: int) -> Iterator[tuple[int, int]]:
    yield port, process


@contextmanager
def our_broker() -> Iterator[tuple[int, int]]:
    """Start the embedded broker; yield its port and process id."""
    command = [sys.executable, "-m", "spark_kafka_sink.devbroker", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=_with_bytecode()
    ) as process:
        try:
            if process.stdout is None:
                raise RuntimeError("the broker's output was not piped")
            yield int(process.stdout.readline().rpartition(":")[2]), process.pid
        finally:
            process.terminate()


@cache
def _bytecode_directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="bytecode-")


def _with_bytecode() -> dict[str, str]:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": _bytecode_directory().name}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def _time_start() -> float:
    started = time.perf_counter()
    with our_broker():
        return time.perf_counter() - started


def _time_import() -> float:
    started = time.perf_counter()
    code = "import spark_kafka_sink.devbroker.__main__"
    subprocess.run([sys.executable, "-c", code], check=True, env=_with_bytecode())
    return time.perf_counter() - started


def _two(seconds: list[float]) -> list[str]:
    return [f"{np.median(seconds):.3f}", f"{min(seconds):.3f}"]
