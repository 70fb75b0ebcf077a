"""Single records become the same bytes as the rows of a table, whatever they have and lack."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DeliveryError, KafkaError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.produce_result import ProduceResult
from spark_kafka_sink.producer.record_futures import FutureOfFullRecord, FutureRecordMetadata
from spark_kafka_sink.producer.staged_records import NULL_SIZE, StagedRecords
from spark_kafka_sink.record.columns import NULL_PARTITION
from spark_kafka_sink.record.decode import decode_records
from tests.support.kernel_batches import write_records

NOW_MS = 1_700_000_000_000


@dataclass(frozen=True)
class _Sent:
    """What a caller sent."""

    topic: str = "t"
    value: bytes | None = b"v"
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] | None = None
    partition: int | None = None
    timestamp: int | None = None

    def future(self, *, callback=None) -> FutureRecordMetadata:
        """Make what is staged of it: the smallest that can hold it, as a send does."""
        rest = (self.headers, self.partition, self.timestamp, callback)
        future = FutureRecordMetadata() if rest == (None,) * 4 else FutureOfFullRecord()
        future.topic, future.value, future.key = self.topic, self.value, self.key
        future.chunk = future.error = None
        if isinstance(future, FutureOfFullRecord):
            future.headers, future.partition, future.timestamp, future.callback = rest
        return future


def _take(*sent: _Sent, max_records: int = 1_000):
    staged = StagedRecords()
    for each in sent:
        staged.append(each.future())
    return staged.take(NOW_MS, max_records)


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
    """Any mix of fields comes through the kernel as the same records, in the same order."""
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
def test_metadata_is_kept_beside_the_columns(sent):
    """What a RecordMetadata tells beside the offset is known once a record is written."""
    written = _take(*sent).written
    times = [NOW_MS if each.timestamp is None else each.timestamp for each in sent]
    assert times == written.timestamps.tolist()
    for sizes, items in (
        (written.key_sizes, [each.key for each in sent]),
        (written.value_sizes, [each.value for each in sent]),
    ):
        assert [NULL_SIZE if item is None else len(item) for item in items] == sizes.tolist()


def test_nothing_is_taken_out_of_nothing():
    """An empty deque gives no chunk rather than an empty one."""
    assert _take() is None


def test_a_chunk_has_no_more_records_than_asked_for():
    """The oldest come first; the rest stays."""
    staged = StagedRecords()
    futures = [_Sent(value=b"%d" % number).future() for number in range(5)]
    for future in futures:
        staged.append(future)
    assert futures[:3] == list(staged.take(NOW_MS, 3).futures)
    assert futures[3:] == list(staged.take(NOW_MS, 3).futures)
    assert staged.take(NOW_MS, 3) is None


def test_records_that_are_put_back_come_before_all_others():
    """What could not be written keeps its place in the order."""
    staged = StagedRecords()
    futures = [_Sent(value=b"%d" % number).future() for number in range(5)]
    for future in futures[:4]:
        staged.append(future)
    chunk = staged.take(NOW_MS, 4)
    staged.append(futures[4])
    staged.put_back(chunk.futures[1:])
    assert futures[1:] == list(staged.take(NOW_MS, 10).futures)


def test_records_may_be_staged_while_others_are_taken():
    """Each record of several threads is taken once, in its thread's order."""
    staged = StagedRecords()

    def stage(thread: int) -> None:
        for number in range(2_000):
            staged.append(_Sent(value=b"%d %d" % (thread, number)).future())

    threads = [threading.Thread(target=stage, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    taken: list[bytes] = []
    while any(thread.is_alive() for thread in threads) or staged.records:
        chunk = staged.take(NOW_MS, 100)
        taken += [future.value for future in chunk.futures] if chunk is not None else []
    for thread in threads:
        thread.join()
    expected = [[b"%d %d" % (thread, number) for number in range(2_000)] for thread in range(3)]
    assert expected == [[v for v in taken if v.startswith(b"%d " % t)] for t in range(3)]


# --- where records went


def _result() -> ProduceResult:
    return ProduceResult(TopicPartition("t", 0))


def test_futures_learn_where_their_records_are():
    """A future points to the batch and the record's place in it, and lets go of the record."""
    chunk = _take(_Sent(), _Sent(key=b"k"))
    results = [_result(), _result()]
    chunk.tell_places(results, np.array([3, 4], np.int32), 2)
    assert [(results[0], 3), (results[1], 4)] == [
        future.chunk.place(future.row) for future in chunk.futures
    ]
    assert [(None, None)] * 2 == [(future.key, future.value) for future in chunk.futures]


def test_futures_of_records_that_went_nowhere_are_not_told_of_a_place():
    """Those behind the count go again, and those without a batch have failed already."""
    chunk = _take(_Sent(), _Sent(), _Sent())
    result = _result()
    chunk.fail([0], DeliveryError("refused"))
    chunk.tell_places([None, result, None], np.array([0, 0, 0], np.int32), 2)
    assert [True, False, False] == [future.done() for future in chunk.futures]
    assert [False, True, False] == [future.chunk is not None for future in chunk.futures]
    assert b"v" == chunk.futures[2].value


def test_a_record_without_a_place_is_reported_as_our_mistake():
    """Rather than an index error, a clear word."""
    chunk = _take(_Sent())
    with pytest.raises(KafkaError, match="please report it"):
        chunk.written.tell([None], [0]) or chunk.written.place(0)


def test_callbacks_are_called_at_the_end_of_their_batch():
    """A callback gets its own future, once, when the record's batch has ended."""
    told = []
    staged = StagedRecords()
    futures = [
        _Sent().future(callback=told.append),
        _Sent().future(),
        _Sent().future(callback=told.append),
    ]
    for future in futures:
        staged.append(future)
    chunk = staged.take(NOW_MS, 10)
    assert chunk.has_callbacks
    result = _result()
    chunk.tell_places([result] * 3, np.arange(3, dtype=np.int32), 3)
    assert [] == told
    result.complete(0)
    assert [futures[0], futures[2]] == told


def test_callbacks_of_failed_records_are_called_at_once():
    """Records that get into no batch end when that is known, one by one."""
    told = []
    staged = StagedRecords()
    for future in (
        _Sent().future(callback=lambda _: 1 / 0),
        _Sent().future(callback=told.append),
        _Sent().future(),
    ):
        staged.append(future)
    chunk = staged.take(NOW_MS, 10)
    refused = DeliveryError("refused")
    chunk.fail(range(3), refused)
    assert [chunk.futures[1]] == told
    assert [refused] * 3 == [future.error for future in chunk.futures]
