"""Drivers and workers as child processes that can be killed at a named point.

A child is forked from a server that has imported all modules, as Spark's daemon forks its workers.
It receives one command at a time over a pipe. At each named point of the protocol (in a driver) or
step of a task (in a worker) it stops, reports the point, and waits for the parent's go-ahead. It
never exits by itself while its parent lives.

A worker writes as the sink's tasks do, and one of a hundred rows is bad: it has a partition that
does not exist, or is so old that its broker refuses it, which only the broker knows. It becomes a
dead letter in the transaction of its task.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import time
from functools import cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.sink_options import ErrorLimit, OnErrorOptions
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.two_phase_commit import TwoPhaseCommit
from spark_kafka_sink.spark.sink.dead_letters import BadRowWriter, RowOrigin
from spark_kafka_sink.spark.sink.exactly_once_write import ProducerOfAttempt
from spark_kafka_sink.spark.sink.partition_writer import write_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.connection import Connection

    from spark_kafka_sink.exactly_once.plan import Plan, Prepared
    from spark_kafka_sink.exactly_once.two_phase_commit import Point
    from spark_kafka_sink.producer.kafka_producer import KafkaProducer

#: The restart of a broker on a busy machine may delay a step.
_SECONDS = 180.0
_ANSWER_SECONDS = 240.0
_GO = "go"
#: The steps of a task; drivers have points instead.
BEGUN, FLUSHED = "begun", "flushed"
_MANY_ROWS = 500
#: The rows of a task that become dead letters: 1 %.
BAD_ROWS = slice(99, None, 100)
_LOST_ROWS = slice(99, None, 200)
_OLD_ROWS = slice(199, None, 200)
#: What these rows lack, as headers of dead letters name it.
BAD_KINDS = ("partition", "timestamp")
#: How old a row of the data topic may be, in milliseconds.
MOST_AGE = 86_400_000
_NO_PARTITION = 1_000
_TRANSACTION_TIMEOUT_MS = 600_000


def letters_of(topic: str) -> str:
    """Return the topic of the dead letters of a topic's rows."""
    return f"{topic}-letters"


class At(NamedTuple):
    """The report of a child that has stopped at a point."""

    point: Point | str


class Done(NamedTuple):
    """The result of a command."""

    result: Any


class Failed(NamedTuple):
    """The error of a command that failed."""

    error: str


class Child:
    """The parent's handle of a child process; a context manager that kills the process on exit."""

    def __init__(self, role: str, *settings: str) -> None:
        """Start a `driver(bootstrap, ledger, prefix)`, or a `worker(bootstrap, topic, prefix)`."""
        self._connection, theirs = _context().Pipe()
        self._process = _context().Process(
            target=_serve, args=(theirs, role, settings), name=role, daemon=True
        )
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        """Return the child itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process if it has not been killed."""
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL, and check that it ended the process."""
        self._process.kill()
        self._process.join(_SECONDS)
        assert self._process.exitcode == -signal.SIGKILL
        self._connection.close()

    def begin(self, command: str, *arguments: Any) -> None:
        """Start a command without waiting for it."""
        self._connection.send((command, arguments))

    def run_to(self, point: Point | str) -> None:
        """Run the command until the child stops at a point."""
        while (message := self.next()) != At(point):
            assert isinstance(message, At), message
            self.go()

    def go(self) -> None:
        """Resume the child from where it stopped."""
        self._connection.send(_GO)

    def finish(self) -> Any:
        """Run the command to its end; return its result."""
        while isinstance(message := self.next(), At):
            self.go()
        assert isinstance(message, Done), message
        return message.result

    def call(self, command: str, *arguments: Any) -> Any:
        """Run a command from its beginning to its end; return its result."""
        self.begin(command, *arguments)
        return self.finish()

    def next(self) -> At | Done | Failed:
        """Wait for the child's next report."""
        assert self._connection.poll(_ANSWER_SECONDS), "the child says nothing"
        message = self._connection.recv()
        assert isinstance(message, At | Done | Failed)
        return message


@cache
def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


class Workers:
    """A stand-in for `exactly_once_world.Worker` that runs the tasks in a child process."""

    def __init__(self, child: Child, rows_of: Callable[[int, str], list[list[str]]]) -> None:
        """Write the rows that `rows_of` returns for a batch."""
        self._child = child
        self._rows_of = rows_of

    def run(self, plan: Plan, batch_id: int = 0, name: str = "") -> list[Prepared]:
        """Write the rows of a batch, with one task for each partition."""
        return [
            self._child.call("write", plan, partition, values)
            for partition, values in enumerate(self._rows_of(batch_id, name))
        ]


