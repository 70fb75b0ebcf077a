"""The pace of a write: the bucket that tasks share, and their pauses, in simulated time."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.sink_options import PaceOptions, SinkOptions
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import ConfigError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.spark.sink import pacing
from spark_kafka_sink.spark.sink.pacing import (
    SPARE,
    Limits,
    Pace,
    PaceFile,
    Pacer,
    executors_of,
    pacer_of,
)
from spark_kafka_sink.spark.sink.partition_writer import write_rows
from spark_kafka_sink.spark.sink.writers import KafkaBatchWriter
from tests.support.spark.paced_tasks import MemoryPace, SimulatedTask, simulate
from tests.support.spark.task_producers import ProducerOfTask

ROW_BYTES = 112


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self):
        self.now = 1000.0
        self.slept = []

    def __call__(self):
        """Return the time."""
        return self.now

    def sleep(self, seconds):
        """Move the time."""
        self.slept.append(round(seconds, 6))
        self.now += seconds


def pacer_with(limits, shared=None, clock=None, **options):
    clock = clock or Clock()
    return Pacer(limits, shared or MemoryPace(), clock=clock, sleep=clock.sleep, **options)


def rates(limits, sent, begin):
    """Return the rates of ten seconds, as shares of the limits that there are."""
    window = [each for each in sent if begin <= each.at < begin + 10]
    shares = []
    if limits.bytes is not None:
        shares.append(sum(each.bytes for each in window) / 10 / limits.bytes)
    if limits.rows is not None:
        shares.append(sum(each.rows for each in window) / 10 / limits.rows)
    return shares


@pytest.mark.parametrize("count", [1, 2, 5, 20, 50])
@pytest.mark.parametrize("ratio", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("takes", [0.0, 0.02, 0.09])
@pytest.mark.parametrize(
    "limits", [Limits(None, 1e6), Limits(1000.0, None), Limits(1000.0, 1e6)], ids=repr
)
def test_the_rate_is_within_five_percent_over_ten_seconds(limits, count, ratio, takes):
    """The stricter limit is met by any number of tasks, from the first second on and later."""
    rows = limits.rows_of_part(ROW_BYTES, ratio)
    task = SimulatedTask(rows, rows * ROW_BYTES, ratio, takes)
    sent = simulate(limits, [task] * count, 30.0)
    for begin in (0.0, 7.3, 20.0):
        assert pytest.approx(1.0, abs=0.05) == max(rates(limits, sent, begin))


@given(
    st.lists(
        st.builds(
            SimulatedTask,
            rows=st.integers(1, 50),
            size=st.integers(1, 50_000),
            ratio=st.floats(0.05, 1.5),
            takes=st.floats(0.001, 2.0),
            starts_at=st.floats(0.0, 5.0),
        ),
        min_size=1,
        max_size=8,
    ),
    st.floats(0.0, 20.0),
)
def test_tasks_of_any_kind_never_send_more_rows_than_the_rate(tasks, begin):
    """Within any ten seconds there are at most those of the rate, the spare, and begun parts."""
    limits = Limits(100.0, None)
    sent = simulate(limits, tasks, 30.0)
    begun = sum(task.rows for task in tasks)
    assert 10 * limits.rows * rates(limits, sent, begin)[0] <= limits.rows * (10 + SPARE) + begun


def test_rows_are_due_one_after_another():
    """A place is due when the rows before it have had their time."""
    limits = Limits(10.0, None)
    pace = Pace.begun(5.0)
    due = []
    for rows in (20, 1, 1):
        pace, place = pace.reserve(limits, rows, 100, 5.0)
        due.append(pace.due_at(limits, place))
    assert pytest.approx([5.0, 7.0, 7.1]) == due


def test_bytes_are_due_by_what_those_before_were_compressed_to():
    """The estimate follows the last settlements, and what is settled counts exactly."""
    limits = Limits(None, 100.0)
    pace, _ = Pace.begun(0.0).reserve(limits, 1, 1000, 0.0)
    pace, place = pace.reserve(limits, 1, 1000, 0.0)
    pace, last = pace.reserve(limits, 1, 1000, 0.0)
    assert (10.0, 20.0) == (pace.due_at(limits, place), pace.due_at(limits, last))
    pace = pace.settle(limits, 1000, 200)
    due = [pace.due_at(limits, each) for each in (place, last)]
    assert pytest.approx([2.0, 4.0]) == due
    pace = pace.settle(limits, 1000, 400)
    assert pytest.approx(6.0) == pace.due_at(limits, last)
    assert pytest.approx(0.3) == pace.ratio


def test_time_without_rows_is_not_made_up_for():
    """After a long pause of its input, a task sends no burst: a fraction of a second's worth."""
    for limits in (Limits(10.0, None), Limits(None, 1000.0)):
        pace, _ = Pace.begun(0.0).reserve(limits, 10, 1000, 0.0)
        pace = pace.settle(limits, 1000, 1000)
        due = []
        for _ in range(3):
            pace, place = pace.reserve(limits, 1, 100, 60.0)
            due.append(pace.due_at(limits, place))
        assert pytest.approx([59.8, 59.9, 60.0]) == due


