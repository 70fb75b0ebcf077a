"""A soak test of a whole pipeline, Kafka to Spark to Kafka, whose processes are killed at random.

Both the source and the sink are ours, with `deliveryGuarantee=exactly_once`. The seed determines
which process is killed and when, except for how far it gets within some milliseconds: the driver
with its JVM and all of its Python processes, the Python process of a task, of the source or of the
sink, or the broker. In the end, a librdkafka consumer must read every row once, in the order of its
partition, and no transaction may be open. One of a hundred rows is bad: it must be a dead letter.
"""

from __future__ import annotations

import math
import os
import random
import signal
import tempfile
import time
from collections import Counter
from enum import Enum
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.exactly_once.exactly_once_case import ExactlyOnceCase
from tests.support.exactly_once.exactly_once_soak import KillReport
from tests.support.kafka.readers import read_with_confluent
from tests.support.kafka.real_kafka import start_kafka, wait_until
from tests.support.spark.mortal_queries import PATIENCE_SECONDS, MortalProcess
from tests.support.spark.numbered_topic import NumberedTopic
from tests.support.spark.streams import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.kafka.real_kafka import KafkaCluster

PARTITIONS = 3
ROWS_PER_BATCH = 60
#: Rows are added before each kill, so that the query always has some to copy.
ROWS_PER_KILL = 120
BAD_ROWS_EVERY = 100
_NO_PARTITION = 1_000
_LONGEST_PAUSE = 1.0
#: About the time in which a new driver finishes its first batch.
_LONGEST_START = 12.0
#: How often a process is killed before the query has finished another batch.
_HASTE = 0.3
_SAY_EVERY = 10
_MODULE = "tests.support.reading.pipeline_query"


class Victim(Enum):
    """What is killed: a process of Spark by its module, or all processes, or the broker."""

    DRIVER = "driver"
    BROKER = "broker"
    TASK = "pyspark.worker"
    SOURCE = "pyspark.sql.streaming.python_streaming_source_runner"
    SINK = "pyspark.sql.worker.python_streaming_sink_runner"


_WEIGHTS = {
    Victim.DRIVER: 2,
    Victim.BROKER: 2,
    Victim.TASK: 4,
    Victim.SOURCE: 2,
    Victim.SINK: 1,
}


def run_pipeline_soak(
    *,
    seed: int,
    kills: int | Sequence[Victim],
    version: str,
    source: str = "pykafka",
    say: Callable[[str], None] = print,
    most_minutes: float = math.inf,
    **spark: str,
) -> KillReport:
    """Copy rows until so many or these processes were killed; return a checked report.

    A number of them are chosen and killed at random; given ones are killed in turn, each as soon as
    a batch has been committed since the one before. After `most_minutes` it ends with fewer kills,
    and is checked likewise. `spark` are settings of Spark. Raises KafkaUnavailableError.
    """
    report = KillReport(seed, 0, version)
    started = time.monotonic()
    with (
        start_kafka(version) as kafka,
        tempfile.TemporaryDirectory(prefix="pipeline-") as directory,
    ):
        soak = _PipelineSoak(kafka, Path(directory), report, source, spark)
        try:
            soak.run(kills, say, until=started + most_minutes * 60)
        finally:
            soak.close()
    report.seconds = time.monotonic() - started
    return report


def victims(chance: random.Random) -> Iterator[Victim]:
    """Yield what to kill: first each kind once, so that short runs are not all of one kind."""
    first = chance.sample(list(Victim), len(Victim))
    weights = list(_WEIGHTS.values())
    return chain(first, (chance.choices(list(_WEIGHTS), weights)[0] for _ in repeat(None)))


def order_problems(numbers: Sequence[str], records: Sequence[tuple[int, str]]) -> list[str]:
    """Compare the values of each partition with the good numbers that were written to it in turn.

    `records` are partitions and values, in the order of offsets.
    """
    problems = []
    for partition in range(PARTITIONS):
        expected = [
            number
            for row, number in enumerate(numbers)
            if row % PARTITIONS == partition and not is_bad(row)
        ]
        found = [value for place, value in records if place == partition]
        lost, more = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
        if lost or more:
            problems.append(
                f"partition {partition}: lost {sorted(lost)[:5]}, too many {sorted(more)[:5]}"
            )
        elif found != expected:
            problems.append(f"partition {partition}: not in order")
    return problems


def is_bad(row: int) -> bool:
    """Return whether a row, by its number, becomes a dead letter."""
    return row % BAD_ROWS_EVERY == BAD_ROWS_EVERY - 1


