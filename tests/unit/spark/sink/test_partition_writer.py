from __future__ import annotations

import logging
import platform
import subprocess
import sys
import time

import pyarrow as pa
import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import (
    BrokerError,
    DeliveryError,
    KafkaError,
    KafkaTimeoutError,
    RecordError,
)
from spark_kafka_sink.metrics.snapshot import MetricsSnapshot, Summary
from spark_kafka_sink.model import PartitionAcks, TopicPartition
from spark_kafka_sink.spark.sink.partition_writer import (
    Written,
    start_producer,
    write_rows,
)
from tests.support.spark.task_producers import ProducerOfTask

CONFIG = ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9092"})


#: The producer's metrics before this write, and after it.
BEFORE = MetricsSnapshot(record_retry_total=5, batch_size=Summary(2, 900.0, 800.0))
AFTER = MetricsSnapshot(record_retry_total=7, batch_size=Summary(3, 910.0, 10.0))


class _FakeProducer:
    """A producer that acknowledges rows to partition 0 of a topic, unless scripted otherwise."""

    def __init__(self, *, lost=0, append_error=None, flush_error=None, close_error=None):
        self.lost = lost
        self.append_error = append_error
        self.flush_error = flush_error
        self.close_error = close_error
        self.calls = []
        self.config = None
        self._records = {}

    def start(self, config):
        self.config = config
        self.calls.append("start")
        return self

    def append(self, columns, *, first_row=0):
        self.calls.append(("append", first_row, columns.num_rows))
        if self.append_error is not None:
            raise self.append_error
        for index in columns.topic_index:
            topic = columns.topics[index]
            self._records[topic] = self._records.get(topic, 0) + 1

    def flush(self, timeout=None):
        self.calls.append("flush")
        if self.flush_error is not None:
            raise self.flush_error

    def take_acks(self):
        return {
            TopicPartition(topic, 0): acks_of(count - self.lost)
            for topic, count in self._records.items()
        }

    def begin_metrics_period(self):
        assert [] == self.calls[1:]
        return BEFORE

    def metrics_snapshot(self):
        assert "flush" == self.calls[-1]
        return AFTER

    def close(self, timeout=None):
        self.calls.append(("close", timeout))
        if self.close_error is not None:
            raise self.close_error


def acks_of(records):
    return PartitionAcks(first_offset=0, last_offset=records - 1, records=records, bytes=100)


def batch(*values, **columns):
    return pa.record_batch({"value": pa.array(values, pa.string()), **columns})


def write(batches, producer, topic="t", clock=lambda: 0.0):
    return write_rows(
        batches,
        producers=ProducerOfTask(CONFIG, producer.start),
        topic=topic,
        config=CONFIG,
        clock=clock,
    )


def test_all_batches_go_to_one_producer():
    """Batches are appended with their first row number, then flushed, then closed."""
    producer = _FakeProducer()
    write([batch("a", "b"), batch("c"), batch("d", "e")], producer)
    assert [
        "start",
        ("append", 0, 2),
        ("append", 2, 1),
        ("append", 3, 2),
        "flush",
        ("close", 0),
    ] == producer.calls
    assert producer.config is CONFIG


def test_the_result_has_rows_acknowledgements_and_metrics():
    """The result has the row count, the sorted acknowledgements, and this write's metrics."""
    topics = pa.array(["u", "t", "u"])
    assert Written(
        rows=3,
        acks=((TopicPartition("t", 0), acks_of(1)), (TopicPartition("u", 0), acks_of(2))),
        metrics=MetricsSnapshot(record_retry_total=2, batch_size=Summary(1, 10.0, 10.0)),
    ) == write([batch("a", "b", "c", topic=topics)], _FakeProducer(), topic=None)