def test_rows_are_taken_in_parts_of_a_tenth_of_a_second():
    """A part has at least one row; the stricter limit decides."""
    assert 50 == Limits(500.0, None).rows_of_part(100, 1.0)
    assert 10 == Limits(None, 10_000.0).rows_of_part(100, 1.0)
    assert 40 == Limits(500.0, 10_000.0).rows_of_part(100, 0.25)
    assert 1 == Limits(1.0, 1.0).rows_of_part(100, 1.0)
    assert 10_000 < Limits(None, 1.0).rows_of_part(100, 0.0)


def test_a_task_flushes_before_it_pauses():
    """What it has appended is sent by then, so that no timeout of a record passes in a pause."""
    clock = Clock()
    pacer = pacer_with(Limits(100.0, None), clock=clock)
    story = []

    def pause(seconds):
        story.append("pause")
        clock.sleep(seconds)

    def flush():
        story.append("flush")
        return 0

    pacer._sleep = pause
    parts = pacer.parts(pa.record_batch({"value": [b"a"] * 45}), flush)
    story.extend(part.num_rows for part in parts)
    assert [1, "flush", 10, "flush", "pause", 10, 10, "flush", "pause", 10, 4] == story
    assert pytest.approx(0.31) == pacer.waited_seconds


def test_a_task_sends_one_row_before_it_takes_more(tmp_path):
    """Until it is connected and its kernels are loaded, others may send what it does not."""
    clock = Clock()
    shared = MemoryPace()
    reserved = []

    def flush():
        reserved.append(shared.pace.rows_due_at - 1000.0)
        return 100

    for _ in range(2):
        parts = pacer_with(Limits(100.0, None), shared, clock).parts(
            pa.record_batch({"value": [b"a"] * 11}), flush
        )
        assert [1, 10] == [part.num_rows for part in parts]
    assert pytest.approx([0.01, 0.12]) == reserved


def test_a_pause_ends_sooner_if_rows_before_are_smaller_than_estimated():
    """A task looks at the pace that others have settled four times a second."""
    limits, shared, clock = Limits(None, 1000.0), MemoryPace(), Clock()
    other = pacer_with(limits, shared, clock)
    assert [] == list(other.pauses(1, 10_000, lambda: 0))
    pauses = pacer_with(limits, shared, clock).pauses(1, 10, lambda: 0)
    clock.sleep(next(pauses))
    other.settle(lambda: 500)
    for pause in pauses:
        clock.sleep(pause)
    assert [0.25, 0.25] == clock.slept


def test_an_estimate_of_bytes_is_settled_once_a_second_without_a_pause():
    """Otherwise rows that compress less than those before would exceed the rate unnoticed."""
    clock = Clock()
    pacer = pacer_with(Limits(None, 1e9), clock=clock)
    flushed_at = []

    def flush():
        flushed_at.append(clock())
        return 1000

    for _ in range(20):
        assert [] == list(pacer.pauses(1, 1000, flush))
        clock.now += 0.15
    assert [1000.15, 1001.2, 1002.25] == [round(at, 2) for at in flushed_at]


def test_a_task_ends_with_an_error_if_its_transaction_would_time_out():
    """It does not wait for a time at which the brokers have aborted its transaction."""
    clock = Clock()
    pacer = pacer_with(Limits(1.0, None), clock=clock, transaction_seconds=60.0)
    # The wait before the transaction begins does not count.
    list(pacer.parts(pa.record_batch({"value": [b"a"]}), lambda: 0))
    clock.now += 500
    pacer.begin()
    rows = pacer.parts(pa.record_batch({"value": [b"a"] * 100}), lambda: 0)
    with pytest.raises(
        KafkaTimeoutError, match=r"are due 61 s after .* kafka.transaction.timeout.ms is 60000: "
    ):
        list(rows)


# --- the file that tasks share


