"""The requests of exactly_once, counted by the embedded broker; no time is measured.

Per task: two jobs that differ only in their number of tasks, so that requests made once per job
cancel out. Per micro-batch: our writers, called as Spark calls them, but in this process and one
task after another, so that there are no other requests and the counts do not depend on timing.

A task needs at most six requests more with exactly_once than with at_least_once, whose tasks share
a live producer. Java's producer sends the same ones:

- Two per transaction: INIT_PRODUCER_ID, so that a late EndTxn for the id's previous transaction
  cannot end this one, and END_TXN, which the driver sends.
- Four per new producer. A transaction stays open until the driver's decision, so each task of a job
  needs an id of its own, and a worker keeps the producers of a few (`KEPT_SLOTS`).
  FIND_COORDINATOR, since the id decides which broker that is. API_VERSIONS for two connections: one
  to a bootstrap address, behind which may be any broker, and one to the coordinator and leader. And
  METADATA for the brokers, before the topic is known; it is sent together with FIND_COORDINATOR and
  takes no time of its own. METADATA for the topic is what at_least_once sends as well.
"""

from __future__ import annotations

import io
import threading
from collections import Counter
from contextlib import contextmanager, redirect_stdout
from fractions import Fraction
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.measuring import heading, progress, table, verdict
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.support.spark.micro_batches import (
    PREFIX,
    TASKS,
    BatchJob,
    Query,
    process_of_its_own,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from benchmarks.setting import Setting

FEW_TASKS, MANY_TASKS = 4, 24
ROWS_OF_TASK = 100
#: Runs per median: clients sometimes retry, because of an unknown leader or a busy coordinator.
REPEATS = 5
TARGET_PER_TASK = 6
BATCHES = (2, 10, 50)
LEDGER_ENTRIES = (1, 200)
AT_LEAST_ONCE, EXACTLY_ONCE = "at_least_once", "exactly_once"
_TOPIC = "data"


def run_per_task(setting: Setting) -> None:
    """Count the requests of jobs with few tasks and with many."""
    counts: dict[str, dict[ApiKey, Fraction]] = {}
    with DevBroker(topics={_TOPIC: 1}) as broker, counted(broker) as requests:
        for guarantee in (AT_LEAST_ONCE, EXACTLY_ONCE):
            progress(f"counting the requests of tasks, {guarantee}")
            options = {
                "kafka.bootstrap.servers": broker.bootstrap_servers,
                "topic": _TOPIC,
                "deliveryGuarantee": guarantee,
                **({"transactionalIdPrefix": PREFIX} if guarantee == EXACTLY_ONCE else {}),
            }
            # Create the ledger's topic and start the workers.
            _write(setting.spark, FEW_TASKS, options)
            slopes = []
            for _ in range(REPEATS):
                found = []
                for tasks in (FEW_TASKS, MANY_TASKS):
                    requests.clear()
                    _write(setting.spark, tasks, options)
                    found.append(requests.taken())
                slopes.append(per_task(*found))
            counts[guarantee] = medians(slopes)
    progress("")
    heading(
        f"Requests per task, from jobs of {FEW_TASKS} and of {MANY_TASKS} tasks, "
        f"median of {REPEATS}"
    )
    api_keys = sorted({key for count in counts.values() for key in count})
    table(
        ["request", AT_LEAST_ONCE, EXACTLY_ONCE],
        [
            [key.name, *(f"{float(counts[name].get(key, 0)):.2f}" for name in counts)]
            for key in api_keys
        ],
    )
    more = sum(counts[EXACTLY_ONCE].values()) - sum(counts[AT_LEAST_ONCE].values())
    print(
        f"{float(more):.2f} more requests per task, {verdict(float(more), at_most=TARGET_PER_TASK)}"
    )


def run_per_batch() -> None:
    """Count the requests of early and late micro-batches, with short and long ledgers."""
    totals = {}
    for entries in LEDGER_ENTRIES:
        for batch, counts in _micro_batches(entries).items():
            totals[entries, batch] = counts
    progress("")
    heading(f"Requests per micro-batch of {TASKS} tasks, exactly_once")
    api_keys = sorted({key for counts in totals.values() for key in counts})
    table(
        ["ledger entries", "batch", "requests", *(key.name for key in api_keys)],
        [
            [
                str(entries),
                str(batch),
                str(counts.total()),
                *(str(counts[key]) for key in api_keys),
            ]
            for (entries, batch), counts in totals.items()
        ],
    )
    print(f"target: constant {'met' if are_equal(totals) else 'MISSED'}")


def per_task(few: Mapping[ApiKey, int], many: Mapping[ApiKey, int]) -> dict[ApiKey, Fraction]:
    """Return the requests per additional task, from the counts of the two jobs."""
    further = MANY_TASKS - FEW_TASKS
    slopes = {key: Fraction(many.get(key, 0) - few.get(key, 0), further) for key in {*few, *many}}
    return {key: slope for key, slope in slopes.items() if slope}


def medians(slopes: Sequence[Mapping[ApiKey, Fraction]]) -> dict[ApiKey, Fraction]:
    """Return the median for each API; a missing count is 0."""
    kinds = {key for slope in slopes for key in slope}
    return {key: median([slope.get(key, Fraction(0)) for slope in slopes]) for key in kinds}


def are_equal(counts: Mapping[tuple[int, int], Counter[ApiKey]]) -> bool:
    """Return whether all counts are equal, for each API."""
    first, *others = counts.values()
    return all(first == other for other in others)


class Requests:
    """The requests that a broker has received; counted on its thread."""

    def __init__(self) -> None:
        """Start without requests."""
        self._lock = threading.Lock()
        self._counts: Counter[ApiKey] = Counter()

    def add(self, api_key: ApiKey) -> None:
        """Count a request."""
        with self._lock:
            self._counts[api_key] += 1

    def clear(self) -> None:
        """Reset all counts."""
        with self._lock:
            self._counts.clear()

    def taken(self) -> Counter[ApiKey]:
        """Return the counts so far."""
        with self._lock:
            return self._counts.copy()


@contextmanager
def counted(broker: DevBroker) -> Iterator[Requests]:
    """Count the requests that a broker receives from now on."""
    requests = Requests()

    def hook(api_key: ApiKey) -> None:
        broker.on(api_key, lambda *_: requests.add(api_key))

    for api_key in ApiKey:
        hook(api_key)
    yield requests


def _write(spark: SparkSession, tasks: int, options: Mapping[str, str]) -> None:
    rows = spark.range(0, tasks * ROWS_OF_TASK, 1, tasks)
    df = rows.selectExpr("cast(id as string) as value")
    df.write.format("pykafka").mode("append").options(**options).save()


def _micro_batches(entries: int) -> dict[int, Counter[ApiKey]]:
    """Run micro-batches after `entries` writes in the ledger; return the counts of some."""
    found = {}
    with (
        process_of_its_own(),
        # Our writers print a line for each write.
        redirect_stdout(io.StringIO()),
        # One partition: the end of each written partition is requested, and with several, the
        # sticky partitioner decides how many those are.
        DevBroker(topics={_TOPIC: 1}, auto_create_topics=False) as broker,
    ):
        for number in range(entries):
            progress(f"ledger entry {number + 1}/{entries}")
            BatchJob(broker, writeId=f"job-{number}").run()
        query = Query(broker)
        with counted(broker) as requests:
            for batch in range(max(BATCHES) + 1):
                progress(f"micro-batch {batch}, ledger of {entries}")
                requests.clear()
                query.run_batch(batch)
                if batch in BATCHES:
                    found[batch] = requests.taken()
    return found
