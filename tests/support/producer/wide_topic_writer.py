"""A program that writes rows to every partition of a topic, and reports the memory it used.

`python -m tests.support.producer.wide_topic_writer HOW BOOTSTRAP_SERVERS TOPIC ROWS BUFFER_MEMORY`
prints, as JSON, the resident set size in bytes before most rows are written, its peak from then on,
and how many rows were acknowledged. Before the first measurement one row was written, so that all
code is loaded and the topic's metadata is available.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from tests.support.record.record_columns import columns

SEND = "send"
APPEND = "append"
CHUNK_ROWS = 10_000
VALUE = bytes(range(250))


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _write(how: str, producer: KafkaProducer, topic: str, first: int, count: int) -> None:
    """Write rows with distinct values and with keys that spread them over all partitions."""
    keys = [b"%d" % number for number in range(first, first + count)]
    values = [key + VALUE for key in keys]
    if how == SEND:
        for key, value in zip(keys, values, strict=True):
            producer.send(topic, value, key=key)
    else:
        producer.append(columns(values, keys=keys, topic=topic), first_row=first)


def main(how: str, bootstrap_servers: str, topic: str, rows: str, buffer_memory: str) -> None:
    """Write one row, then all others."""
    count = int(rows)
    config = {
        "bootstrap.servers": bootstrap_servers,
        "compression.type": "none",
        "buffer.memory": int(buffer_memory),
        "linger.ms": 1_000,
    }
    with KafkaProducer(config) as producer:
        _write(how, producer, topic, 0, 1)
        producer.flush()
        gc.collect()
        # Reset the high-water mark of the resident set.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = _status("VmRSS")
        for first in range(1, count, CHUNK_ROWS):
            _write(how, producer, topic, first, min(CHUNK_ROWS, count - first))
        producer.flush()
        acks = producer.acks()
    answer = {
        "before": before,
        "peak": _status("VmHWM"),
        "acknowledged": sum(each.records for each in acks.values()),
    }
    print(json.dumps(answer))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
