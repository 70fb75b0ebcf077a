"""The rules for missing markers; other tests make brokers lose them."""

from __future__ import annotations

import pytest

from spark_kafka_sink.admin.records import EndMarker, PartitionChunk
from spark_kafka_sink.admin.transaction_values import (
    EndAnswer,
    EndOutcome,
    OpenProducer,
    TransactionEnd,
)
from spark_kafka_sink.errors import BrokerError, KafkaTimeoutError
from spark_kafka_sink.exactly_once.ledger import Budget
from spark_kafka_sink.exactly_once.ledger_records import OffsetRange, Winner
from spark_kafka_sink.exactly_once.markers import Ended, ensure_markers, next_epoch
from spark_kafka_sink.exactly_once.recovery import fate_by_marker
from spark_kafka_sink.exactly_once.transitions import Fate
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

PLACE, ELSEWHERE = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER, AFTER = ProducerIdAndEpoch(7, 3), ProducerIdAndEpoch(7, 4)
END = TransactionEnd("p.a.0", PRODUCER, True)
ONE = Ended(END, AFTER, {PLACE: 10, ELSEWHERE: 5})
BUDGET = Budget(lambda: 0.0, 60.0)


class _Admin:
    """An admin client with scripted answers; the last of each script repeats."""

    def __init__(self, *, held, open_producers=()):
        self.held = list(held)
        self.open_producers_are = open_producers
        self.asked_behind = []
        self.written = []

    def wait_until_stable(self, behind, *, patience, timeout):
        self.asked_behind.append((dict(behind), patience, timeout))
        return self.held.pop(0) if len(self.held) > 1 else self.held[0]

    def open_producers(self, _place, *, timeout):
        if isinstance(self.open_producers_are, BrokerError):
            raise self.open_producers_are
        return self.open_producers_are

    def write_markers(self, end, places, *, timeout):
        self.written.append((end, list(places)))
        return EndAnswer(EndOutcome.ENDED)


def still_open(producer):
    return [OpenProducer(producer, 4, 1)]


@pytest.mark.parametrize(
    ("version", "answered", "expected"),
    [
        (None, None, PRODUCER),
        (1, None, PRODUCER),
        (2, None, AFTER),
        (3, None, AFTER),
        (1, ProducerIdAndEpoch(8, 0), ProducerIdAndEpoch(8, 0)),
        (2, ProducerIdAndEpoch(8, 0), ProducerIdAndEpoch(8, 0)),
    ],
)
def test_the_next_epoch_follows_from_the_answer_or_the_transaction_version(
    version, answered, expected
):
    """The coordinator's answer, or else the transaction version, determines the next epoch."""
    assert expected == next_epoch(END._replace(transaction_version=version), answered)


def test_markers_are_awaited_up_to_the_highest_end_offset_per_partition():
    """The wait is for the highest end offset per partition of all the transactions."""
    other = ONE._replace(written={PLACE: 12})
    admin = _Admin(held=[()])
    assert [] == ensure_markers(admin, [ONE, other, ONE], BUDGET)
    assert [({PLACE: 12, ELSEWHERE: 5}, 0.1, 60.0)] == admin.asked_behind
    assert [] == ensure_markers(_Admin(held=[[PLACE]]), [ONE._replace(written={})], BUDGET)


def test_a_missing_marker_is_checked_twenty_times_and_written_three_times():
    """A missing marker is checked twenty times, written three times, and then given up."""
    admin = _Admin(held=[[PLACE]], open_producers=still_open(PRODUCER))
    assert [ONE] == ensure_markers(admin, [ONE], BUDGET)
    assert 24 == len(admin.asked_behind)
    assert [(END._replace(producer=AFTER), [PLACE])] * 3 == admin.written


def test_a_delayed_marker_is_not_written_again():
    """A marker that appears after twenty checks is not written again."""
    admin = _Admin(held=[*[[PLACE]] * 20, ()], open_producers=still_open(PRODUCER))
    assert [] == ensure_markers(admin, [ONE], BUDGET)
    assert [] == admin.written


@pytest.mark.parametrize("producer", [AFTER, ProducerIdAndEpoch(8, 0)])
def test_an_open_later_transaction_is_not_a_missing_marker(producer):
    """An open transaction of a later epoch or another producer is not a missing marker."""
    admin = _Admin(held=[[PLACE], ()], open_producers=still_open(producer))
    assert [] == ensure_markers(admin, [ONE], BUDGET)
    assert [] == admin.written
    assert 1 == len(admin.asked_behind)


