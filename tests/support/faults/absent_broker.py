"""A broker that is down when a stream begins a micro-batch: the embedded one, or Kafka."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from tests.support.kafka.readers import read_with_confluent
from tests.support.kafka.real_kafka import wait_until
from tests.support.spark.streams import (
    Checkpoint,
    NumberedFiles,
    run_to_end,
    to_kafka,
    wait_for_batch,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tests.support.kafka.real_kafka import KafkaCluster


WRITE_TASKS = 2
#: How often all tasks are sent away; they try again after 50, 100, 200, ... milliseconds.
ROUNDS = 5
#: Much less than the ten minutes for which the tasks wait, yet enough for Spark on a busy machine.
STOP_SECONDS = 120


class AbsentBroker:
    """A stream that has written one micro-batch, and whose only broker is stopped afterwards."""

    def __init__(self, spark: SparkSession, kafka: KafkaCluster, directory: Path) -> None:
        """Write the first micro-batch, and stop the broker."""
        self._spark = spark
        self._kafka = kafka
        self.topic = kafka.create_topic(2)
        self.files = NumberedFiles(directory)
        self._checkpoint = Checkpoint(directory)
        self.files.add(10)
        run_to_end(self._writer("before"))
        [self.broker] = kafka.brokers
        self.broker.stop()
        self.files.add(10)

    def _writer(self, client_id: str):
        return to_kafka(
            self.files.read(self._spark, partitions=WRITE_TASKS),
            self._checkpoint,
            topic=self.topic,
            # A producer with another client id has to fetch metadata again.
            **{
                "kafka.bootstrap.servers": self._kafka.bootstrap_servers,
                "kafka.client.id": client_id,
                "kafka.max.block.ms": "600000",
                "kafka.delivery.timeout.ms": "600000",
            },
        )

    def start_query(self) -> StreamingQuery:
        """Restart the stream, and wait until its write tasks have tried to connect for a while."""
        query = self._writer("after").start()

        def has_tasks() -> bool:
            _raise_error_of(query)
            tracker = self._spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            # The stages before the write have one task each.
            return any(stage and stage.numTasks == WRITE_TASKS for stage in stages)

        wait_until(has_tasks, seconds=120, what="tasks of the micro-batch")
        with _Turnstile(self.broker.address) as turnstile:

            def have_tried() -> bool:
                _raise_error_of(query)
                turnstile.step()
                return turnstile.rounds >= ROUNDS

            wait_until(have_tried, seconds=120, what="connections of all tasks")
        return query

    def continues_once_the_broker_is_back(self) -> None:
        """Check that the stream waits for its broker, and then writes all rows."""
        query = self.start_query()
        self.broker.start()
        wait_for_batch(query, 1)
        query.stop()
        assert self.files.numbers == sorted(
            (record.value or b"").decode()
            for record in read_with_confluent(self._kafka.bootstrap_servers, self.topic)
        )

    def can_be_stopped_meanwhile(self) -> None:
        """Check that a query whose tasks wait for a broker stops long before they time out."""
        query = self.start_query()
        stopping = threading.Thread(target=query.stop, daemon=True)
        stopping.start()
        stopping.join(STOP_SECONDS)
        self.broker.start()
        assert not stopping.is_alive()


class _Turnstile:
    """A listener in the place of a broker, which sends clients away once all tasks have one there.

    A client that is not sent away keeps its connection, so that none counts for two.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.rounds = 0
        self._clients: list[socket.socket] = []
        self._server = socket.create_server((host, int(port)))
        self._server.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._send_away()
        self._server.close()

    def step(self) -> None:
        """Accept the clients that have come, and send them away if they are complete."""
        with suppress(BlockingIOError):
            while True:
                client, _ = self._server.accept()
                client.setblocking(False)
                self._clients.append(client)
        self._clients = [client for client in self._clients if _stays(client)]
        if len(self._clients) >= WRITE_TASKS:
            self._send_away()
            self.rounds += 1

    def _send_away(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()


def _stays(client: socket.socket) -> bool:
    """Read what a client has sent; close its connection if it has left."""
    try:
        while client.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    client.close()
    return False


def _raise_error_of(query: StreamingQuery) -> None:
    error = query.exception()
    if error is not None:
        raise error