class _PipelineSoak:
    """One run."""

    def __init__(
        self,
        kafka: KafkaCluster,
        directory: Path,
        report: KillReport,
        source: str,
        spark: dict[str, str],
    ) -> None:
        self._kafka = kafka
        self._directory = directory
        self._report = report
        self._spark = spark
        self._chance = random.Random(f"pipeline {report.seed}")
        self._source = NumberedTopic(
            kafka, PARTITIONS, source=source, rows_per_batch=ROWS_PER_BATCH
        )
        self._copy = kafka.create_topic(PARTITIONS)
        self._letters = kafka.create_topic(1)
        self._case = ExactlyOnceCase(kafka, [self._copy, self._letters])
        self._checkpoint = Checkpoint(directory)
        #: Created when the query shall copy the remaining rows and end.
        self._finish = directory / "finish"
        self._process: MortalProcess | None = None
        self._batches_before = 0

    def close(self) -> None:
        """End the query."""
        if self._process is not None:
            self._process.close()

    def run(
        self, kills: int | Sequence[Victim], say: Callable[[str], None], *, until: float
    ) -> None:
        """Kill processes, then copy the remaining rows and check all of them."""
        self._add_rows()
        self._start()
        if isinstance(kills, int):
            self._kill_at_random(kills, say, until=until)
        else:
            self._kill_in_turn(kills)
        self._finish.touch()
        process = self._process
        assert process is not None
        code = process.wait()
        if code != 0:
            self._report.problems.append(f"the query ended with {code}:\n{process.output[-8000:]}")
        self._report.batches = self._batches
        self._check()

    def _kill_in_turn(self, kills: Sequence[Victim]) -> None:
        for victim in kills:
            self._wait_for_batches(1)
            wait_until(partial(self._kill, victim), seconds=PATIENCE_SECONDS, what=f"a {victim}")
            self._report.kills[victim.name.lower()] += 1
            self._add_rows()
        # One of them may have been in progress. The query has been restarted before the other.
        self._wait_for_batches(2)

    def _kill_at_random(self, kills: int, say: Callable[[str], None], *, until: float) -> None:
        for victim in victims(self._chance):
            if self._report.kills.total() >= kills or time.monotonic() > until:
                break
            is_hasty = self._chance.random() < _HASTE
            if not is_hasty:
                self._wait_for_batches(1)
            pause = _LONGEST_START if is_hasty else _LONGEST_PAUSE
            time.sleep(self._chance.uniform(0, pause))
            if self._kill(victim):
                self._report.kills[victim.name.lower()] += 1
                if self._report.kills.total() % _SAY_EVERY == 0:
                    say(f"  {self._report.kills.total()} kills, {self._batches} batches")
            self._add_rows()

    def _add_rows(self) -> None:
        """Add rows of several batches."""
        self._batches_before = self._batches
        self._source.add(ROWS_PER_KILL)

    def _start(self) -> None:
        given = {
            "source": {**self._source.options, "kafka.isolation.level": "read_committed"},
            "sink": {
                **self._case.options,
                "topic": self._copy,
                "onError": "dlq",
                "dlqTopic": self._letters,
            },
            "bad_rows": {"every": BAD_ROWS_EVERY, "partition": _NO_PARTITION},
            "checkpoint": str(self._checkpoint.path),
            "finish": str(self._finish),
            "spark": self._spark,
        }
        self._process = MortalProcess(self._directory, _MODULE, given)

    @property
    def _batches(self) -> int:
        """The number of batches that Spark has recorded as committed."""
        commits = self._checkpoint.path / "commits"
        numbers = (int(file.name) for file in commits.glob("[0-9]*"))
        return max(numbers, default=-1) + 1

    def _wait_for_batches(self, number: int) -> None:
        """Wait until the query has committed so many batches since rows were added."""
        process = self._process
        assert process is not None

        def has_others() -> bool:
            assert not process.has_ended, process.output[-8000:]
            return self._batches >= self._batches_before + number

        try:
            wait_until(has_others, seconds=PATIENCE_SECONDS, what=f"{number} batches")
        except TimeoutError as error:
            error.add_note(process.output[-8000:])
            raise

    def _kill(self, victim: Victim) -> bool:
        """Kill a process; return whether there was one."""
        assert self._process is not None
        if victim is Victim.DRIVER:
            self._process.close()
            self._start()
        elif victim is Victim.BROKER:
            (broker,) = self._kafka.brokers
            broker.kill()
            broker.start()
            self._kafka.wait_until_ready()
        else:
            processes = self._process.python_processes().get(victim.value, [])
            if not processes:
                return False
            try:
                os.kill(self._chance.choice(processes), signal.SIGKILL)
            except ProcessLookupError:
                return False
        return True

    def _check(self) -> None:
        records = read_with_confluent(self._kafka.bootstrap_servers, self._copy)
        found = [(record.partition, (record.value or b"").decode()) for record in records]
        # Which ones are letters follows: all are in one of the topics, and once.
        self._report.letters["partition"] = len(self._source.numbers) // BAD_ROWS_EVERY
        self._report.problems += order_problems(self._source.numbers, found)
        try:
            self._case.check(self._source.numbers)
        except AssertionError as error:
            self._report.problems.append(f"rows or open transactions: {str(error)[:500]}")
