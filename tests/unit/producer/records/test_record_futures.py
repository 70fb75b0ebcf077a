"""What a caller can find out about a record or a table that it has sent."""

from __future__ import annotations

import threading

import pytest

from spark_kafka_sink.errors import DeliveryError, ProducerClosedError
from spark_kafka_sink.model import UNKNOWN_OFFSET, PartitionAcks, RecordMetadata, TopicPartition
from spark_kafka_sink.producer.batch.produce_result import ProduceResult, RefusedRecord
from spark_kafka_sink.producer.records.record_futures import (
    FutureTableMetadata,
    TablePart,
    deliver,
    deliver_to_all,
)
from tests.support.producer.gatherer_harness import NOW_MS, GathererHarness, acknowledge
from tests.support.record.record_columns import columns

REFUSED = DeliveryError("refused")


@pytest.fixture
def harness() -> GathererHarness:
    return GathererHarness(**{"linger.ms": 5_000})


def _later(call, *arguments: object) -> threading.Timer:
    timer = threading.Timer(0.01, call, arguments)
    timer.start()
    return timer


# --- one record


def test_a_record_that_has_not_been_sent_is_not_done(harness):
    """A record is not delivered while staged, in an open batch, or in a closed one."""
    future = harness.stage(b"v")
    assert not future.done()
    harness.gatherer.write_staged()
    assert not future.done()
    harness.gatherer.close_batches()
    assert not future.done()
    acknowledge(harness.batches[0])
    assert future.done()


def test_a_record_cannot_be_cancelled(harness):
    """A future cannot be cancelled."""
    assert not harness.stage(b"v").cancelled()


def test_the_metadata_describe_the_record(harness):
    """Offsets count within the batch, and sizes are in bytes, -1 for null, as in RecordMetadata."""
    futures = [
        harness.stage(b"value", key=b"k", timestamp=5),
        harness.stage(None),
        harness.stage(b""),
    ]
    harness.gatherer.close_batches()
    acknowledge(harness.batches[0], 40)
    assert [
        RecordMetadata("t", 0, 40, 5, 1, 5),
        RecordMetadata("t", 0, 41, NOW_MS, -1, -1),
        RecordMetadata("t", 0, 42, NOW_MS, -1, 0),
    ] == [future.result(0) for future in futures]


def test_the_brokers_timestamp_takes_precedence(harness):
    """The acknowledgement reports the timestamp that a LogAppendTime topic sets."""
    future = harness.stage(b"v", timestamp=5)
    harness.gatherer.close_batches()
    harness.batches[0].result.complete(0, 77)
    assert 77 == future.result(0).timestamp


def test_without_acks_the_offset_is_unknown(harness):
    """With acks=0 the broker reports no offset, and none is invented."""
    futures = [harness.stage(b"a"), harness.stage(b"b")]
    harness.gatherer.close_batches()
    harness.batches[0].result.complete(UNKNOWN_OFFSET)
    assert [UNKNOWN_OFFSET] * 2 == [future.result(0).offset for future in futures]


def test_waiting_for_a_record_writes_it(harness):
    """Waiting for a record writes it at once, so that it only waits to be sent."""
    future = harness.stage(b"v")
    with pytest.raises(TimeoutError, match="not acknowledged within 0 s"):
        future.result(0)
    assert future.chunk is not None


def test_a_wait_ends_with_the_acknowledgement(harness):
    """A thread that waits for a record wakes when its batch ends."""
    future = harness.stage(b"v")
    harness.gatherer.close_batches()
    timer = _later(acknowledge, harness.batches[0], 3)
    assert 3 == future.result(120).offset
    timer.join()


def test_a_wait_continues_after_a_split(harness):
    """A wait continues with the part that holds the record after a split."""
    futures = [harness.stage(b"a"), harness.stage(b"b")]
    harness.gatherer.close_batches()
    waiting = harness.batches[0].result

    def divide() -> None:
        first, second = waiting.divide([1, 1])
        first.complete(10)
        second.complete(20)

    timer = _later(divide)
    assert 20 == futures[1].result(120).offset
    assert 10 == futures[0].result(0).offset
    timer.join()