def test_tasks_share_a_file(tmp_path):
    """No reservation is lost, however many tasks change the file at a time."""
    path = tmp_path / "pace" / "name"

    def reserve(_):
        pace = PaceFile(path)
        for _ in range(50):
            pace.change(7.0, lambda pace: pace.reserve(Limits(2.0, None), 1, 3, 7.0)[0])
        pace.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(reserve, range(4)))
    last = PaceFile(path)
    assert Pace(107.0, 7.0, reserved=600) == last.read(1000.0)
    last.close()


def test_a_file_of_a_write_that_is_over_is_removed_later(tmp_path):
    """The first task of a write removes the files that no task has changed for a day."""
    old, recent = tmp_path / "old", tmp_path / "recent"
    for path in (old, recent):
        path.write_bytes(b"x")
    os.utime(old, (0, time.time() - 24 * 60 * 60 - 60))
    pace = PaceFile(tmp_path / "new")
    pace.change(0.0, lambda pace: pace)
    pace.close()
    assert [tmp_path / "new", recent] == sorted(tmp_path.iterdir())


def test_a_file_that_cannot_be_used_fails_the_task(tmp_path):
    """Without it, each task would write as fast as all should: the error names the file."""
    (tmp_path / "pace").write_text("not a directory")
    with pytest.raises(
        KafkaError, match=r"share their pace in the file .*pace/name', which cannot"
    ):
        PaceFile(tmp_path / "pace" / "name").read(0.0)


def test_an_unused_pace_opens_no_file(tmp_path):
    """A task without rows costs nothing."""
    pace = PaceFile(tmp_path / "pace" / "name")
    pace.close()
    assert [] == list(tmp_path.iterdir())


# --- among how many executors the rate is divided


@pytest.mark.parametrize(
    ("properties", "executors"),
    [
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[*]", "spark.executor.instances": "5"}, 1),
        ({"spark.master": "local-cluster[3,2,1024]"}, 3),
        ({"spark.master": "yarn"}, 2),
        ({"spark.master": "yarn", "spark.executor.instances": "5"}, 5),
        ({"spark.master": "k8s://https://host:443", "spark.executor.instances": "7"}, 7),
        ({"spark.master": "spark://host:7077"}, None),
        ({"spark.master": "spark://host:7077", "spark.executor.instances": "5"}, None),
        ({"spark.master": "spark://host:7077", "spark.cores.max": "8"}, None),
        (
            {
                "spark.master": "spark://host:7077",
                "spark.cores.max": "9",
                "spark.executor.cores": "4",
            },
            2,
        ),
        (
            {
                "spark.master": "spark://host:7077",
                "spark.cores.max": "2",
                "spark.executor.cores": "4",
            },
            1,
        ),
        ({"spark.master": "yarn", "spark.dynamicAllocation.enabled": "true"}, None),
        (
            {
                "spark.master": "yarn",
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": "20",
                "spark.executor.instances": "5",
            },
            20,
        ),
        (
            {
                "spark.master": "k8s://https://host:443",
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": str(2**31 - 1),
            },
            None,
        ),
        ({"spark.master": "yarn", "spark.executor.instances": "0"}, None),
        ({}, None),
    ],
    ids=repr,
)
def test_the_number_of_executors_follows_from_sparks_configuration(properties, executors):
    """Where Spark's configuration does not say it, it is unknown rather than guessed."""
    assert executors == executors_of(properties.get)


def test_the_rate_is_divided_among_the_executors(tmp_path, monkeypatch):
    """The option takes precedence over Spark's configuration."""
    monkeypatch.setattr(pacing, "PaceFile", lambda path: path)
    properties = {"spark.master": "yarn", "spark.executor.instances": "4"}
    environ = {"SPARK_LOCAL_DIRS": f"{tmp_path},/elsewhere"}
    made = pacer_of(PaceOptions(1000, 10), "name", properties.get, environ=environ)
    assert Limits(2.5, 250.0) == made._limits
    assert tmp_path / "spark-kafka-sink-pace" / "name" == made._shared
    by_hand = pacer_of(PaceOptions(None, 10, 5), "name", properties.get, environ=environ)
    assert Limits(2.0, None) == by_hand._limits


def test_an_unknown_number_of_executors_fails_the_task():
    """The error says which option to set."""
    with pytest.raises(ConfigError, match=r"\(spark.master is 'spark://a:1'\).*set pacedExecutors"):
        pacer_of(PaceOptions(1, None), "name", {"spark.master": "spark://a:1"}.get, environ={})


