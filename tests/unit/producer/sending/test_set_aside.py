"""Rows that a broker refuses for themselves are set aside, and the others are sent again."""

from __future__ import annotations

import numpy as np
import pytest

from spark_kafka_sink.errors import BrokerError, DeliveryError, NetworkError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.batch.produce_result import ProduceResult
from spark_kafka_sink.producer.batch.producer_batch import BatchRows, ProducerBatch, RowHistory
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.produce import BatchIndexAndErrorMessage
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.decode import decode_record_batch
from spark_kafka_sink.record.default_record import encode_record
from tests.support.producer.sender_harness import (
    LATER,
    PLAIN,
    SenderHarness,
    numbers,
    produce_response,
)
from tests.support.producer.transactions_over_mock import TRANSACTIONAL, S, answer_end

UNANSWERED = NetworkError("the connection was closed")


class Rows:
    """A caller's rows, numbered from 100, in batches for partition 0."""

    def __init__(self, harness: SenderHarness) -> None:
        self.harness = harness
        self.history = RowHistory()

    def add(self, *names: str) -> ProducerBatch:
        """Add a batch with these values to the queue."""
        place = TopicPartition("t", 0)
        payload = b"".join(
            encode_record(None, name.encode(), offset_delta=index, timestamp_delta=index)
            for index, name in enumerate(names)
        )
        position = self.history.position
        self.history.add(100 + position, np.zeros(len(names), np.int32))
        return self.harness.enqueue(
            ProducerBatch(
                topic_partition=place,
                result=ProduceResult(place),
                payload=memoryview(payload),
                record_count=len(names),
                base_timestamp=1_000,
                max_timestamp=1_000 + len(names) - 1,
                uncompressed_bytes=len(payload),
                max_record_bytes=len(payload),
                compression=CompressionType.NONE,
                first_row=100 + position,
                last_row=100 + position + len(names) - 1,
                created_at=self.harness.now,
                rows=BatchRows(self.history, 0, position),
            )
        )

    def refuse(self, *indexes: int, code: int = ErrorCode.INVALID_RECORD) -> None:
        """Respond to the oldest request that records with these indexes are refused."""
        self.harness.produce(
            code,
            record_errors=tuple(
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=f"m{index}")
                for index in indexes
            ),
        )

    def set_aside(self) -> list[tuple[int, str]]:
        """Return the rows that were set aside since the last call, with the broker's messages."""
        return [
            (row, message)
            for rows in self.harness.tray.take()
            for row, message in zip(rows.rows.tolist(), rows.messages, strict=True)
        ]

    def sent(self) -> tuple[list[str], int]:
        """Return the values of the oldest request that is not answered, and its first number."""
        self.harness.step(LATER)
        [sent] = self.harness.network.sent
        assert ApiKey.PRODUCE is sent.request.api_key
        [topic] = sent.request.topic_data
        [data] = topic.partition_data
        batch = decode_record_batch(b"".join(data.records))
        values = [record.value.decode() for record in batch.records]
        assert [*range(len(values))] == [record.offset for record in batch.records]
        return values, batch.header.base_sequence


@pytest.fixture
def idempotent():
    with SenderHarness() as harness:
        harness.tray.is_open = True
        yield harness


@pytest.fixture(params=[1, 2], ids=["TV1", "TV2"])
def transactional(request):
    with SenderHarness(transaction_version=request.param, **TRANSACTIONAL) as harness:
        harness.tray.is_open = True
        harness.initialize()
        harness.manager.begin_transaction()
        yield harness


def begun(harness: SenderHarness) -> Rows:
    """Send a batch of two rows, 100 and 101, so that several may be in flight after it."""
    rows = Rows(harness)
    rows.add("x", "y")
    if not harness.manager.epochs.is_transaction_v2:
        harness.add_partitions()
    harness.step()
    harness.produce()
    return rows


def test_the_rest_of_a_batch_is_sent_again(idempotent):
    """An idempotent producer sends it under a new epoch, as after any gap; its rows are known."""
    rows = Rows(idempotent)
    batch = rows.add("a", "b", "c", "d")
    idempotent.initialize()
    rows.refuse(1, 3)
    assert [(101, "m1"), (103, "m3")] == rows.set_aside()
    assert not batch.result.has_ended
    assert (["a", "c"], 0) == rows.sent()
    rows.refuse(1)
    assert [(102, "m1")] == rows.set_aside()
    assert (["a"], 0) == rows.sent()
    idempotent.produce(offset=7)
    assert (None, 7) == (batch.result.error, batch.result.base_offset)
    assert 1 == sum(acks.records for acks in idempotent.sender.completion.take_acks().values())


def test_the_timestamps_of_rows_that_are_left_remain(idempotent):
    """Timestamps count from the first record of a batch, which may be gone."""
    rows = Rows(idempotent)
    rows.add("a", "b", "c")
    idempotent.initialize()
    rows.refuse(0)
    [aside] = idempotent.tray.take()
    assert (1_000, 1) == (aside.records.base_timestamp, aside.records.record_count)
    idempotent.step(LATER)
    [sent] = idempotent.network.sent
    [data] = sent.request.topic_data[0].partition_data
    records = decode_record_batch(b"".join(data.records)).records
    assert [(b"b", 1_001), (b"c", 1_002)] == [(each.value, each.timestamp) for each in records]


