"""Single records become the same bytes as rows of a table, whichever fields they have."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DeliveryError, KafkaError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.batch.produce_result import ProduceResult
from spark_kafka_sink.producer.records import staged_records
from spark_kafka_sink.producer.records.record_futures import (
    FutureOfFullRecord,
    FutureRecordMetadata,
    Stretch,
)
from spark_kafka_sink.producer.records.staged_records import (
    MAX_HELD,
    MAX_SPARE,
    StagedChunk,
    StagedRecords,
)
from spark_kafka_sink.record.columns import NULL_PARTITION, NULL_SIZE
from spark_kafka_sink.record.decode import decode_records
from tests.support.record.kernel_batches import write_records

NOW_MS = 1_700_000_000_000


@pytest.fixture(params=["compiled", "portable"], scope="module", autouse=True)
def _way(request):
    """Read objects with compiled loops, and as on an interpreter that those do not support."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "portable":
            patch.setattr(staged_records, "scan_items", lambda *_: None)
            patch.setattr(staged_records, "reads_objects", lambda: False)
            patch.setattr(staged_records, "_UNHELD", staged_records._count_of_unheld())
        yield


@dataclass(frozen=True)
class _Sent:
    """A record as a caller sends it."""

    topic: str = "t"
    value: bytes | None = b"v"
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] | None = None
    partition: int | None = None
    timestamp: int | None = None

    def stage(self, staged: StagedRecords, *, callback=None) -> FutureRecordMetadata:
        """Stage the record with the smallest future that can hold it, as a send does."""
        rest = (self.headers, self.partition, self.timestamp, callback)
        future = FutureRecordMetadata() if rest == (None,) * 4 else FutureOfFullRecord()
        future.chunk = future.error = None
        if isinstance(future, FutureOfFullRecord):
            future.headers, future.partition, future.timestamp, future.callback = rest
        staged.append(future, self.topic, self.key, self.value)
        return future


def _take(*sent: _Sent, max_records: int = 1_000):
    staged = StagedRecords()
    for each in sent:
        each.stage(staged)
    return staged.take(NOW_MS, max_records)


def _values(chunk: StagedChunk) -> list[bytes | None]:
    return [record.value for record in decode_records(write_records(chunk.columns).batch())]


_BYTES = st.none() | st.binary(max_size=20) | st.sampled_from([b"", b"x" * 20_000])
_HEADERS = st.lists(st.tuples(st.text(max_size=5), _BYTES), max_size=3).map(tuple)
_SENT = st.builds(
    _Sent,
    topic=st.sampled_from(["t", "u", "ü"]),
    value=_BYTES,
    key=_BYTES,
    headers=st.none() | _HEADERS,
    partition=st.none() | st.integers(0, 2**31 - 1),
    timestamp=st.none() | st.integers(0, 2**63 - 1),
)
_PLAIN = st.builds(_Sent, value=_BYTES, key=_BYTES)


@given(st.lists(_SENT | _PLAIN, min_size=1, max_size=20) | st.lists(_PLAIN, min_size=1))
def test_every_record_is_written_as_it_was_sent(sent):
    """Records with any mix of fields are encoded unchanged and in order."""
    chunk = _take(*sent)
    columns = chunk.columns
    written = write_records(columns, now_ms=NOW_MS).batch()
    got = [
        _Sent(
            topic=columns.topics[columns.topic_index[row]],
            value=record.value,
            key=record.key,
            headers=tuple((header.key, header.value) for header in record.headers),
            partition=None if (p := int(columns.partition[row])) == NULL_PARTITION else p,
            timestamp=record.timestamp,
        )
        for row, record in enumerate(decode_records(written))
    ]
    expected = [
        _Sent(
            each.topic,
            each.value,
            each.key,
            each.headers or (),
            each.partition,
            NOW_MS if each.timestamp is None else each.timestamp,
        )
        for each in sent
    ]
    assert expected == got


