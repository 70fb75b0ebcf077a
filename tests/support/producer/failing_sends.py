"""A program whose sends all fail, and that reports how large that leaves its process.

`python -m tests.support.producer.failing_sends HOW BOOTSTRAP_SERVERS COUNT` makes that many sends
with one producer, in rounds, and prints, as JSON, how many sends it checked, how many of those had
failed, and the resident set size in bytes before the first round and after each one. Before the
first measurement, the producer has failed to send records of twice its `buffer.memory`, so that all
code is loaded. Memory that the C library retains is returned to the system before each measurement.

A heap grows in steps whenever more objects live at once than before, as on a busy machine, and
stays that large. A leak makes it grow in every round.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import sys
from pathlib import Path

from spark_kafka_sink.errors import ProducerClosedError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer

TOPIC = "nowhere"
REFUSED = "refused"
TIMED_OUT = "timed-out"
CLOSED = "closed"
VALUE = bytes(range(100))
#: One future in this many sends is kept until the end, and its result is checked.
SAMPLE = 100_000
FIRST_SENDS = 600_000
ROUNDS = 4
#: A batch expires after twice the request timeout; no request is answered until then.
IMPATIENT = {"request.timeout.ms": 250, "delivery.timeout.ms": 500, "linger.ms": 5}


def _resident_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def _fail(producer: KafkaProducer, how: str, count: int) -> tuple[int, int]:
    """Send records; return how many results were checked, and how many of them were failures."""
    if how == CLOSED:
        return count, sum(_is_refused(producer) for _ in range(count))
    futures = []
    for number in range(count):
        future = producer.send(TOPIC, VALUE)
        if number % SAMPLE == 0:
            futures.append(future)
    producer.flush()
    return len(futures), sum(future.exception() is not None for future in futures)


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
    config = {"bootstrap.servers": bootstrap_servers, **(IMPATIENT if how == TIMED_OUT else {})}
    asked = failed = 0
    with KafkaProducer(config) as producer:
        if how == CLOSED:
            producer.close()
        _fail(producer, how, FIRST_SENDS)
        sizes = [_resident_bytes()]
        for _ in range(ROUNDS):
            checked, failures = _fail(producer, how, int(count) // ROUNDS)
            asked += checked
            failed += failures
            sizes.append(_resident_bytes())
    print(json.dumps({"asked": asked, "failed": failed, "sizes": sizes}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
