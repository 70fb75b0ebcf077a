"""The report of `python -m spark_kafka_sink transactions` on a prefix."""

from __future__ import annotations

import pytest

from spark_kafka_sink.admin.transaction_values import TransactionDescription
from spark_kafka_sink.display import printable
from spark_kafka_sink.exactly_once.errors import (
    CommitPendingError,
    ExactlyOnceError,
    LedgerFencedError,
    LedgerFormatError,
    LedgerOutcomeUnknownError,
    MixedError,
    OvertakenError,
    RolledBackError,
    VoidError,
    WinnerLostError,
)
from spark_kafka_sink.exactly_once.ledger_records import (
    Claim,
    OffsetRange,
    Winner,
    WriteRecord,
)
from spark_kafka_sink.exactly_once.operations import (
    HeldBack,
    Holder,
    PrefixReport,
    open_seconds,
)
from spark_kafka_sink.exactly_once.transactions_report import (
    as_text,
    held_back_json,
    report_json,
)
from spark_kafka_sink.exactly_once.transitions import Fate, Write, WriteState
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER = ProducerIdAndEpoch(7, 3)
NOW = 1_760_000_065_000
CLAIMED = Claim(1_760_000_000_000, 1_760_000_000_999, "host, process 5")
WINNER = Winner("p.a.0", PRODUCER, 2, (OffsetRange(PLACE, 5, 9, 5),))
NOBODY = "these writes hold back no read_committed consumers"


def transaction(**changes):
    return TransactionDescription(
        **{
            "transactional_id": "p.a.0",
            "state": "Ongoing",
            "producer": PRODUCER,
            "timeout_ms": 900_000,
            "start_time_ms": NOW - 61_000,
            "partitions": (OTHER, PLACE),
            **changes,
        }
    )


def record(state, *winners):
    return WriteRecord(
        write=Write(5, 3, state, 4), updated_at_ms=1_760_000_001_000, winners=winners
    )


def report(writes=None, claim=CLAIMED, open_transactions=()):
    is_known = bool(writes) or claim is not None
    return PrefixReport("p", is_known, claim, writes or {}, (), tuple(open_transactions))


def said(*reports, held=(), **settings):
    return as_text(reports, held, now_ms=NOW, **{"details": False, **settings})


def test_an_empty_ledger_is_reported_as_such():
    """An empty ledger is reported as such, with the topics inspected for others' transactions."""
    nobody = f"{NOBODY}; --topic checks all transactions in a topic"
    assert ["no exactly-once writes are recorded", nobody] == said()
    assert f"{NOBODY}, nor do other transactions in t, u" == said(topics=["t", "u"])[-1]


def test_a_prefix_is_shown_with_its_claim_writes_and_open_transactions():
    """A prefix is shown with its claim, writes and open transactions, with times in UTC."""
    writes = {"q": record(WriteState.DONE), "r": record(WriteState.DECIDED, WINNER, WINNER)}
    unknown = transaction(transactional_id="p.b.0", start_time_ms=None, partitions=())
    assert [
        "prefix p: generation 1760000000000, claimed by host, process 5 at 2025-10-09T08:53:20Z",
        "  write q: batch 5 is done (since 2025-10-09T08:53:21Z)",
        (
            "  write r: batch 5 is decided, with 2 transactions to be committed (since "
            "2025-10-09T08:53:21Z)"
        ),
        "  open transactions: 2",
        "    p.a.0 (producer id 7, epoch 3), open for 61 s of at most 900 s, in t-0, t-1",
        (
            "    p.b.0 (producer id 7, epoch 3), open for an unknown time of at most 900 s, "
            "in no "
            "partition yet"
        ),
    ] == said(report(writes, open_transactions=[transaction(), unknown]))[:-1]


def test_details_list_each_transaction_with_its_fate():
    """Details list each transaction with its fate, or as decided if it has none."""
    aborted = WINNER._replace(fate=Fate.ABORTED)
    lines = said(report({"r": record(WriteState.DECIDED, WINNER, aborted)}), details=True)
    assert [
        "    p.a.0 (producer id 7, epoch 3): decided; t-0 offsets 5 to 9",
        "    p.a.0 (producer id 7, epoch 3): aborted; t-0 offsets 5 to 9",
        "  no open transactions",
    ] == lines[2:5]


def test_a_prefix_is_unknown_only_without_ledger_entries():
    """A prefix without a claim is reported as unknown only if the ledger has no entries of it."""
    unknown = "prefix p: not claimed; the ledger has no entries of this prefix (`list` shows"
    assert said(report(claim=None))[0].startswith(unknown)
    assert "prefix p: not claimed" == said(report({"q": record(WriteState.DONE)}, claim=None))[0]


