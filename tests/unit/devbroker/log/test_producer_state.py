"""Kafka's rules for the sequence numbers of idempotent producers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.log.producer_state import (
    MAX_SEQUENCE,
    NUM_BATCHES_TO_RETAIN,
    BatchMetadata,
    ProducerBatchInfo,
    ProducerStateManager,
    increment_sequence,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode

PRODUCER_ID = 7


def batch(sequence, count=1, *, epoch=0, producer_id=PRODUCER_ID):
    return ProducerBatchInfo(producer_id, epoch, sequence, count)


def appended(*batches):
    """Return the state of a partition to which these batches were appended, unchecked."""
    state = ProducerStateManager()
    offset = 0
    for info in batches:
        state.update(info, first_offset=offset, timestamp=1000 + offset)
        offset += info.record_count
    return state


def verdict(state, info):
    """Return the outcome of a batch: an original's first offset, None, or an error code."""
    duplicate = state.find_duplicate(info)
    if duplicate is not None:
        return duplicate.first_offset
    try:
        state.validate(info)
    except RefusedError as refused:
        return refused.error_code
    return None


OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
FENCED = ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("history", "next_batch", "expected"),
    [
        pytest.param([], batch(0), None, id="unknown producer at 0"),
        pytest.param([], batch(41, epoch=3), None, id="unknown producer anywhere"),
        pytest.param([batch(0, 3)], batch(3), None, id="next in sequence"),
        pytest.param([batch(0, 3)], batch(4), OUT_OF_ORDER, id="gap"),
        pytest.param([batch(0, 3)], batch(2), OUT_OF_ORDER, id="overlap"),
        pytest.param([batch(0, 3)], batch(0, 3), 0, id="duplicate"),
        pytest.param([batch(0, 3)], batch(0, 2), OUT_OF_ORDER, id="shorter than the original"),
        pytest.param([batch(0, 3)], batch(0, 4), OUT_OF_ORDER, id="longer than the original"),
        pytest.param([batch(0, 3), batch(3, 2)], batch(3, 2), 3, id="duplicate of the last"),
        pytest.param([batch(n) for n in range(5)], batch(0), 0, id="duplicate of the fifth last"),
        pytest.param(
            [batch(n) for n in range(6)], batch(0), OUT_OF_ORDER, id="duplicate of the sixth last"
        ),
        pytest.param([batch(0, epoch=2)], batch(1, epoch=1), FENCED, id="stale epoch"),
        pytest.param([batch(0, epoch=2)], batch(0, epoch=1), FENCED, id="stale epoch from 0"),
        pytest.param([batch(0)], batch(0, epoch=1), None, id="new epoch from 0"),
        pytest.param([batch(0)], batch(1, epoch=1), OUT_OF_ORDER, id="new epoch not from 0"),
        pytest.param(
            [batch(0), batch(0, epoch=1)], batch(0, epoch=1), 1, id="duplicate in the new epoch"
        ),
        pytest.param(
            [batch(0), batch(1), batch(0, epoch=1)],
            batch(1, epoch=0),
            FENCED,
            id="duplicate from before the new epoch",
        ),
        pytest.param([batch(MAX_SEQUENCE)], batch(0), None, id="wraps to 0"),
        pytest.param([batch(MAX_SEQUENCE)], batch(1), OUT_OF_ORDER, id="does not wrap to 1"),
        pytest.param([batch(MAX_SEQUENCE - 1, 4)], batch(2), None, id="wraps within the batch"),
        pytest.param(
            [batch(MAX_SEQUENCE - 1, 4)],
            batch(MAX_SEQUENCE - 1, 4),
            0,
            id="duplicate of a batch that wrapped",
        ),
        pytest.param([batch(0)], batch(5, producer_id=8), None, id="another producer"),
    ],
)
def test_verdict_on_the_next_batch_is_kafkas(history, next_batch, expected):
    """A producer's next batch is accepted, deduplicated or refused as in Kafka."""
    assert expected == verdict(appended(*history), next_batch)


def test_a_duplicate_has_its_original_offsets_and_time():
    """The metadata of a batch is its sequence range, its offsets and its timestamp."""
    state = appended(batch(0, 3), batch(3, 2))

    assert BatchMetadata(3, 4, 3, 4, 1003) == state.find_duplicate(batch(3, 2))


def test_a_refused_batch_leaves_no_trace():
    """Validating a batch changes nothing."""
    state = appended(batch(0, 3))
    before = [entry.last_sequence for entry in state.entries()]

    assert OUT_OF_ORDER == verdict(state, batch(9))
    assert None is verdict(state, batch(0, epoch=1))

    assert before == [entry.last_sequence for entry in state.entries()]