@given(st.lists(_SENT, min_size=1, max_size=10))
def test_the_metadata_of_a_written_record_is_known(sent):
    """The metadata of a record, apart from its offset, is known once the record is written."""
    written = _take(*sent).written
    times = [NOW_MS if each.timestamp is None else each.timestamp for each in sent]
    assert times == written.timestamps.tolist()
    for sizes, items in (
        (written.key_sizes, [each.key for each in sent]),
        (written.value_sizes, [each.value for each in sent]),
    ):
        assert [NULL_SIZE if item is None else len(item) for item in items] == sizes.tolist()


def test_taking_from_an_empty_queue_returns_none():
    """Taking from an empty queue returns None rather than an empty chunk."""
    assert _take() is None


def test_a_chunk_has_at_most_the_requested_records():
    """The oldest records come first, and the rest stays staged."""
    staged = StagedRecords()
    futures = [_Sent(value=b"%d" % number).stage(staged) for number in range(5)]
    assert futures[:3] == list(staged.take(NOW_MS, 3).futures)
    assert futures[3:] == list(staged.take(NOW_MS, 3).futures)
    assert staged.take(NOW_MS, 3) is None


def test_restaged_records_come_first():
    """Records that could not be written keep their place in the order."""
    staged = StagedRecords()
    futures = [_Sent(value=b"%d" % number).stage(staged) for number in range(4)]
    chunk = staged.take(NOW_MS, 4)
    futures.append(_Sent(value=b"4").stage(staged))
    staged.put_back(chunk, 1)
    chunk = staged.take(NOW_MS, 10)
    assert futures[1:] == list(chunk.futures)
    assert [b"1", b"2", b"3", b"4"] == _values(chunk)


def test_the_bytes_of_large_records_count_while_staged():
    """Bytes of large records count while staged, and again when the records are put back."""
    staged = StagedRecords()
    for size in (1_000, 2_000):
        _Sent(key=b"key", value=bytes(size)).stage(staged)
        staged.weigh(size)
    assert 3_000 == staged.heavy_bytes
    chunk = staged.take(NOW_MS, 10)
    assert 0 == staged.heavy_bytes
    staged.put_back(chunk, 1)
    assert 2_003 == staged.heavy_bytes


def test_records_around_a_rejected_one_are_restaged():
    """Records around a refused one keep their order and weight, and only that one fails."""
    staged = StagedRecords()
    futures = [_Sent(value=b"%d" % number * 100).stage(staged) for number in range(4)]
    chunk = staged.take(NOW_MS, 3)
    error = KafkaError("refused")
    staged.refuse(chunk, {1: error})
    assert 200 == staged.heavy_bytes
    assert [None, error, None, None] == [future.error for future in futures]
    assert [futures[0], *futures[2:]] == list(staged.take(NOW_MS, 10).futures)


