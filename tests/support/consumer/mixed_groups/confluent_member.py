"""A member of a mixed group: a process with a consumer of confluent-kafka, which SIGTERM ends.

    python -m tests.support.consumer.mixed_groups.confluent_member '{"bootstrap.servers": ...}'

The argument has the settings of the consumer, and in `test` those of this program. It commits what
it has written to its log, and nothing else; librdkafka does not tell the generation.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.support.consumer.mixed_groups.member_log import write_event, write_records

_POLL_SECONDS = 0.2
_MOST_RECORDS = 500


def run(settings: dict[str, Any], ended: threading.Event) -> None:
    """Read until `ended` is set."""
    test = settings.pop("test")
    topic, stall_after = test["topic"], test["stall_after"]
    started = time.monotonic()
    consumer = Consumer(
        {**settings, "enable.auto.commit": False, "enable.auto.offset.store": False, "log_level": 0}
    )

    #: What has to be committed, by partition.
    ends: dict[int, int] = {}

    def on(what: str) -> Any:
        def write(_: Consumer, partitions: list[TopicPartition]) -> None:
            numbers = sorted(each.partition for each in partitions)
            for number in numbers:
                ends.pop(number, None)
            write_event(what, partitions=numbers)

        return write

    consumer.subscribe([topic], on_assign=on("added"), on_revoke=on("revoked"), on_lost=on("lost"))
    while not ended.is_set():
        _read(consumer, ends)
        if stall_after < time.monotonic() - started:
            stall_after = float("inf")
            write_event("stalled")
            time.sleep(test["stall_seconds"])
        if ends:
            _commit(consumer, topic, ends)
    consumer.close()
    write_event("closed")


def _read(consumer: Consumer, ends: dict[int, int]) -> None:
    numbers: dict[int, list[int]] = {}
    for message in consumer.consume(_MOST_RECORDS, _POLL_SECONDS):
        if message.error() is None:
            numbers.setdefault(message.partition(), []).append(int(message.value()))
            ends[message.partition()] = message.offset() + 1
    for partition, found in numbers.items():
        write_records(found, partition, None)


def _commit(consumer: Consumer, topic: str, ends: dict[int, int]) -> None:
    offsets = [TopicPartition(topic, *place) for place in ends.items()]
    try:
        consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException as error:
        write_event("commit_failed", error=str(error))
    else:
        ends.clear()


def main() -> None:
    """Run a member until SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    run(json.loads(sys.argv[1]), ended)


if __name__ == "__main__":
    main()
