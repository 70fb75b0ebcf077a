"""A member of a mixed group: a process with a KafkaConsumer, which SIGTERM ends.

    python -m tests.support.consumer.mixed_groups.our_member '{"bootstrap.servers": ...}'

The argument has the settings of the consumer, and in `test` those of this program.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from itertools import groupby
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.consumer.group.rebalance_listener import ConsumerRebalanceListener
from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_sink.errors import CommitFailedError, RebalanceInProgressError, WakeupError
from tests.support.consumer.mixed_groups.member_log import write_event, write_records

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from spark_kafka_sink.model import TopicPartition

_POLL_SECONDS = 0.2


class Member(ConsumerRebalanceListener):
    """The consumer, its listener, and what it does between two polls."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Subscribe; the group is joined by `run`."""
        test = settings.pop("test")
        self._commits: str = test["commits"]
        self._reads_arrow: bool = test["arrow"]
        #: The seconds after which to stall once, and for how long.
        self._stall_after: float = test["stall_after"]
        self._stall_seconds: float = test["stall_seconds"]
        self._is_ended = False
        self._started = time.monotonic()
        self._consumer = KafkaConsumer(
            {**settings, "enable.auto.commit": self._commits == "automatic"}
        )
        self._consumer.subscribe([test["topic"]], listener=self)

    def end(self) -> None:
        """Interrupt the poll, and end; a signal handler calls it."""
        self._is_ended = True
        self._consumer.wakeup()

    def run(self) -> None:
        """Read until SIGTERM."""
        with self._consumer:
            while not self._is_ended:
                try:
                    self._read()
                    if self._stall_after < time.monotonic() - self._started:
                        self._stall_after = float("inf")
                        write_event("stalled")
                        time.sleep(self._stall_seconds)
                    self._commit()
                except WakeupError:
                    break
        write_event("closed")

    def _read(self) -> None:
        if self._reads_arrow:
            table = self._consumer.poll_arrow(_POLL_SECONDS, columns=["partition", "value"])
            rows = zip(
                *(table.column(name).to_pylist() for name in table.column_names), strict=True
            )
            read = [(partition, int(value)) for partition, value in rows]
        else:
            records = self._consumer.poll(_POLL_SECONDS).records()
            read = [(record.partition, int(record.value)) for record in records]
        for partition, rows in groupby(read, key=lambda row: row[0]):
            write_records((number for _, number in rows), partition, self._generation)

    @property
    def _generation(self) -> int:
        return self._consumer.group_metadata().generation_id

    def _commit(self) -> None:
        if self._commits == "asynchronous":
            self._consumer.commit_async()
        elif self._commits == "synchronous":
            self._try(self._consumer.commit)

    def _try(self, commit: Callable[[], None]) -> None:
        try:
            commit()
        except (CommitFailedError, RebalanceInProgressError) as error:
            write_event("commit_failed", error=str(error))

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Write what is owned now, and what of it is new."""
        write_event(
            "assigned",
            partitions=sorted(each.partition for each in self._consumer.assignment()),
            added=sorted(each.partition for each in partitions),
            generation=self._generation,
        )

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Commit, unless that is automatic, and write what is given up."""
        if self._commits != "automatic":
            self._try(self._consumer.commit)
        self._given_up("revoked", partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Write what is lost."""
        self._given_up("lost", partitions)

    def _given_up(self, what: str, partitions: Collection[TopicPartition]) -> None:
        numbers = sorted(each.partition for each in partitions)
        write_event(what, partitions=numbers, generation=self._generation)


def main() -> None:
    """Run a member until SIGTERM."""
    member = Member(json.loads(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: member.end())
    member.run()


if __name__ == "__main__":
    main()