def test_a_batch_before_the_first_of_its_transaction_is_refused():
    """The error names its sequence, and the one that must come first."""
    state = ProducerStateManager()
    state.start_verification(PRODUCER_ID, 0, 2, supports_epoch_bump=False, now_ms=0)
    error = "sequence 5 of producer 7 arrived before 2, the first sequence of its transaction"

    with pytest.raises(RefusedError, match=error):
        state.validate(batch(5))
    assert None is verdict(state, batch(1))


def test_a_partition_knows_only_producers_that_wrote_to_it():
    """The first batch of a producer creates an entry, and the second one does not."""
    assert [] == ProducerStateManager().entries()
    entries = appended(batch(0), batch(1)).entries()
    assert [PRODUCER_ID] == [entry.producer_id for entry in entries]


def test_an_entry_has_the_last_sequence_and_offset():
    """A producer's entry has its last sequence, offset and timestamp."""
    [entry] = appended(batch(0, 3), batch(3, 2)).entries()

    assert (4, 4, 1003) == (entry.last_sequence, entry.last_offset, entry.last_timestamp)


def test_a_refusal_says_what_was_expected():
    """The error message contains the expected sequence."""
    with pytest.raises(RefusedError, match="sequence of producer 7 must be 3, not 9"):
        appended(batch(0, 3)).validate(batch(9))


@given(st.integers(0, MAX_SEQUENCE), st.integers(0, MAX_SEQUENCE))
def test_sequence_numbers_stay_within_31_bits(sequence, increment):
    """Adding to a sequence wraps from 2^31-1 to 0 and is never negative."""
    result = increment_sequence(sequence, increment)

    assert 0 <= result <= MAX_SEQUENCE
    assert 0 == (result - sequence - increment) % (MAX_SEQUENCE + 1)


class SequenceMachine(RuleBasedStateMachine):
    """Producers that send, resend, skip and restart, compared with a complete model."""

    def __init__(self):
        super().__init__()
        self.state = ProducerStateManager()
        self.epoch = 0
        #: Every batch of the current epoch, with its first offset.
        self.sent = []
        self.next_sequence = 0
        self.next_offset = 0
        self.known = False

    def _append(self, info):
        self.state.update(info, first_offset=self.next_offset, timestamp=self.next_offset)
        self.sent.append((info, self.next_offset))
        self.next_sequence = (info.base_sequence + info.record_count) % (MAX_SEQUENCE + 1)
        self.next_offset += info.record_count
        self.known = True

    @precondition(lambda self: not self.known)
    @rule(start=st.sampled_from([0, 5, MAX_SEQUENCE - 3, MAX_SEQUENCE]), count=st.integers(1, 5))
    def begin(self, start, count):
        """Begin at any sequence, as a producer unknown to the partition may."""
        info = batch(start, count, epoch=self.epoch)
        assert None is verdict(self.state, info)
        self._append(info)

    @precondition(lambda self: self.known)
    @rule(count=st.integers(1, 5))
    def send(self, count):
        """Send the next batch in sequence, which is accepted."""
        info = batch(self.next_sequence, count, epoch=self.epoch)
        assert None is verdict(self.state, info)
        self._append(info)

    @precondition(lambda self: self.known)
    @rule(back=st.integers(1, 8))
    def repeat(self, back):
        """Resend a batch: one of the last five is a duplicate, an older one out of order."""
        if back > len(self.sent):
            return
        info, offset = self.sent[-back]
        expected = offset if back <= NUM_BATCHES_TO_RETAIN else OUT_OF_ORDER
        assert expected == verdict(self.state, info)

    @precondition(lambda self: self.known)
    @rule(skip=st.integers(1, MAX_SEQUENCE), count=st.integers(1, 5))
    def skip(self, skip, count):
        """Send at another sequence; unless it is an exact duplicate, it is out of order."""
        info = batch(increment_sequence(self.next_sequence, skip), count, epoch=self.epoch)
        if info not in [sent for sent, _ in self.sent[-NUM_BATCHES_TO_RETAIN:]]:
            assert OUT_OF_ORDER == verdict(self.state, info)

    @precondition(lambda self: self.known)
    @rule(count=st.integers(1, 5))
    def bump_epoch(self, count):
        """Begin a new epoch at sequence 0, which fences the old epoch."""
        assert OUT_OF_ORDER == verdict(self.state, batch(1, count, epoch=self.epoch + 1))
        self.epoch += 1
        self.sent = []
        self._append(batch(0, count, epoch=self.epoch))
        assert FENCED == verdict(self.state, batch(0, count, epoch=self.epoch - 1))

    @invariant()
    def remembers_no_more_than_five(self):
        """Check that memory per producer is bounded."""
        for entry in self.state.entries():
            assert len(entry.batches) <= NUM_BATCHES_TO_RETAIN


TestSequenceMachine = SequenceMachine.TestCase
