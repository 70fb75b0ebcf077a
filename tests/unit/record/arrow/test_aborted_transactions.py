"""Aborted transactions and control batches are skipped as by Java's CompletedFetch."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.compression import CompressionType
from tests.support.record.plain_batches import PlainRecord, plain_batch
from tests.support.record.reading.decoding import column_of

TRANSACTIONAL = 16
CONTROL = 32
#: The type of a transaction marker, in its key.
ABORT = b"\0\0\0\0"
COMMIT = b"\0\0\0\1"


def rows(offset: int, producer_id: int, count: int = 1, attributes: int = TRANSACTIONAL) -> bytes:
    return plain_batch(count, base_offset=offset, producer_id=producer_id, attributes=attributes)


def marker(offset: int, producer_id: int, key: bytes | None, **settings) -> bytes:
    return plain_batch(
        [PlainRecord(key=key, value=bytes(6))],
        base_offset=offset,
        producer_id=producer_id,
        attributes=TRANSACTIONAL | CONTROL,
        **settings,
    )


@pytest.mark.parametrize(
    ("answer", "aborted", "expected"),
    [
        pytest.param(
            rows(0, 1) + rows(1, 2) + marker(2, 1, ABORT) + rows(3, 1) + marker(4, 1, COMMIT),
            [(1, 0)],
            [1, 3],
            id="a marker ends the aborted transaction of its producer alone",
        ),
        pytest.param(
            rows(0, 1) + rows(1, 1) + marker(2, 1, ABORT),
            [(1, 1)],
            [0],
            id="batches before the first offset are returned",
        ),
        pytest.param(
            rows(0, 1, 5) + marker(5, 1, ABORT),
            [(1, 4)],
            [],
            id="a transaction begins with the batch whose last offset reaches its first",
        ),
        pytest.param(
            rows(0, 1, attributes=0) + rows(1, 1) + rows(2, -1, attributes=0) + rows(3, 1),
            [(1, 0)],
            [0, 2],
            id="batches outside of transactions are returned",
        ),
        pytest.param(
            rows(0, 1) + marker(1, 1, ABORT) + rows(2, 1) + marker(3, 1, ABORT) + rows(4, 1),
            [(1, 2), (1, 0)],
            [4],
            id="a producer may abort twice, and the list need not be sorted",
        ),
        pytest.param(
            rows(0, 1) + rows(1, 2) + rows(2, 3) + marker(3, 2, ABORT) + rows(4, 2) + rows(5, 3),
            [(3, 2), (1, 0), (2, 1)],
            [4],
            id="several transactions at once",
        ),
        pytest.param(
            rows(0, 1) + marker(1, 1, COMMIT) + rows(2, 1),
            [(1, 0)],
            [],
            id="a commit marker does not end an aborted transaction",
        ),
        pytest.param(
            rows(0, 1) + marker(1, 2, ABORT) + rows(2, 1),
            [(1, 0), (2, 9)],
            [],
            id="a marker of another producer does not end it",
        ),
        pytest.param(
            rows(0, 1) + marker(1, 1, ABORT, record_count=0, payload=b"") + rows(2, 1),
            [(1, 0)],
            [],
            id="a control batch without records ends nothing",
        ),
        pytest.param(
            rows(0, 1) + marker(1, 1, b"\0\5\0\0more") + rows(2, 1),
            [(1, 0)],
            [2],
            id="a marker of a later version counts",
        ),
        pytest.param(
            rows(0, 1) + marker(1, 1, ABORT, compression=CompressionType.LZ4) + rows(2, 1),
            [(1, 0)],
            [2],
            id="a marker may be compressed",
        ),
        pytest.param(
            rows(0, 1) + marker(1, 1, ABORT) + rows(2, 1),
            [],
            [0, 2],
            id="without a list, all but control batches is returned",
        ),
    ],
)
def test_aborted_batches_are_skipped(answer, aborted, expected):
    """Only batches that are transactional and of an aborted producer are skipped."""
    assert expected == column_of("offset", answer, aborted=aborted)


def test_a_marker_before_the_start_ends_its_transaction():
    """A range may start after the marker: the transactions before it are followed anyway."""
    answer = rows(0, 1) + marker(1, 1, ABORT) + rows(2, 1)
    assert [2] == column_of("offset", answer, start=2, aborted=[(1, 0)])


def test_each_answer_has_its_own_list():
    """A transaction that an earlier answer listed does not matter to the next one."""
    assert [] == column_of("offset", rows(0, 1), aborted=[(1, 0)])
    assert [1] == column_of("offset", rows(1, 1))


@pytest.mark.parametrize("compression", CompressionType, ids=str)
def test_aborted_batches_are_not_decompressed(compression):
    """Of an aborted batch only the checksum is checked."""
    broken = plain_batch(
        1, producer_id=1, attributes=TRANSACTIONAL, compression=compression, payload=b"\xff"
    )
    assert [1] == column_of("offset", broken + rows(1, 2), aborted=[(1, 0)])
    damaged = broken[:-1] + b"\xfe"
    with pytest.raises(CorruptRecordError, match=r"offset 0: .*checksum"):
        column_of("offset", damaged + rows(1, 2), aborted=[(1, 0)])


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_marker_without_a_type_is_refused(key):
    """A control record of an aborted producer that is no marker is refused."""
    with pytest.raises(CorruptRecordError, match="offset 1: the control record is not a"):
        column_of("offset", rows(0, 1) + marker(1, 1, key), aborted=[(1, 0)])


def test_a_topic_of_many_small_transactions_is_filtered():
    """Thousands of transactions of several producers are told apart."""
    batches, aborted, expected = [], [], []
    for number in range(3000):
        offset, producer_id, aborts = 2 * number, number % 7, number % 3 == 0
        batches += [
            rows(offset, producer_id),
            marker(offset + 1, producer_id, ABORT if aborts else COMMIT),
        ]
        aborted += [(producer_id, offset)] if aborts else []
        expected += [] if aborts else [offset]
    assert expected == column_of("offset", b"".join(batches), aborted=aborted)