def test_keys_are_sampled_if_the_driver_asks_for_it():
    """Each task has a sample of its own, although tasks share a producer; unasked it has none."""
    with DevBroker(topics={"t": 2}) as broker:
        config = ProducerConfig.from_mapping({"bootstrap.servers": broker.bootstrap_servers})
        producer = start_producer(config)

        class OneForAll:
            """A source of the same producer for all tasks."""

            take = staticmethod(lambda: producer)
            finished = failed = staticmethod(lambda _: None)

        def keys_of(keys, *, samples_keys=True):
            rows = [batch("v", key=pa.array([key])) for key in keys]
            return write_rows(
                [*rows, batch()],
                producers=OneForAll,
                topic="t",
                config=config,
                samples_keys=samples_keys,
            ).keys

        assert 2 == len(keys_of(["a", "b", "a"]))
        assert set(keys_of(["b", "c"])) & set(keys_of(["a", "b"])) == set(keys_of(["b"]))
        assert () == keys_of(["a"], samples_keys=False)
        assert () == keys_of([None])
        assert () == keys_of([])
        producer.close()


def test_the_time_of_taking_the_producer_and_of_the_last_acknowledgements_is_measured():
    """The computation of the rows, and their appending, are no part of it."""
    now = 0.0
    producer = _FakeProducer()

    def takes(seconds, call):
        def timed(*arguments, **more):
            nonlocal now
            now += seconds
            return call(*arguments, **more)

        return timed

    producer.start = takes(0.25, producer.start)
    producer.append = takes(100.0, producer.append)
    producer.flush = takes(0.5, producer.flush)
    batches = map(takes(1000.0, lambda each: each), [batch("a"), batch("b")])
    assert 0.75 == write(batches, producer, clock=lambda: now).fixed_seconds


def test_the_times_of_a_task_name_its_host():
    """All processes of a host have the same monotonic clock."""
    before = time.monotonic()
    times = Written(1, (), MetricsSnapshot(), fixed_seconds=0.5).times_since(1.0)
    assert (platform.node(), 1.0, 0.5) == (times.host, times.started_at, times.fixed_seconds)
    assert before <= times.ended_at <= time.monotonic()


@pytest.mark.parametrize("batches", [[], [batch()], [batch(), batch()]])
def test_an_empty_partition_starts_no_producer(batches):
    """Without rows there is a result, but no producer."""
    producer = _FakeProducer()
    assert Written(0, (), MetricsSnapshot()) == write(batches, producer)
    assert [] == producer.calls


def test_an_empty_batch_is_skipped():
    """An empty batch among others is not appended."""
    producer = _FakeProducer()
    assert 2 == write([batch(), batch("a"), batch(), batch("b")], producer).rows
    assert [("append", 0, 1), ("append", 1, 1)] == producer.calls[1:3]


def test_the_producers_error_is_raised_unchanged():
    """The error of an append is raised unchanged, and the producer is closed at once."""
    error = RecordError("too large", row=1, topic="t", partition=2, advice="Shrink it")
    producer = _FakeProducer(append_error=error)
    with pytest.raises(RecordError) as caught:
        write([batch("a", "b"), batch("c")], producer)
    assert error is caught.value
    assert ["start", ("append", 0, 2), ("close", 0)] == producer.calls


def test_the_error_of_a_failed_flush_is_raised_unchanged():
    """The error of the flush is raised unchanged, and the producer is closed."""
    producer = _FakeProducer(flush_error=DeliveryError("no luck"))
    with pytest.raises(DeliveryError, match=r"^no luck$"):
        write([batch("a")], producer)
    assert ("close", 0) == producer.calls[-1]


def test_an_error_while_closing_does_not_hide_the_first_error(caplog):
    """An error while closing is logged, and the error that ended the write is raised."""
    producer = _FakeProducer(
        flush_error=DeliveryError("the cause"), close_error=RuntimeError("and this")
    )
    with caplog.at_level(logging.WARNING), pytest.raises(DeliveryError, match=r"^the cause$"):
        write([batch("a")], producer)
    assert ["could not close the producer cleanly"] == caplog.messages


def test_an_error_while_closing_does_not_fail_acknowledged_rows(caplog):
    """Acknowledged rows are reported even if closing fails."""
    producer = _FakeProducer(close_error=RuntimeError("late"))
    with caplog.at_level(logging.WARNING):
        assert 1 == write([batch("a")], producer).rows
    assert ["could not close the producer cleanly"] == caplog.messages