def test_without_idempotence_the_rest_is_sent_as_well():
    """There are no numbers to care for."""
    with SenderHarness(**PLAIN) as harness:
        harness.tray.is_open = True
        rows = Rows(harness)
        batch = rows.add("a", "b")
        harness.step()
        rows.refuse(0)
        assert (["b"], -1) == rows.sent()
        harness.produce(offset=3)
        assert (None, [(100, "m0")]) == (batch.result.error, rows.set_aside())


def test_nothing_is_sent_again_if_all_rows_are_refused(idempotent):
    """The batch has ended without an offset, and the next begins the new epoch."""
    rows = Rows(idempotent)
    batch = rows.add("a", "b")
    idempotent.initialize()
    rows.refuse(0, 1)
    assert (True, None, -1) == (batch.is_done, batch.result.error, batch.result.base_offset)
    assert [(100, "m0"), (101, "m1")] == rows.set_aside()
    behind = rows.add("c")
    assert (["c"], 0) == rows.sent()
    assert (1, 0) == numbers(behind)


def test_a_row_that_is_too_large_for_its_topic_is_set_aside(idempotent):
    """A batch of several is split first."""
    rows = Rows(idempotent)
    batch = rows.add("a", "b")
    idempotent.initialize()
    idempotent.produce(ErrorCode.MESSAGE_TOO_LARGE)
    assert (["a"], 0) == rows.sent()
    idempotent.produce(ErrorCode.MESSAGE_TOO_LARGE)
    [(row, message)] = rows.set_aside()
    assert 100 == row
    assert "MESSAGE_TOO_LARGE" in message
    assert (["b"], 0) == rows.sent()
    idempotent.produce(offset=5)
    assert (None, 5) == (batch.result.error_of(1), batch.result.final(1)[0].base_offset)


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_row_that_is_larger_than_a_segment_is_set_aside(idempotent, names):
    """If others are in its batch, that may be what is too large: it is not split, as in Java."""
    rows = Rows(idempotent)
    batch = rows.add(*names)
    idempotent.initialize()
    idempotent.produce(ErrorCode.RECORD_LIST_TOO_LARGE)
    assert [100] * (len(names) == 1) == [row for row, _ in rows.set_aside()]
    assert (len(names) == 1) is (batch.result.error is None)


def test_in_a_transaction_the_batches_behind_move_up(transactional):
    """The numbers of rows that were set aside are used by those behind: the epoch has no gap."""
    rows = begun(transactional)
    rows.add("a", "b", "c")
    rows.add("d", "e")
    transactional.step()
    rows.refuse(1)
    # The second is out of order for its broker, and has not been answered until then.
    assert [] == transactional.network.sent[1:]
    transactional.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert (["a", "c"], 2) == rows.sent()
    transactional.produce()
    assert (["d", "e"], 4) == rows.sent()
    transactional.produce()
    rows.add("f")
    assert (["f"], 6) == rows.sent()
    transactional.produce()
    assert [(103, "m1")] == rows.set_aside()
    commit = transactional.manager.begin_commit()
    answer_end(transactional, epoch=1)
    commit.wait(0)
    assert S.READY is transactional.manager.state.current


def test_batches_wait_until_all_are_answered(transactional):
    """A number is reused only when no batch that has it is in flight."""
    rows = begun(transactional)
    rows.add("a", "b")
    rows.add("c")
    transactional.step()
    rows.refuse(0)
    transactional.step(LATER)
    assert 1 == len(transactional.network.sent)
    transactional.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert (["b"], 2) == rows.sent()


@pytest.mark.parametrize("number", [0, 1])
def test_a_batch_behind_without_an_answer_fails_the_transaction(transactional, number):
    """Its request may be on its way: with another number it could be there twice."""
    rows = begun(transactional)
    refused = rows.add("a", "b")
    behind = rows.add("c")
    transactional.step()
    first, second = transactional.network.sent
    transactional.network.sent.clear()
    errors = (BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message="m"),)
    answer = produce_response(first, ErrorCode.INVALID_RECORD, record_errors=errors)
    if number:
        first.answer(answer)
        transactional.step()
        second.fail(UNANSWERED)
    else:
        second.fail(UNANSWERED)
        transactional.step()
        first.answer(answer)
    transactional.step(LATER)
    assert S.ABORTABLE_ERROR is transactional.manager.state.current
    assert isinstance((behind if number else refused).result.error, DeliveryError)