def test_the_result_of_a_rejected_record_raises_its_error(harness):
    """`result` raises what `exception` returns."""
    future = harness.stage(b"v")
    harness.gatherer.close_batches()
    harness.batches[0].result.fail(REFUSED)
    assert REFUSED is future.exception(0)
    with pytest.raises(DeliveryError, match="refused"):
        future.result(0)


def test_only_the_rejected_record_has_the_brokers_error(harness):
    """Only the record that the broker blamed is to blame (KIP-467)."""
    futures = [harness.stage(b"a"), harness.stage(b"b")]
    harness.gatherer.close_batches()
    harness.batches[0].result.fail(REFUSED, {1: RefusedRecord("too old")})
    messages = [str(future.exception(0)) for future in futures]
    assert "other records" in messages[0]
    assert "too old" in messages[1]


def test_a_record_that_reached_no_batch_has_its_error_and_no_metadata(harness):
    """A future that failed before its record reached a batch is done."""
    future = harness.stage(b"v")
    future.fail(REFUSED)
    assert future.done()
    assert REFUSED is future.exception(0)
    with pytest.raises(DeliveryError):
        future.result()


def test_a_callback_is_called_once_at_the_end(harness):
    """`add_done_callback` calls at the end, or at once if that has passed."""
    outcomes = []
    future = harness.stage(b"v")
    future.add_done_callback(outcomes.append)
    harness.gatherer.close_batches()
    assert [] == outcomes
    acknowledge(harness.batches[0])
    assert [future] == outcomes
    future.add_done_callback(outcomes.append)
    assert [future, future] == outcomes


def test_a_callback_added_to_a_failed_record_is_called_at_once(harness):
    """A callback added to a failed future is called at once, even without a batch."""
    outcomes = []
    future = harness.stage(b"v")
    future.fail(REFUSED)
    future.add_done_callback(outcomes.append)
    future.add_done_callback(lambda _: 1 / 0)
    assert [future] == outcomes


def test_a_wait_that_could_never_end_raises_an_error(harness, monkeypatch):
    """On the network thread, or after a fork, `result` raises an error instead of hanging."""

    def refuse() -> None:
        raise ProducerClosedError("must not wait")

    future = harness.stage(b"v")
    monkeypatch.setattr(harness, "check_may_wait", refuse)
    with pytest.raises(ProducerClosedError, match="must not wait"):
        future.result()
    monkeypatch.undo()
    harness.gatherer.close_batches()
    acknowledge(harness.batches[0])
    monkeypatch.setattr(harness, "check_may_wait", refuse)
    assert 0 == future.result().offset


# --- a table


def _table(harness: GathererHarness, *parts: TablePart) -> FutureTableMetadata:
    return FutureTableMetadata(harness, parts)


def _acks(first: int, last: int, records: int, *, log_append_time: bool = False) -> PartitionAcks:
    return PartitionAcks(
        first_offset=first,
        last_offset=last,
        records=records,
        bytes=0,
        log_append_time=log_append_time,
    )


def test_a_table_is_done_when_all_its_batches_are(harness):
    """A table is done once all batches of its rows have ended."""
    results = [ProduceResult(TopicPartition("t", number)) for number in range(2)]
    future = _table(harness, *(TablePart(result, 2, 3) for result in results))
    results[0].complete(100)
    assert not future.done()
    with pytest.raises(TimeoutError, match="not every row"):
        future.result(0)
    results[1].complete(200)
    assert future.done()
    assert {
        TopicPartition("t", 0): _acks(102, 104, 3),
        TopicPartition("t", 1): _acks(202, 204, 3),
    } == future.result(0)