def test_an_error_while_closing_is_logged_with_its_traceback(caplog):
    """The log has the traceback, since the error is not raised."""
    error = KafkaError("cannot close")
    write([batch("a")], _FakeProducer(close_error=error))
    [record] = caplog.records
    assert error is record.exc_info[1]


@pytest.mark.parametrize(
    ("topic", "name"),
    [("t", "UNKNOWN_TOPIC_OR_PARTITION"), (None, "LEADER_NOT_AVAILABLE"), (None, None)],
)
def test_topics_are_listed_only_if_a_row_names_a_missing_one(monkeypatch, topic, name):
    """Any other timeout is raised unchanged, without another query to brokers."""
    asked = []
    monkeypatch.setattr(
        "spark_kafka_sink.admin.cluster_check.list_topics",
        lambda config: asked.append(config) or [],
    )
    error = KafkaTimeoutError("too slow")
    error.__cause__ = None if name is None else BrokerError("no", code=3, name=name)
    rows = batch("a", topic=pa.array(["t"]))
    with pytest.raises(KafkaTimeoutError) as caught:
        write([rows], _FakeProducer(append_error=error), topic=topic)
    assert error is caught.value
    assert [] == asked


def test_the_producer_of_a_task_does_not_linger(monkeypatch):
    """Spark delivers whole batches, so lingering for more rows would only delay them."""
    monkeypatch.setattr(
        "spark_kafka_sink.producer.kafka_producer.KafkaProducer",
        lambda config, **settings: (config, settings),
    )
    assert (CONFIG, {"lingers": False}) == start_producer(CONFIG)


def test_an_error_of_the_input_closes_the_producer():
    """An error of Spark's own iterator ends the write and closes the producer."""

    def batches():
        yield batch("a")
        raise ValueError("upstream")

    producer = _FakeProducer()
    with pytest.raises(ValueError, match=r"^upstream$"):
        write(batches(), producer)
    assert ("close", 0) == producer.calls[-1]
    assert "flush" not in producer.calls


def test_a_bad_row_is_numbered_within_the_task():
    """The error numbers an invalid row from the task's first row."""
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    good = pa.array([[], None], pa.list_(header))
    bad = pa.array([[], [None]], pa.list_(header))
    producer = _FakeProducer()
    with pytest.raises(RecordError, match=r"^row 3, topic '.*': a header is null"):
        write([batch("a", "b", headers=good), batch("c", "d", headers=bad)], producer)
    assert ("close", 0) == producer.calls[-1]


def test_a_bad_first_row_starts_no_producer():
    """An invalid row in the first batch fails before a producer is started."""
    producer = _FakeProducer()
    with pytest.raises(RecordError):
        write([batch("a", timestamp=pa.array([-1], pa.timestamp("us")))], producer)
    assert [] == producer.calls


@pytest.mark.parametrize(("lost", "acknowledged"), [(1, 2), (-1, 4), (3, 0)])
def test_a_mismatch_of_rows_and_acknowledgements_is_an_error(lost, acknowledged):
    """A write fails if fewer or more records are acknowledged than it has rows."""
    producer = _FakeProducer(lost=lost)
    sentence = f"3 rows were written, but {acknowledged} records were acknowledged"
    with pytest.raises(KafkaError, match=sentence):
        write([batch("a", "b", "c")], producer)
    assert ("close", 0) == producer.calls[-1]


def test_imported_objects_are_frozen_out_of_garbage_collection():
    """A full collection after a task walks no objects of imported modules, but all of the job."""
    script = (
        "import gc\n"
        "from spark_kafka_sink.config.producer_config import ProducerConfig\n"
        "from spark_kafka_sink.spark.sink.partition_writer import start_producer\n"
        "config = ProducerConfig.from_mapping({'bootstrap.servers': 'localhost:1'})\n"
        "start_producer(config).close()\n"
        "print(gc.get_freeze_count() > 50_000 > len(gc.get_objects()))\n"
        # What a job has made since may become garbage.
        "before, made = gc.get_freeze_count(), [[] for _ in range(10_000)]\n"
        "start_producer(config).close()\n"
        "print(gc.get_freeze_count() - before < len(made))\n"
    )
    done = subprocess.run(  # noqa: S603  # our own command
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout == "True\nTrue\n"