def test_several_refused_batches_share_one_move(transactional):
    """Whatever their order, the batches that are left have consecutive numbers."""
    rows = begun(transactional)
    for names in (("a", "b"), ("c", "d"), ("e", "f")):
        rows.add(*names)
    transactional.step()
    first, second, third = transactional.network.sent
    transactional.network.sent.clear()
    for sent, index in ((second, 0), (first, 1)):
        errors = (BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message="m"),)
        response = produce_response(sent, ErrorCode.INVALID_RECORD, record_errors=errors)
        sent.answer(response)
        transactional.step()
    transactional.answer_produce(third, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    for expected in ((["a"], 2), (["d"], 3), (["e", "f"], 4)):
        assert expected == rows.sent()
        transactional.produce()
    assert [(104, "m"), (103, "m")] == rows.set_aside()


def test_a_batch_before_a_refused_one_keeps_its_number(transactional):
    """It may be in the log with that."""
    rows = begun(transactional)
    rows.add("a")
    rows.add("b", "c")
    transactional.step()
    first, second = transactional.network.sent
    transactional.network.sent.clear()
    first.fail(UNANSWERED)
    transactional.step()
    errors = (BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message="m"),)
    second.answer(produce_response(second, ErrorCode.INVALID_RECORD, record_errors=errors))
    transactional.step()
    assert (["a"], 2) == rows.sent()
    transactional.produce(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert (["c"], 3) == rows.sent()


def test_a_batch_of_refused_rows_only_leaves_no_gap(transactional):
    """The batch behind gets its number."""
    rows = begun(transactional)
    rows.add("a", "b")
    rows.add("c")
    transactional.step()
    rows.refuse(0, 1)
    transactional.produce(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert (["c"], 2) == rows.sent()


def test_an_attempt_without_an_answer_may_have_been_appended(idempotent):
    """A batch that a broker may have is not replaced: it fails as without dead letters."""
    rows = Rows(idempotent)
    batch = rows.add("a", "b")
    idempotent.initialize()
    idempotent.take(ApiKey.PRODUCE).fail(UNANSWERED)
    idempotent.step()
    idempotent.step(LATER)
    rows.refuse(0)
    assert isinstance(batch.result.error, DeliveryError)
    assert [] == rows.set_aside()


@pytest.mark.parametrize(
    ("code", "indexes"),
    [
        (ErrorCode.INVALID_RECORD, ()),
        (ErrorCode.INVALID_RECORD, (2, -1)),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, (0,)),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, (0,)),
        (ErrorCode.POLICY_VIOLATION, (0,)),
    ],
)
def test_errors_of_a_whole_batch_fail_it(idempotent, code, indexes):
    """So do errors of records that it does not have."""
    rows = Rows(idempotent)
    batch = rows.add("a", "b")
    idempotent.initialize()
    rows.refuse(*indexes, code=code)
    assert isinstance(batch.result.error, DeliveryError)
    assert [] == rows.set_aside()


def test_a_time_out_is_never_an_error_of_rows(idempotent):
    """The batch fails once delivery.timeout.ms is over."""
    rows = Rows(idempotent)
    batch = rows.add("a")
    idempotent.initialize()
    rows.refuse(0, code=ErrorCode.REQUEST_TIMED_OUT)
    idempotent.step(idempotent.config.delivery_timeout_ms / 1000)
    assert isinstance(batch.result.error, DeliveryError)
    assert [] == rows.set_aside()


def test_without_a_caller_that_takes_them_no_rows_are_set_aside(idempotent):
    """The batch fails, and its error names the rows."""
    idempotent.tray.close()
    rows = Rows(idempotent)
    batch = rows.add("a", "b")
    idempotent.initialize()
    rows.refuse(1)
    assert "Rejected: row 101 (m1)" in str(batch.result.error)


def test_records_without_known_rows_are_not_set_aside(idempotent):
    """A dead letter, for one, is a record and not a row."""
    rows = Rows(idempotent)
    rows.history.add(None, np.zeros(1, np.int32))
    rows.history.clear()
    batch = rows.add("a", "b")
    rows.history.clear()
    idempotent.initialize()
    rows.refuse(1)
    assert "record 1 of the batch (m1)" in str(batch.result.error)
    assert [] == rows.set_aside()


def test_a_transaction_that_is_aborted_meanwhile_sets_nothing_aside(transactional):
    """What the worker has divided is dropped with all that is unsent."""
    rows = begun(transactional)
    batch = rows.add("a", "b")
    transactional.step()
    transactional.is_busy = True
    rows.refuse(0)
    transactional.manager.begin_abort()
    transactional.do_jobs()
    transactional.step()
    assert isinstance(batch.result.error, DeliveryError | BrokerError)
    assert [] == rows.set_aside()
    assert ApiKey.END_TXN is transactional.take().request.api_key


def test_a_batch_that_expires_while_it_is_divided_is_not_sent(idempotent):
    """Its rows have failed by then."""
    rows = Rows(idempotent)
    batch = rows.add("a", "b")
    idempotent.initialize()
    idempotent.is_busy = True
    rows.refuse(0)
    idempotent.step(idempotent.config.delivery_timeout_ms / 1000)
    idempotent.do_jobs()
    idempotent.step(LATER)
    assert isinstance(batch.result.error, DeliveryError)
    assert ([], []) == (rows.set_aside(), idempotent.network.sent)
