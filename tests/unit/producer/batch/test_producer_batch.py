"""The initial state of a closed batch, and its bytes at each attempt."""

from __future__ import annotations

import pytest

from spark_kafka_sink.model import NO_PRODUCER_ID_AND_EPOCH, ProducerIdAndEpoch
from spark_kafka_sink.producer.batch.batch_compression import batches_of
from spark_kafka_sink.record.default_record import PayloadPart
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD
from tests.support.producer.producer_batches import batch


def test_a_new_batch_has_no_identity_and_no_attempts():
    """A new batch may be sent at once, nothing holds it, and no broker may have it."""
    new = batch()
    assert (NO_PRODUCER_ID_AND_EPOCH, -1) == (new.producer_id_and_epoch, new.base_sequence)
    assert (0, 0.0, None, None) == (new.attempts, new.retry_at, new.last_error, new.final_state)
    assert (True, None) == (new.is_compressed, new.block)
    assert [False] * 7 == [
        new.is_transactional,
        new.may_be_appended,
        new.is_in_flight,
        new.is_with_worker,
        new.is_held,
        new.is_done,
        new.has_sequence,
    ]


@pytest.mark.parametrize("size", [0, 1, 100])
def test_the_size_of_a_batch_includes_its_header(size):
    """The header takes 61 bytes."""
    assert (61 + size, 61) == (batch(size=size).size_bytes, RECORD_BATCH_OVERHEAD)


@pytest.mark.parametrize(
    ("in_flight", "with_worker", "is_held"),
    [(False, False, False), (True, False, True), (False, True, True), (True, True, True)],
)
def test_a_batch_is_held_by_a_connection_or_by_the_worker(in_flight, with_worker, is_held):
    """A connection or the worker may be reading the bytes of a batch that it holds."""
    held = batch()
    held.is_in_flight, held.is_with_worker = in_flight, with_worker
    assert is_held == held.is_held


@pytest.mark.parametrize(("sequence", "has_sequence"), [(-1, False), (0, True), (1, True)])
def test_a_sequence_number_is_0_or_greater(sequence, has_sequence):
    """-1 stands for no sequence number."""
    numbered = batch()
    numbered.set_producer_state(ProducerIdAndEpoch(1, 0), sequence)
    assert has_sequence == numbered.has_sequence
    assert not numbered.is_transactional


def test_the_header_is_rebuilt_only_for_a_new_identity():
    """A header is rebuilt only for another identity, so a resent batch has the same bytes."""
    sent = batch()
    headers = []
    for epoch, is_transactional in ((0, False), (1, False), (1, True)):
        sent.set_producer_state(ProducerIdAndEpoch(1, epoch), 5, is_transactional=is_transactional)
        headers.append(bytes(sent.buffers()[0]))
        # Mark the bytes to show that they are not rewritten.
        sent.header[0] = 0x7F
        assert 0x7F == sent.buffers()[0][0]
    assert 3 == len(set(headers))
    assert [0, 0, 0] == [header[0] for header in headers]
    # Epoch and flags are where KIP-98 puts them: bytes 51 and 52, and bit 4 of byte 22.
    assert [(0, 0), (1, 0), (1, 1)] == [
        (int.from_bytes(header[51:53], "big"), header[22] >> 4 & 1) for header in headers
    ]


def test_a_batch_without_an_identity_has_a_header():
    """Without idempotence the header has format 2 and -1 for id, epoch and sequence number."""
    header = bytes(batch().buffers()[0])
    assert (2, b"\xff" * 14) == (header[16], header[43:57])


def test_the_parts_of_a_sent_batch_have_their_own_headers():
    """The parts of a batch that was sent have headers of their own."""
    whole = batch(records=3)
    whole.set_producer_state(ProducerIdAndEpoch(1, 0), 5)
    whole.buffers()
    parts = batches_of(whole, [PayloadPart(memoryview(bytes(50)), 50, n, 0, 0) for n in (1, 2)])
    headers = [bytes(part.buffers()[0]) for part in parts]
    assert [2, 2] == [header[16] for header in headers]
    assert [1, 2] == [int.from_bytes(header[57:61], "big") for header in headers]
    assert [(True, False, None)] * 2 == [
        (part.is_compressed, part.is_done, part.block) for part in parts
    ]