def test_a_held_back_partition_is_shown_with_its_producers():
    """A held-back partition is shown with the producers that hold it back, as text and as JSON."""
    holders = (Holder(PRODUCER, 6, "p.a.0", 61.4), Holder(PRODUCER, 8, None, None))
    held = [HeldBack(PLACE, 6, 10, holders), HeldBack(OTHER, 3, 4, ())]
    assert [
        "read_committed consumers are held back in 2 partitions:",
        (
            "  t-0 at offset 6 of 10 (4 behind) by p.a.0 (producer id 7, epoch 3), open for 61 s, "
            "a transactional id that no coordinator lists for this user (producer id 7, epoch 3), "
            "open for an unknown time"
        ),
        "  t-1 at offset 3 of 4 (1 behind) by a transaction that has just ended (run this again)",
    ] == said(held=held)[1:]
    assert {
        "topic": "t",
        "partition": 0,
        "last_stable_offset": 6,
        "high_watermark": 10,
        "holders": [
            {
                "transactional_id": name,
                "producer_id": 7,
                "producer_epoch": 3,
                "start_offset": start,
                "open_seconds": seconds,
            }
            for name, start, seconds in (("p.a.0", 6, 61.4), (None, 8, None))
        ],
    } == held_back_json(held[0])


def test_a_single_partition_is_counted_in_the_singular():
    """The heading of one held-back partition does not say "partitions"."""
    lines = said(held=[HeldBack(OTHER, 3, 4, ())])

    assert "read_committed consumers are held back in 1 partition:" == lines[1]


def test_a_json_report_has_every_number():
    """The JSON report has every number, with units in the names and null for unknown values."""
    writes = {"r": record(WriteState.MIXED, WINNER, WINNER._replace(fate=Fate.COMMITTED))}
    made = report_json(report(writes, open_transactions=[transaction()]), now_ms=NOW)
    place = {"topic": "t", "partition": 0}
    winner = {
        "transactional_id": "p.a.0",
        "producer_id": 7,
        "producer_epoch": 3,
        "ranges": [{**place, "first_offset": 5, "last_offset": 9, "records": 5}],
    }
    assert {
        "prefix": "p",
        "claim": {
            "generation": 1_760_000_000_000,
            "claimed_at_ms": 1_760_000_000_999,
            "claimed_by": "host, process 5",
        },
        "writes": [
            {
                "write_id": "r",
                "batch_id": 5,
                "generation": 3,
                "state": "mixed",
                "updated_at_ms": 1_760_000_001_000,
                "winners": [{**winner, "fate": None}, {**winner, "fate": "committed"}],
            }
        ],
        "open_transactions": [
            {
                "transactional_id": "p.a.0",
                "producer_id": 7,
                "producer_epoch": 3,
                "open_seconds": 61.0,
                "timeout_ms": 900_000,
                "partitions": [place, {"topic": "t", "partition": 1}],
            }
        ],
    } == made
    assert report_json(report(claim=None), now_ms=NOW)["claim"] is None


@pytest.mark.parametrize(
    ("start_time_ms", "expected"),
    [(None, None), (NOW, 0.0), (NOW - 1_500, 1.5), (NOW + 1, 0.0), (NOW + 5_000, 0.0)],
)
def test_the_open_time_of_a_transaction_is_never_negative(start_time_ms, expected):
    """The open time is never negative, even if the coordinator's clock is ahead."""
    assert expected == open_seconds(transaction(start_time_ms=start_time_ms), NOW)


@pytest.mark.parametrize("time_ms", ["soon", 10**18, None])
def test_an_invalid_time_is_a_ledger_format_error(time_ms):
    """An invalid time in the ledger is a format error."""
    with pytest.raises(LedgerFormatError, match="instead of milliseconds since 1970"):
        said(report(claim=CLAIMED._replace(claimed_at_ms=time_ms)))


def test_control_characters_are_escaped():
    """Control characters are escaped, and all other text is unchanged."""
    assert "häuser" == printable("häuser")
    assert r"a\x1b[2J\nb\u202eä" == printable("a\x1b[2J\nb\u202eä")


@pytest.mark.parametrize(
    ("kind", "retriable"),
    [
        (LedgerFencedError, True),
        (LedgerOutcomeUnknownError, True),
        *(
            (kind, False)
            for kind in (
                ExactlyOnceError,
                LedgerFormatError,
                OvertakenError,
                RolledBackError,
                WinnerLostError,
                VoidError,
                MixedError,
                CommitPendingError,
            )
        ),
    ],
)
def test_only_errors_of_concurrent_ledger_writes_are_retriable(kind, retriable):
    """Only the errors of concurrent ledger writes are retriable."""
    assert retriable is kind("x").retriable