def test_the_offsets_of_several_batches_of_a_partition_are_combined(harness):
    """The offsets of several batches of one partition are combined."""
    place = TopicPartition("t", 0)
    results = [ProduceResult(place), ProduceResult(place)]
    future = _table(harness, TablePart(results[0], 5, 2), TablePart(results[1], 0, 4))
    results[0].complete(0)
    results[1].complete(7, 99)
    assert {place: _acks(5, 10, 6, log_append_time=True)} == future.result(0)


def test_unknown_offsets_stay_unknown(harness):
    """With acks=0 the offsets of the rows are unknown."""
    place = TopicPartition("t", 0)
    result = ProduceResult(place)
    future = _table(harness, TablePart(result, 0, 4))
    result.complete(UNKNOWN_OFFSET)
    assert {place: _acks(UNKNOWN_OFFSET, UNKNOWN_OFFSET, 4)} == future.result(0)


def test_a_table_waits_for_its_parts_of_a_split_batch(harness):
    """The table's rows are found in the parts, and other parts are not waited for."""
    place = TopicPartition("t", 0)
    result = ProduceResult(place)
    future = _table(harness, TablePart(result, 2, 3))
    parts = result.divide([1, 2, 2, 9])
    parts[1].complete(1)
    assert not future.done()
    parts[2].complete(3)
    assert future.done()
    assert {place: _acks(2, 4, 3)} == future.result(0)


def test_the_first_error_fails_the_table(harness):
    """The error is raised after every batch has ended, so that none is still pending."""
    results = [ProduceResult(TopicPartition("t", number)) for number in range(3)]
    future = _table(harness, *(TablePart(result, 0, 1) for result in results))
    results[0].complete(0)
    results[1].fail(REFUSED)
    results[2].fail(DeliveryError("another"))
    assert REFUSED is future.exception(0)
    with pytest.raises(DeliveryError, match="refused"):
        future.result(0)


def test_the_error_of_a_table_names_its_rejected_row(harness):
    """Only the errors of the table's own rows count, not of others in the batch (KIP-467)."""
    result = ProduceResult(TopicPartition("t", 0))
    future = _table(harness, TablePart(result, 3, 1))
    result.fail(REFUSED, {3: RefusedRecord("too old", row=70)})
    assert str(future.exception(0)).startswith("t-0: the broker rejected row 70: too old.")


def test_a_table_names_its_rejected_row_in_any_batch(harness):
    """The error is neither that of the first failed batch nor that of a foreign row."""
    results = [ProduceResult(TopicPartition("t", partition)) for partition in range(3)]
    future = _table(harness, *(TablePart(result, 2, 4) for result in results))
    results[0].fail(REFUSED)
    results[1].fail(REFUSED, {1: RefusedRecord("not ours", row=7), 9: RefusedRecord("nor this")})
    results[2].fail(
        REFUSED, {4: RefusedRecord("too old", row=12), 5: RefusedRecord("later", row=13)}
    )
    assert str(future.exception(0)).startswith("t-2: the broker rejected row 12: too old.")


def test_a_table_says_if_none_of_its_rows_is_to_blame(harness):
    """The error says that none of its rows is to blame."""
    result = ProduceResult(TopicPartition("t", 0))
    future = _table(harness, TablePart(result, 2, 4))
    result.fail(REFUSED, {1: RefusedRecord("not ours", row=7)})
    assert str(future.exception(0)).startswith("t-0: rows were not written because the broker")
    assert REFUSED is future.exception(0).__cause__


def test_a_table_without_rows_is_done(harness):
    """A table without rows is done at once."""
    future = _table(harness)
    assert future.done()
    assert {} == future.result(0)


def test_a_wait_for_a_table_ends_with_its_last_batch(harness):
    """A thread that waits wakes with the last batch."""
    parts = harness.gatherer.write_table(columns([b"a", b"b"]), [1], 0)
    future = FutureTableMetadata(harness, parts)
    harness.gatherer.close_batches()
    timer = _later(acknowledge, harness.batches[0], 9)
    assert {TopicPartition("t", 0): _acks(9, 10, 2)} == future.result(120)
    timer.join()


