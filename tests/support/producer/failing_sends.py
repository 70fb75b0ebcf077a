"""A program whose sends all fail, and that reports how large that leaves its process.

`python -m tests.support.producer.failing_sends HOW BOOTSTRAP_SERVERS COUNT` prints, as JSON, how
many sends it checked, how many of those had failed, and the resident set size in bytes before and
after all of them. Before the first measurement, another producer has failed to send records of
twice its `buffer.memory` and was closed, so that all code is loaded and the heap has had the size
that it has from then on. Memory that the C library retains is returned to the system before each
measurement.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import ProducerClosedError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "nowhere"
REFUSED = "refused"
TIMED_OUT = "timed-out"
CLOSED = "closed"
VALUE = bytes(range(100))
#: One future in this many sends is kept until the end, and its result is checked.
SAMPLE = 100_000
FIRST_SENDS = 600_000
#: A batch expires after twice the request timeout; no request is answered until then.
IMPATIENT = {"request.timeout.ms": 250, "delivery.timeout.ms": 500, "linger.ms": 5}


def _resident_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def _sends(producer: KafkaProducer, count: int) -> Iterator[Exception | None]:
    """Send records, and yield the errors of a sample; the other futures are dropped."""
    futures = []
    for number in range(count):
        future = producer.send(TOPIC, VALUE)
        if number % SAMPLE == 0:
            futures.append(future)
    producer.flush()
    for future in futures:
        yield future.exception()


def _fail(how: str, bootstrap_servers: str, count: int) -> tuple[int, int]:
    """Send records; return how many results were checked, and how many of them were failures."""
    config = {"bootstrap.servers": bootstrap_servers, **(IMPATIENT if how == TIMED_OUT else {})}
    with KafkaProducer(config) as producer:
        if how == CLOSED:
            producer.close()
            return count, sum(_is_refused(producer) for _ in range(count))
        ends = list(_sends(producer, count))
    return len(ends), sum(isinstance(end, Exception) for end in ends)


def _is_refused(producer: KafkaProducer) -> bool:
    try:
        producer.send(TOPIC, VALUE)
    except ProducerClosedError:
        return True
    return False


def main(how: str, bootstrap_servers: str, count: str) -> None:
    """Send a few records, then very many."""
    # A log line for each batch would add up to gigabytes.
    logging.disable(logging.CRITICAL)
    _fail(how, bootstrap_servers, FIRST_SENDS)
    before = _resident_bytes()
    asked, failed = _fail(how, bootstrap_servers, int(count))
    after = _resident_bytes()
    print(json.dumps({"asked": asked, "failed": failed, "before": before, "after": after}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
