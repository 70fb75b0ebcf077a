"""Consumers of an embedded broker, and what they read."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from spark_kafka_sink.consumer.group.rebalance_listener import ConsumerRebalanceListener
from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.testing import AnswerError
from tests.support.consumer.reading import FAST
from tests.support.network.leaps import leap_broker

#: In seconds; more than a busy machine needs, so that only a failing test waits as long.
PATIENCE = 120.0

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord
    from spark_kafka_sink.devbroker import DevBroker
    from spark_kafka_sink.protocol.error_codes import ErrorCode

#: Longer than a test waits: what passes has not waited for it.
NEVER_MS = 2 * 1000 * int(PATIENCE)
#: Settings of members of a group that notice a rebalance soon.
GROUP = {"group.id": "g", "heartbeat.interval.ms": 50}
#: Likewise, but a leap of the broker's clock ends the session of a member that is silent.
SHORT_SESSION = {**GROUP, "session.timeout.ms": 15_000}
#: Likewise, but the group waits in vain for the end of any session.
ENDLESS_SESSION = {**GROUP, "session.timeout.ms": NEVER_MS}


@contextmanager
def consuming(broker: DevBroker, **settings: object) -> Iterator[KafkaConsumer]:
    """Yield a consumer that starts at the beginning, and close it; `_` stands for a dot."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    base = {"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest"}
    with KafkaConsumer({**base, **FAST, "fetch.max.wait.ms": 50, **given}) as consumer:
        yield consumer


def take(consumer: KafkaConsumer, count: int) -> list[ConsumerRecord]:
    """Poll until there are `count` records."""
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + PATIENCE
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records"
        for some in consumer.poll(0.1).values():
            records += some
    return records


def values(records: list[ConsumerRecord]) -> list[bytes]:
    """Return the values of records."""
    return [record.value for record in records]


def poll_until(consumer: KafkaConsumer, condition: Callable[[], object], *others: Any) -> None:
    """Poll until the condition is met, and the consumers `others` in turn."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition has not been met"
        for each in (consumer, *others):
            each.poll(0.02)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait, without a call of a consumer, until the condition is met."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition has not been met"
        time.sleep(0.005)


def refuse_and_forget(broker: DevBroker, code: ErrorCode) -> Callable[..., AnswerError]:
    """Return a hook that refuses a request of a member, whose session ends at the broker.

    A member that forgets its id joins as another one, for which the group would wait until the
    session of the first has ended.
    """

    def refuse(*_: object) -> AnswerError:
        leap_broker(broker)
        return AnswerError(code)

    return refuse


def tp(partition: int = 0, topic: str = "t") -> TopicPartition:
    """Return a partition of topic `t`."""
    return TopicPartition(topic, partition)


class Recording(ConsumerRebalanceListener):
    """A listener that records its calls, and the threads of them."""

    def __init__(self, do: Callable[[str, tuple[TopicPartition, ...]], object] | None = None):
        """Call `do` with each event and its partitions, after recording them."""
        self.calls: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.threads: set[str] = set()
        self._do = do

    def _record(self, what, partitions) -> None:
        self.calls.append((what, tuple(sorted(partitions))))
        self.threads.add(threading.current_thread().name)
        if self._do is not None:
            self._do(what, tuple(sorted(partitions)))

    def on_partitions_assigned(self, partitions) -> None:
        """Record it."""
        self._record("assigned", partitions)

    def on_partitions_revoked(self, partitions) -> None:
        """Record it."""
        self._record("revoked", partitions)

    def on_partitions_lost(self, partitions) -> None:
        """Record it."""
        self._record("lost", partitions)


class Background:
    """A consumer that polls on a thread of its own until the end of the block."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        """Poll with this consumer."""
        self._consumer = consumer
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.records: list[ConsumerRecord] = []
        self.errors: list[BaseException] = []

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                for some in self._consumer.poll(0.05).values():
                    self.records += some
        except BaseException as error:  # noqa: BLE001  checked at the end
            self.errors.append(error)

    def __enter__(self) -> Self:
        """Start to poll."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End, and check that there was no error."""
        self._ends.set()
        self._thread.join()
        assert not self.errors, self.errors