def test_a_wait_for_a_table_that_could_never_end_raises_an_error(harness, monkeypatch):
    """On the network thread, or after a fork, `result` raises an error instead."""

    def refuse() -> None:
        raise ProducerClosedError("must not wait")

    monkeypatch.setattr(harness, "check_may_wait", refuse)
    future = _table(harness, TablePart(ProduceResult(TopicPartition("t", 0)), 0, 1))
    with pytest.raises(ProducerClosedError, match="must not wait"):
        future.result()


# --- how long a wait takes


@pytest.fixture
def waits(monkeypatch) -> list[float | None]:
    """Make every wait for a batch return at once, and return the list of their timeouts."""
    noted: list[float | None] = []

    def wait(_: ProduceResult, index: int, timeout: float | None) -> bool:
        del index
        noted.append(timeout)
        return False

    monkeypatch.setattr(ProduceResult, "wait", wait)
    return noted


def _of_a_record(harness: GathererHarness):
    return harness.stage(b"v")


def _of_a_table(harness: GathererHarness):
    return FutureTableMetadata(harness, harness.gatherer.write_table(columns([b"v"]), [1], 0))


@pytest.mark.parametrize("make", [_of_a_record, _of_a_table])
def test_a_wait_that_is_woken_early_continues_until_its_deadline(harness, monkeypatch, waits, make):
    """A wait continues after a split, and ends exactly at its deadline."""
    future = make(harness)
    times = iter([100.0, 100.25, 100.5, 101.0])
    monkeypatch.setattr(harness, "monotonic", lambda: next(times))
    with pytest.raises(TimeoutError, match="within 1 s"):
        future.result(1)
    assert [0.75, 0.5] == waits


@pytest.mark.parametrize("make", [_of_a_record, _of_a_table])
def test_a_wait_after_its_deadline_does_not_start(harness, monkeypatch, waits, make):
    """A wait whose time has passed, such as in waiting for the lock, does not start."""
    future = make(harness)
    times = iter([100.0, 101.5])
    monkeypatch.setattr(harness, "monotonic", lambda: next(times))
    with pytest.raises(TimeoutError, match="within 1 s"):
        future.result(1)
    assert [] == waits


@pytest.mark.parametrize("make", [_of_a_record, _of_a_table])
def test_a_wait_without_a_timeout_has_no_deadline(harness, monkeypatch, make):
    """A wait without a timeout continues until the batch has ended."""
    future = make(harness)
    timeouts = []

    def wait(_: ProduceResult, index: int, timeout: float | None) -> bool:
        timeouts.append((index, timeout))
        if len(timeouts) == 2:
            harness.gatherer.close_batches()
            acknowledge(harness.batches[0], 7)
        return True

    monkeypatch.setattr(ProduceResult, "wait", wait)
    assert future.exception() is None
    assert [(0, None)] * 2 == timeouts


def test_a_delivery_callback_gets_each_outcome_once(harness):
    """A delivery callback receives the metadata or the error of the future."""
    outcomes = []
    futures = [harness.stage(value) for value in (b"a", b"b")]
    harness.gatherer.close_batches()
    harness.batches[0].result.fail(REFUSED, {1: RefusedRecord("too old")})
    for future in futures:
        deliver(lambda *ended: outcomes.append(ended), future)
        deliver_to_all(
            lambda *ended: outcomes.append(ended),
            lambda *ended: outcomes.append(ended),
            "t",
            future,
        )
    metadata_and_errors = [ended[:2] for ended in outcomes]
    failed = RecordMetadata("t", 0, -1, -1, -1, -1)
    assert [None, failed, None] * 2 == [metadata for metadata, _ in metadata_and_errors]
    assert [2, 3, 2] * 2 == [len(ended) for ended in outcomes]
    assert [False] * 3 + [True] * 3 == ["too old" in str(error) for _, error in metadata_and_errors]