def test_a_marker_is_written_if_open_producers_cannot_be_listed():
    """If open producers may not be listed, the marker is written in that partition alone."""
    refusal = BrokerError("no", code=29, name="TOPIC_AUTHORIZATION_FAILED")
    admin = _Admin(held=[[ELSEWHERE]], open_producers=refusal)
    assert [] == ensure_markers(admin, [ONE], BUDGET)
    assert [(END._replace(producer=AFTER), [ELSEWHERE])] == admin.written


# --- after a winner's last record


class _Log:
    """Partitions read in scripted chunks; each read may advance the clock."""

    def __init__(self, chunks, *, seconds_a_read=0.0):
        self.chunks = chunks
        self.now = 0.0
        self.reads = []
        self._seconds = seconds_a_read

    def read_partition(self, place, offset, *, timeout, markers_only):
        assert markers_only
        self.reads.append((place, offset, timeout))
        self.now += self._seconds
        chunk = self.chunks.pop(0) if len(self.chunks) > 1 else self.chunks[0]
        if isinstance(chunk, BrokerError):
            raise chunk
        return chunk


def marker(producer_id, epoch, *, committed=True):
    return PartitionChunk((EndMarker(20, producer_id, epoch, committed),), 21)


NOTHING = PartitionChunk((), 15)
WINNER = Winner("p.a.0", PRODUCER, 2, (OffsetRange(PLACE, 5, 9, 5),))


@pytest.mark.parametrize(
    ("chunks", "fate"),
    [
        ([marker(7, 3)], Fate.COMMITTED),
        ([marker(7, 4)], Fate.COMMITTED),
        ([marker(7, 3, committed=False)], Fate.ABORTED),
        ([marker(7, 4, committed=False)], Fate.ABORTED),
        # A marker of another transaction of the same producer: ours has been compacted away.
        ([marker(7, 2)], Fate.UNKNOWN),
        ([marker(7, 5)], Fate.UNKNOWN),
        # Markers of other producers are skipped.
        ([marker(6, 3, committed=False), NOTHING, marker(7, 3)], Fate.COMMITTED),
        ([BrokerError("no", code=29, name="TOPIC_AUTHORIZATION_FAILED")], Fate.UNKNOWN),
    ],
)
def test_the_fate_of_a_winner_is_the_marker_of_its_epoch_or_the_next(chunks, fate):
    """A winner's fate is that of the first marker with its epoch or the next one."""
    assert fate == fate_by_marker(_Log(chunks), WINNER, BUDGET)


def test_the_search_for_a_marker_starts_after_the_last_record():
    """The search starts after the last record and skips ranges without offsets."""
    log = _Log([NOTHING, marker(7, 3)])
    winner = WINNER._replace(
        ranges=(OffsetRange(ELSEWHERE, -1, -1, 5), OffsetRange(PLACE, 5, 9, 5))
    )
    assert Fate.COMMITTED == fate_by_marker(log, winner, BUDGET)
    assert [(PLACE, 10, 15.0), (PLACE, 15, 15.0)] == log.reads


@pytest.mark.parametrize(("left", "timeouts"), [(60.0, [15.0, 8.0, 1.0]), (8.0, [8.0, 1.0])])
def test_the_search_for_a_marker_takes_at_most_15_seconds_per_partition(left, timeouts):
    """The search takes at most 15 seconds per partition, or what is left of the budget."""
    log = _Log([NOTHING], seconds_a_read=7.0)
    assert Fate.UNKNOWN == fate_by_marker(log, WINNER, Budget(lambda: log.now, left))
    assert timeouts == [timeout for _, _, timeout in log.reads]


def test_no_marker_is_searched_for_without_time_left():
    """Without time left, nothing is read and the fate is unknown."""
    log = _Log([marker(7, 3)])
    assert Fate.UNKNOWN == fate_by_marker(log, WINNER, Budget(lambda: 0.0, 0.0))
    assert [] == log.reads


def test_a_budget_ends_exactly_on_time():
    """A budget raises a timeout error that names the step exactly when it ends."""
    now = [10.0]
    budget = Budget.of(lambda: now[0], 5.0)
    assert 5.0 == budget.left("looking")
    now[0] = 14.5
    assert 0.5 == budget.left("looking")
    now[0] = 15.0
    with pytest.raises(KafkaTimeoutError, match=r"^looking timed out$"):
        budget.left("looking")
