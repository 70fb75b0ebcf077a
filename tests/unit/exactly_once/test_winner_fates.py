"""The conclusions from the coordinators' answers about winners and losers."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from spark_kafka_sink.admin.records import EndMarker, PartitionChunk
from spark_kafka_sink.admin.transaction_values import EndAnswer, EndOutcome, TransactionEnd
from spark_kafka_sink.errors import BrokerError, KafkaError
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.errors import CommitPendingError
from spark_kafka_sink.exactly_once.ledger import Budget
from spark_kafka_sink.exactly_once.ledger_records import OffsetRange, Winner, WriteRecord
from spark_kafka_sink.exactly_once.markers import Ended
from spark_kafka_sink.exactly_once.recovery import (
    OpenTransaction,
    abort_exactly,
    fate_by_marker,
    winner_fates,
    with_fates,
)
from spark_kafka_sink.exactly_once.transitions import Fate, Write, WriteState
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

PLACE, ELSEWHERE = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER, AFTER = ProducerIdAndEpoch(7, 3), ProducerIdAndEpoch(7, 4)
ONE = Winner("p.a.0", PRODUCER, 2, (OffsetRange(PLACE, 5, 9, 5),))
OTHER = Winner("p.b.0", ProducerIdAndEpoch(8, 0), 1, (OffsetRange(ELSEWHERE, 0, 2, 3),))
ENDS = [
    TransactionEnd("p.a.0", PRODUCER, True, 2),
    TransactionEnd("p.b.0", ProducerIdAndEpoch(8, 0), True, 1),
]
BUDGET = Budget(lambda: 0.0, 60.0)
ENDED = EndAnswer(EndOutcome.ENDED)
REFUSED = EndAnswer(EndOutcome.REFUSED)
NO_RIGHT = BrokerError("no", code=29, name="TOPIC_AUTHORIZATION_FAILED")


class _Admin:
    """An admin client with scripted answers, which by default finds an abort marker."""

    def __init__(self, *answers, chunks=()):
        self.answers = list(answers)
        self.chunks = list(chunks)
        self.ends = []
        self.is_away = False

    def end_transactions(self, ends, *, timeout):
        self.ends.append(list(ends))
        return self.answers.pop(0)

    def read_partition(self, _place, _offset, *, timeout, markers_only):
        chunk = self.chunks.pop(0) if self.chunks else _marker(committed=False)
        if isinstance(chunk, KafkaError):
            raise chunk
        return chunk

    def end_offset(self, _place, *, timeout):
        if self.is_away:
            raise KafkaError("nobody there")
        return 12


def _marker(*, committed):
    return PartitionChunk((EndMarker(20, 7, 3, committed),), 21)


@pytest.fixture(autouse=True)
def looked_for(monkeypatch):
    """Find all markers but those of the ids in `lost`; record what was searched for."""
    made = {"ended": [], "lost": ()}

    def ensure_markers(_admin, ended, _budget):
        made["ended"] += ended
        return [one for one in ended if one.end.transactional_id in made["lost"]]

    monkeypatch.setattr(recovery, "ensure_markers", ensure_markers)
    return made


def test_winners_are_committed_by_producer_and_transaction_version(looked_for):
    """Winners are committed by producer and version, and their markers are checked."""
    admin = _Admin([ENDED, ENDED._replace(producer=ProducerIdAndEpoch(9, 1))])
    assert [Fate.COMMITTED] * 2 == winner_fates(admin, [ONE, OTHER], BUDGET)
    assert [ENDS] == admin.ends
    assert [
        Ended(ENDS[0], AFTER, {PLACE: 10}),
        Ended(ENDS[1], ProducerIdAndEpoch(9, 1), {ELSEWHERE: 3}),
    ] == looked_for["ended"]


def test_an_unanswered_winner_leaves_the_batch_pending():
    """The pending error counts the unanswered winners and has the first error as its cause."""
    first, second = KafkaError("the first"), KafkaError("the second")
    with pytest.raises(CommitPendingError, match=r"but 2 of its 3 .*: the first$") as caught:
        winner_fates(_Admin([first, ENDED, second]), [ONE, OTHER, ONE], BUDGET)
    assert first is caught.value.__cause__


def test_a_winner_whose_marker_is_lost_for_good_has_an_unknown_fate(looked_for):
    """Only the winner whose marker is lost for good has an unknown fate."""
    looked_for["lost"] = ("p.a.0",)
    fates = winner_fates(_Admin([ENDED, ENDED]), [ONE, OTHER], BUDGET)
    assert [Fate.UNKNOWN, Fate.COMMITTED] == fates


@pytest.mark.parametrize(
    ("answer", "fate"),
    [(ENDED, Fate.COMMITTED), (REFUSED, Fate.ABORTED), (KafkaError("no"), Fate.ABORTED)],
)
def test_a_rejected_commit_is_tried_with_the_next_epoch(answer, fate):
    """A refused commit is tried with the next epoch, and then decided by the first marker."""
    admin = _Admin([REFUSED], [answer])
    assert [fate] == winner_fates(admin, [ONE], BUDGET)
    assert [ENDS[0]._replace(producer=AFTER, transaction_version=0)] == admin.ends[1]


def test_a_rejected_commit_under_tv1_has_no_next_epoch():
    """A commit refused under TV1 is decided by the marker alone."""
    admin = _Admin([REFUSED], chunks=[_marker(committed=True)])
    assert [Fate.COMMITTED] == winner_fates(admin, [ONE._replace(transaction_version=1)], BUDGET)
    assert 1 == len(admin.ends)


def test_an_unreadable_partition_is_skipped():
    """If a partition cannot be read, the marker is searched for in the next one."""
    winner = ONE._replace(ranges=(*ONE.ranges, *OTHER.ranges))
    admin = _Admin(chunks=[NO_RIGHT, _marker(committed=True)])
    assert Fate.COMMITTED is fate_by_marker(admin, winner, BUDGET)


def test_each_winner_has_one_fate():
    """A different number of answers or fates than winners raises an error."""
    mixed = WriteRecord(
        write=Write(5, 3, WriteState.DECIDED, 4), updated_at_ms=1, winners=(ONE, OTHER)
    )
    with pytest.raises(ValueError, match="zip"):
        winner_fates(_Admin([ENDED]), [ONE, OTHER], BUDGET)
    with pytest.raises(ValueError, match="zip"):
        with_fates(mixed, [Fate.COMMITTED, Fate.ABORTED, Fate.ABORTED], now_ms=2)
    noted = with_fates(mixed, [Fate.COMMITTED, Fate.ABORTED], now_ms=2)
    assert [Fate.COMMITTED, Fate.ABORTED] == [winner.fate for winner in noted.winners]
    assert replace(noted, winners=()) == WriteRecord(
        write=Write(5, 3, WriteState.MIXED, 4), updated_at_ms=2
    )
    with pytest.raises(ValueError, match="zip"):
        abort_exactly(_Admin([]), [OpenTransaction("p.a.0", PRODUCER)], BUDGET)


def test_losers_that_cannot_be_aborted_are_returned_and_logged(looked_for, caplog):
    """A loser that cannot be aborted is returned and logged, and so is a lost marker."""
    looked_for["lost"] = ("p.a.0",)
    losers = [OpenTransaction("p.a.0", PRODUCER, (PLACE,)), OpenTransaction("p.b.0", AFTER)]
    error = KafkaError("nobody there")
    admin = _Admin([ENDED, error])
    with caplog.at_level(logging.WARNING):
        assert {losers[1]: error} == abort_exactly(admin, losers, BUDGET)
    assert [False, False] == [end.committed for end in admin.ends[0]]
    assert {PLACE: 12} == looked_for["ended"][0].written
    assert "could not abort transaction p.b.0; it remains open" in caplog.messages[0]
    assert (
        "transaction p.a.0 has ended, but some of its records are neither committed nor aborted"
        == caplog.messages[1]
    )


def test_an_abort_succeeds_even_if_its_markers_cannot_be_checked(looked_for, caplog):
    """An abort whose markers cannot be checked succeeds with a warning."""
    admin = _Admin([ENDED])
    admin.is_away = True
    with caplog.at_level(logging.WARNING):
        assert {} == abort_exactly(admin, [OpenTransaction("p.a.0", PRODUCER, (PLACE,))], BUDGET)
    assert ["could not verify the markers of aborted transactions: nobody there"] == (
        caplog.messages
    )
    assert [] == looked_for["ended"]