def test_records_can_be_staged_while_others_are_taken():
    """Each record is taken once, in its thread's order."""
    staged = StagedRecords()

    def stage(thread: int) -> None:
        for number in range(2_000):
            _Sent(value=b"%d %d" % (thread, number)).stage(staged)

    threads = [threading.Thread(target=stage, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    taken: list[bytes] = []
    while any(thread.is_alive() for thread in threads) or len(staged):
        chunk = staged.take(NOW_MS, 100)
        taken += _values(chunk) if chunk is not None else []
    for thread in threads:
        thread.join()
    expected = [[b"%d %d" % (thread, number) for number in range(2_000)] for thread in range(3)]
    assert expected == [[v for v in taken if v.startswith(b"%d " % t)] for t in range(3)]


# --- places of written records


def _int32s(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def _result() -> ProduceResult:
    return ProduceResult(TopicPartition("t", 0))


def test_futures_refer_to_the_batch_and_index_of_their_records():
    """A future refers to the batch that was open, and to the record's index in it."""
    chunk = _take(*[_Sent()] * 4)
    held = list(chunk.futures)
    results = [_result() for _ in range(3)]
    stretches = [Stretch(0, 2, {7: results[0], 8: results[1]}), Stretch(2, 4, {7: results[2]})]
    for stretch in stretches:
        chunk.assign_places(stretch, _int32s(8, 7, 7, 7), _int32s(3, 4, 0, 1))
    assert [(results[1], 3), (results[0], 4), (results[2], 0), (results[2], 1)] == [
        future.chunk.place(future.row) for future in chunk.futures
    ]
    assert [0, 1, 2, 3] == [future.row for future in held]


def test_futures_of_unwritten_records_get_no_place():
    """Futures of rows that were not written get no place, and failed ones keep their error."""
    chunk = _take(_Sent(), _Sent(), _Sent())
    held = list(chunk.futures)
    chunk.fail([0], DeliveryError("refused"))
    chunk.assign_places(Stretch(1, 2, {0: _result()}), _int32s(0, 0, 0), _int32s(0, 0, 0))
    assert [True, False, False] == [future.done() for future in held]
    assert [False, True, False] == [future.chunk is not None for future in held]


def _written(staged: StagedRecords, *, refused: int | None = None) -> None:
    """Write all staged records into one batch."""
    chunk = staged.take(NOW_MS, 1_000)
    count = len(chunk.futures)
    rows = np.arange(count, dtype=np.int32)
    stretches = [Stretch(0, count, {0: _result()})]
    if refused is not None:
        chunk.fail([refused], DeliveryError("refused"))
        stretches = [
            Stretch(0, refused, {0: _result()}),
            Stretch(refused + 1, count, {0: _result()}),
        ]
    for stretch in stretches:
        chunk.assign_places(stretch, np.zeros(count, np.int32), rows)
    staged.reuse(chunk)


def test_dropped_futures_are_reused():
    """A future that the caller has dropped is reset before it is reused."""
    staged = StagedRecords()
    for _ in range(3):
        _Sent().stage(staged)
    _written(staged)
    assert [(None, None)] * 3 == [(future.chunk, future.error) for future in staged.spare]
    assert 3 == len(set(staged.spare))


@pytest.mark.parametrize("rows", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_held_futures_are_not_reused(rows):
    """A future that the caller holds keeps its place and is not reused."""
    staged = StagedRecords()
    futures = [_Sent().stage(staged) for _ in range(3)]
    kept = {row: futures[row] for row in rows}
    del futures
    _written(staged)
    assert 3 - len(rows) == len(staged.spare)
    assert not set(kept.values()) & set(staged.spare)
    assert list(rows) == [future.row for future in kept.values()]
    assert all(future.chunk is not None for future in kept.values())


def test_no_future_is_reused_if_many_are_held():
    """If many futures are held, none is reused, because searching would take longer."""
    staged = StagedRecords()
    kept = [_Sent().stage(staged) for _ in range(MAX_HELD + 2)][1:]
    _written(staged)
    assert [] == staged.spare
    assert list(range(1, MAX_HELD + 2)) == [future.row for future in kept]


def test_the_future_of_a_rejected_record_is_not_reused():
    """The future of a refused record keeps its own error and is not reused."""
    staged = StagedRecords()
    for _ in range(3):
        _Sent().stage(staged)
    refused = staged.items[4]
    _written(staged, refused=1)
    assert 2 == len(staged.spare)
    assert refused not in staged.spare


def test_futures_with_callbacks_are_not_reused():
    """Futures with callbacks are not reused, because they are passed to their callbacks later."""
    staged = StagedRecords()
    _Sent().stage(staged, callback=lambda _: None)
    _Sent().stage(staged)
    _written(staged)
    assert [] == staged.spare


def test_no_futures_are_added_beyond_max_spare():
    """From MAX_SPARE spare futures on none are added, so a burst does not stay in memory."""
    staged = StagedRecords()
    staged.spare += [FutureRecordMetadata()] * MAX_SPARE
    _Sent().stage(staged)
    _written(staged)
    assert MAX_SPARE == len(staged.spare)


def test_a_record_without_a_place_raises_a_kafka_error():
    """A record without a place raises a KafkaError, which is clearer than an IndexError."""
    chunk = _take(_Sent())
    with pytest.raises(KafkaError, match="please report this"):
        chunk.written.place(0)


def test_callbacks_are_called_at_the_end_of_their_batch():
    """A callback is called once, with its own future, when the record's batch has ended."""
    outcomes = []
    staged = StagedRecords()
    futures = [
        _Sent().stage(staged, callback=outcomes.append),
        _Sent().stage(staged),
        _Sent().stage(staged, callback=outcomes.append),
    ]
    chunk = staged.take(NOW_MS, 10)
    assert chunk.has_callbacks
    result = _result()
    chunk.assign_places(Stretch(0, 3, {0: result}), _int32s(0, 0, 0), _int32s(0, 1, 2))
    assert [] == outcomes
    result.complete(0)
    assert [futures[0], futures[2]] == outcomes


def test_callbacks_of_failed_records_are_called_at_once():
    """Records that are in no batch end one by one, as soon as their error is known."""
    outcomes = []
    staged = StagedRecords()
    _Sent().stage(staged, callback=lambda _: 1 / 0)
    _Sent().stage(staged, callback=outcomes.append)
    _Sent().stage(staged)
    chunk = staged.take(NOW_MS, 10)
    refused = DeliveryError("refused")
    chunk.fail(range(3), refused)
    assert [chunk.futures[1]] == outcomes
    assert [refused] * 3 == [future.error for future in chunk.futures]


@pytest.mark.parametrize(("spare", "left"), [(MAX_SPARE - 1, MAX_SPARE), (MAX_SPARE, MAX_SPARE)])
def test_the_number_of_spare_futures_is_limited(spare, left):
    """Spare futures may exceed MAX_SPARE by a chunk's, which are kept together or not at all."""
    staged = StagedRecords()
    staged.spare += [FutureRecordMetadata()] * spare
    _Sent().stage(staged)
    _written(staged)
    assert left == len(staged.spare)


@pytest.mark.parametrize(("held", "spare"), [(MAX_HELD, 3), (MAX_HELD + 1, 0)])
def test_dropped_futures_are_reused_if_few_are_held(held, spare):
    """If a caller holds only the last futures, the others are reused."""
    staged = StagedRecords()
    kept = [_Sent().stage(staged) for _ in range(held + 3)][3:]
    _written(staged)
    assert (held, spare) == (len(kept), len(staged.spare))


def test_no_future_is_reused_without_a_gil(monkeypatch):
    """Without a GIL no future is reused, because reference counts are only hints."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert -1 == staged_records._count_of_unheld()
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True)
    assert staged_records._count_of_unheld() > 0


def test_a_row_is_found_in_its_stretch():
    """Rows before, between and behind the stretches are in no batch."""
    chunk = _take(*[_Sent()] * 9)
    results = [_result(), _result()]
    for start, stop, result in ((2, 4, results[0]), (6, 8, results[1])):
        chunk.assign_places(
            Stretch(start, stop, {5: result}), np.full(9, 5, np.int32), _int32s(*range(10, 19))
        )
    places = {2: (results[0], 12), 3: (results[0], 13), 6: (results[1], 16), 7: (results[1], 17)}
    assert places == {row: chunk.written.place(row) for row in places}
    for row in set(range(9)) - set(places):
        with pytest.raises(KafkaError, match="please report this"):
            chunk.written.place(row)


def test_futures_in_a_later_stretch_know_their_rows():
    """The row of a future counts from the beginning of its chunk."""
    staged = StagedRecords()
    kept = [_Sent().stage(staged) for _ in range(9)][7:]
    chunk = staged.take(NOW_MS, 10)
    for start, stop in ((0, 5), (5, 9)):
        chunk.assign_places(
            Stretch(start, stop, {0: _result()}), np.zeros(9, np.int32), _int32s(*range(9))
        )
    assert [7, 8] == [future.row for future in kept]


def test_an_interrupt_fails_the_unresolved_records():
    """`unresolved` lists the records from a row on, and `fail_rest` fails them all."""
    chunk = _take(*[_Sent()] * 6)
    refused, broken = DeliveryError("refused"), DeliveryError("broken off")
    held = list(chunk.futures)
    chunk.fail((2,), refused)
    chunk.assign_places(Stretch(3, 5, {0: _result()}), np.zeros(6, np.int32), np.zeros(6, np.int32))
    assert [[0, 1, 5], [1, 5], [5], []] == [chunk.unresolved(row) for row in (0, 1, 2, 6)]
    chunk.fail_rest(broken)
    assert [broken, broken, refused, None, None, broken] == [future.error for future in held]


@pytest.mark.parametrize("number", range(3))
def test_a_record_can_be_withdrawn_wherever_it_is_staged(number):
    """The record fails, its callback is called, and the others keep their order."""
    outcomes = []
    staged = StagedRecords()
    futures = [_Sent(value=b"%d" % n).stage(staged, callback=outcomes.append) for n in range(3)]
    late = DeliveryError("too late")
    assert staged.withdraw(futures[number], late)
    assert ([futures[number]], late) == (outcomes, futures[number].error)
    assert not staged.withdraw(futures[number], late)
    del futures[number]
    assert futures == list(staged.take(NOW_MS, 10).futures)
    assert not staged.withdraw(futures[0], late)


def test_records_restaged_around_a_rejected_one_come_first():
    """Records put back around a refused one stay ahead of records staged meanwhile."""
    staged = StagedRecords()
    futures = [_Sent(value=b"%d" % number).stage(staged) for number in range(3)]
    chunk = staged.take(NOW_MS, 3)
    futures += [_Sent(value=b"%d" % number).stage(staged) for number in (3, 4)]
    staged.refuse(chunk, {1: KafkaError("refused")})
    chunk = staged.take(NOW_MS, 10)
    assert [futures[0], *futures[2:]] == list(chunk.futures)
    assert [b"0", b"2", b"3", b"4"] == _values(chunk)


def test_records_stay_first_if_taking_them_fails(monkeypatch):
    """If taking records raises an error, none is lost or overtaken."""
    staged = StagedRecords()
    futures = [_Sent().stage(staged) for _ in range(4)]

    def strike(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(staged_records, "scan_items", strike)
        with pytest.raises(MemoryError):
            staged.take(NOW_MS, 2)
    assert 4 == len(staged)
    assert futures == list(staged.take(NOW_MS, 10).futures)


@pytest.mark.parametrize(("taken", "left"), [(1, 900), (2, 600), (3, 300), (4, 0)])
def test_the_bytes_of_large_records_are_divided_among_the_rest(taken, left):
    """The remaining records share the weight, because it is unknown which of them were large."""
    staged = StagedRecords()
    for _ in range(4):
        _Sent(value=bytes(300)).stage(staged)
        staged.weigh(300)
    chunk = staged.take(NOW_MS, taken)
    assert left == staged.heavy_bytes
    staged.put_back(chunk, 0)
    assert 1_200 == staged.heavy_bytes


def test_a_missing_key_or_value_weighs_nothing():
    """A missing key or value weighs nothing when its record is put back."""
    staged = StagedRecords()
    for key, value in ((None, bytes(300)), (b"key", None), (None, None)):
        _Sent(key=key, value=value).stage(staged)
    staged.put_back(staged.take(NOW_MS, 3), 0)
    assert 303 == staged.heavy_bytes