# --- the child's side


def _serve(connection: Connection, role: str, settings: tuple[str, ...]) -> None:
    """Run the parent's commands until the parent has exited."""

    def stop_at(point: Point | str) -> None:
        connection.send(At(point))
        assert connection.recv() == _GO

    child = {"driver": _Driver, "worker": _Worker}[role](stop_at, *settings)
    try:
        while True:
            command, arguments = connection.recv()
            try:
                answer: Done | Failed = Done(getattr(child, command)(*arguments))
            except (EOFError, OSError):
                raise
            except Exception as error:  # noqa: BLE001  # the parent needs every error
                answer = Failed(f"{type(error).__name__}: {error}")
            connection.send(answer)
    except (EOFError, OSError):
        # Close nothing, since an open transaction must remain open.
        sys.stderr.flush()
        os._exit(1)


class _Driver:
    """The commands of a driver process."""

    def __init__(self, stop_at: Any, bootstrap_servers: str, ledger: str, prefix: str) -> None:
        admin = DriverClient(
            ProducerConfig.from_mapping(
                {"bootstrap.servers": bootstrap_servers, "retry.backoff.ms": 20}
            )
        )
        self._protocol = TwoPhaseCommit(
            admin,
            Ledger(admin, topic=ledger, prefix=prefix, clock=time.time),
            clock=time.time,
            timer=time.monotonic,
            name=f"process {os.getpid()}",
            observe=stop_at,
        )

    def plan(self, write_id: str) -> Plan:
        return self._protocol.plan(write_id, timeout=_SECONDS)

    def commit(self, plan: Plan, write_id: str, batch_id: int, prepared: list[Prepared]) -> None:
        self._protocol.commit(plan, write_id, batch_id, prepared, timeout=_SECONDS)

    def abort(self, plan: Plan, write_id: str, batch_id: int, prepared: list[Prepared]) -> bool:
        return self._protocol.abort(plan, write_id, batch_id, prepared, timeout=_SECONDS)


class _Worker:
    """The commands of a Python worker: it opens transactions and leaves them open."""

    def __init__(self, stop_at: Any, bootstrap_servers: str, topic: str, prefix: str) -> None:
        # Each attempt would log its bad rows.
        logging.disable(logging.WARNING)
        self._stop_at = stop_at
        self._topic = topic
        self._config = ProducerConfig.from_mapping(
            {"bootstrap.servers": bootstrap_servers, "batch.size": 1000}
        )

    def write(self, plan: Plan, partition: int, values: list[str]) -> Prepared:
        """Run a task attempt."""
        prepared = self._run(plan, partition, [values])
        assert prepared is not None
        self._stop_at(FLUSHED)
        return prepared

    def write_on(self, plan: Plan, partition: int) -> None:
        """Append rows in an endless loop."""
        self._run(plan, partition, repeat(["a row too much"] * _MANY_ROWS))

    def _run(self, plan: Plan, partition: int, parts: Iterable[list[str]]) -> Prepared | None:
        producers = _StoppingProducers(
            self._config, plan, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS
        )
        producers.stop_at = self._stop_at
        written = write_rows(
            (_batch(partition, values) for values in parts),
            producers=producers,
            topic=self._topic,
            config=self._config,
            bad_rows=BadRowWriter(
                OnErrorOptions(ErrorLimit(None, 1.0), letters_of(self._topic)),
                RowOrigin(partition),
                self._config,
                self._topic,
            ),
        )
        return producers.prepared(written.acks)


class _StoppingProducers(ProducerOfAttempt):
    """The producer of a task attempt, which stops when its transaction has begun."""

    stop_at: Callable[[str], None]

    def take(self) -> KafkaProducer:
        """Begin the transaction."""
        producer = super().take()
        self.stop_at(BEGUN)
        return producer


def _batch(partition: int, values: list[str]) -> pa.RecordBatch:
    partitions = np.full(len(values), partition, np.int32)
    partitions[_LOST_ROWS] = _NO_PARTITION
    timestamps = np.full(len(values), round(time.time() * 1000))
    timestamps[_OLD_ROWS] -= 2 * MOST_AGE
    return pa.record_batch(
        {
            "value": values,
            "partition": partitions,
            "timestamp": pa.array(timestamps, pa.timestamp("ms")),
        }
    )
