"""A program that sends what never arrives, and tells how large that leaves its process.

`python -m tests.support.producer.failing_sends HOW BOOTSTRAP_SERVERS COUNT` prints,
as JSON, how many sends
it asked for their end, how many of those had failed, and the bytes of the resident set before and
after all of them. Before, a first producer has failed to send some records and was closed: what has
to be loaded is loaded. What the C library keeps for later is given back before the size is taken.
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
#: Of so many sends one future is kept until the end, and asked what became of it.
SAMPLE = 100_000
FIRST_SENDS = 1_000
#: A batch expires after twice a request's time; nothing is answered in the meantime.
IMPATIENT = {"request.timeout.ms": 250, "delivery.timeout.ms": 500, "linger.ms": 5}


def _resident_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def _sends(producer: KafkaProducer, count: int) -> Iterator[Exception | None]:
    """Send, and give the ends of a sample; the others are thrown away as a careless user would."""
    futures = []
    for number in range(count):
        future = producer.send(TOPIC, VALUE)
        if number % SAMPLE == 0:
            futures.append(future)
    producer.flush()
    for future in futures:
        yield future.exception()


def _fail(how: str, bootstrap_servers: str, count: int) -> tuple[int, int]:
    """Make sends; give how many ends were looked at, and how many of them were failures."""
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
    """Send a little, then very often."""
    # A line for each batch would be gigabytes.
    logging.disable(logging.CRITICAL)
    _fail(how, bootstrap_servers, FIRST_SENDS)
    before = _resident_bytes()
    asked, failed = _fail(how, bootstrap_servers, int(count))
    after = _resident_bytes()
    print(json.dumps({"asked": asked, "failed": failed, "before": before, "after": after}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