def test_a_worker_without_sparks_directories_fails_the_task():
    """Its tasks would have nothing to share."""
    with pytest.raises(KafkaError, match=r"SPARK_LOCAL_DIRS.* is not set in this worker"):
        pacer_of(PaceOptions(1, None), "name", {"spark.master": "local"}.get, environ={})


# --- writes


@pytest.fixture(scope="module")
def broker():
    with DevBroker(topics={"t": 2}) as started:
        yield started


def test_tasks_send_at_the_pace_of_the_write(broker, tmp_path, monkeypatch):
    """All that a task has appended is in the topic when it pauses; tasks follow one another."""
    config = ProducerConfig.from_mapping({"bootstrap.servers": broker.bootstrap_servers})
    clock = Clock()
    written = []
    appended = []
    in_topic = []
    append = KafkaProducer.append

    def counting_append(producer, columns, *, first_row=0):
        appended.append(columns.num_rows)
        append(producer, columns, first_row=first_row)

    monkeypatch.setattr(KafkaProducer, "append", counting_append)

    def pause(seconds):
        in_topic.append((sum(appended), broker.records("t").count))
        clock.sleep(seconds)

    for _ in range(3):
        pacer = Pacer(Limits(None, 20_000.0), PaceFile(tmp_path / "pace"), clock=clock, sleep=pause)
        rows = pa.record_batch({"value": [os.urandom(500) for _ in range(40)]})
        written.append(
            write_rows(
                [rows, rows.slice(0, 0)],
                producers=ProducerOfTask(config),
                topic="t",
                config=config,
                pacer=pacer,
            )
        )
    bytes_sent = sum(acks.bytes for task in written for _, acks in task.acks)
    assert 120 == broker.records("t").count
    assert [] == [counts for counts in in_topic if counts[0] != counts[1]]
    assert 10 < len(set(in_topic))
    assert pytest.approx(bytes_sent / 20_000.0, abs=SPARE) == clock.now - 1000.0
    assert pytest.approx(sum(clock.slept)) == sum(task.paced_seconds for task in written)
    assert [True] * 3 == [task.paced_seconds > 0.5 for task in written]


def test_a_write_without_rows_was_paced_but_did_not_pause(tmp_path):
    """It says so in the report, and opens no file."""
    written = write_rows(
        [pa.record_batch({"value": pa.array([], pa.binary())})],
        producers=None,
        topic="t",
        config=None,
        pacer=pacer_with(Limits(1.0, None), PaceFile(tmp_path / "pace")),
    )
    assert 0.0 == written.paced_seconds
    assert [] == list(tmp_path.iterdir())


def test_the_pace_is_given_up_with_the_task():
    """A task that fails leaves no file open."""
    shared = MemoryPace()

    def fail():
        yield pa.record_batch({"value": [b"a"]})
        raise ValueError("upstream")

    class Refusing:
        def take(self):
            raise KafkaError("no broker")

    for batches in (fail(), [pa.record_batch({"value": [b"a"]})]):
        with pytest.raises(KafkaError, match="no broker"):
            write_rows(
                batches,
                producers=Refusing(),
                topic="t",
                config=None,
                pacer=pacer_with(Limits(1.0, None), shared),
            )
    assert 2 == shared.closed


class Context:
    """A task's context in local mode."""

    @staticmethod
    def getLocalProperty(name):  # noqa: N802 -- Spark's name
        """Return a setting of Spark, which a task has as a property."""
        return {"spark.master": "local[2]"}.get(name)


def test_the_tasks_of_a_write_have_a_pace_of_their_own(monkeypatch):
    """Two writes at a time share none, and an exactly-once write knows its transactions' time."""
    monkeypatch.setattr(pacing, "_LOCAL_DIRECTORIES", "PATH")
    servers = {"kafka.bootstrap.servers": "localhost:9092"}
    exactly_once = {"deliveryGuarantee": "exactly_once", "transactionalIdPrefix": "p"}

    def writer(**options):
        parsed = SinkOptions.from_mapping({**servers, **options})
        return KafkaBatchWriter(parsed, topic="t", report_path=None)

    assert writer()._pacer(Context) is None
    first, second = writer(maxRecordsPerSecond="5"), writer(maxRecordsPerSecond="5", **exactly_once)
    paths = [each._pacer(Context)._shared._path for each in (first, first, second)]
    assert [True, False] == [paths[0] == paths[1], paths[0] == paths[2]]
    seconds = [each._pacer(Context)._transaction_seconds for each in (first, second)]
    assert [None, 900.0] == seconds
