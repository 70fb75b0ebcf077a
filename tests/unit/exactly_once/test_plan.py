"""The rules that a plan sets for the driver and its tasks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_kafka_sink.admin.transaction_values import TransactionDescription
from spark_kafka_sink.errors import BrokerError, KafkaError
from spark_kafka_sink.exactly_once.errors import (
    ExactlyOnceError,
    MixedError,
    OvertakenError,
    RolledBackError,
    WinnerLostError,
)
from spark_kafka_sink.exactly_once.ledger_records import (
    Claim,
    OffsetRange,
    Winner,
    WriteRecord,
)
from spark_kafka_sink.exactly_once.plan import (
    Plan,
    Prepared,
    check_open,
    is_ended_by_others,
    is_ours,
    refusal,
    winners_of,
    writes_for_plan,
)
from spark_kafka_sink.exactly_once.transitions import Verdict, Write, WriteState
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

PRODUCER = ProducerIdAndEpoch(7, 3)
RANGES = (OffsetRange(TopicPartition("t", 0), 5, 9, 5),)
WINNER = Winner("p.a.0", PRODUCER, 2, RANGES)
OTHER = Winner("p.b.0", PRODUCER, 2, RANGES)
#: When the driver planned, and when it decides, in milliseconds.
PLANNED, NOW = 1_000_000, 1_040_000


def found(*, state="Ongoing", producer=PRODUCER, timeout_ms=60_000, start_time_ms=PLANNED):
    return TransactionDescription(
        transactional_id="p.a.0",
        state=state,
        producer=producer,
        timeout_ms=timeout_ms,
        start_time_ms=start_time_ms,
        partitions=(),
    )


def state_of(writes=None, claim=None):
    return SimpleNamespace(writes=writes or {}, claim=claim, streams=lambda: {"s": STREAM})


def record(state, *, batch_id=5, generation=3, winners=(WINNER,)):
    return WriteRecord(
        write=Write(batch_id, generation, state, batch_id - 1), updated_at_ms=1, winners=winners
    )


STREAM = record(WriteState.DONE)
PLAN = Plan("p", 3, PLANNED, {})


@pytest.mark.parametrize(
    ("timeout_ms", "start_time_ms", "left"),
    [
        # A tenth of the timeout is required: 6 of 60 seconds, and 20 are left.
        (60_000, PLANNED, None),
        (60_000, NOW, None),
        (40_000, PLANNED + 4_000, None),
        (40_000, PLANNED + 3_999, 4),
        (40_000, PLANNED, 0),
        # The plan's time stands in for a start that is earlier, in the future, or unknown.
        (44_445, PLANNED - 1, None),
        (44_444, PLANNED - 1, 4),
        (44_444, NOW + 1, 4),
        (44_444, None, 4),
        (44_444, NOW, None),
    ],
)
def test_a_winner_must_have_time_to_spare(timeout_ms, start_time_ms, left):
    """A winner needs a tenth of its timeout left, and a doubtful start counts as the plan's."""
    transaction = found(timeout_ms=timeout_ms, start_time_ms=start_time_ms)
    if left is None:
        check_open(WINNER, transaction, PLANNED, NOW)
        return
    with pytest.raises(WinnerLostError, match=f"the transaction of p.a.0 times out in {left} s, "):
        check_open(WINNER, transaction, PLANNED, NOW)


@pytest.mark.parametrize(
    ("age_ms", "is_enough"), [(939_999, True), (940_000, True), (940_001, False)]
)
def test_a_long_timeout_needs_a_minute_to_spare(age_ms, is_enough):
    """A winner with a long timeout needs no more than a minute left."""
    now = PLANNED + age_ms
    if is_enough:
        check_open(WINNER, found(timeout_ms=1_000_000), PLANNED, now)
        return
    with pytest.raises(WinnerLostError, match="times out in 60 s"):
        check_open(WINNER, found(timeout_ms=1_000_000), PLANNED, now)


@pytest.mark.parametrize(
    ("transaction", "state"),
    [
        (None, "unknown"),
        (found(state="CompleteAbort"), f"CompleteAbort, {PRODUCER}"),
        (found(producer=ProducerIdAndEpoch(7, 4)), f"Ongoing, {ProducerIdAndEpoch(7, 4)}"),
    ],
)
def test_a_winner_must_be_open(transaction, state):
    """A winner whose transaction is unknown, ended or of another epoch is refused."""
    with pytest.raises(WinnerLostError) as caught:
        check_open(WINNER, transaction, PLANNED, NOW)
    assert f"the transaction of p.a.0 ({PRODUCER}) is no longer open (it is {state})" in (
        str(caught.value)
    )


def test_winners_are_the_transactions_of_this_plan_that_have_rows():
    """Winners are the transactions with rows, all of this plan and with distinct ids."""
    empty = WINNER._replace(transactional_id="p.c.0", ranges=())
    prepared = [Prepared(3, WINNER), Prepared(3, empty), Prepared(3, OTHER), Prepared(3, empty)]
    assert (WINNER, OTHER) == winners_of(PLAN, prepared)
    for generation in (2, 4):
        with pytest.raises(OvertakenError, match=f"wrote under generation {generation}, but this"):
            winners_of(PLAN, [Prepared(3, WINNER), Prepared(generation, OTHER)])
    with pytest.raises(ExactlyOnceError, match="two tasks used the same transactional id"):
        winners_of(PLAN, [Prepared(3, WINNER), Prepared(3, WINNER)])


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (record(WriteState.DECIDED), True),
        (record(WriteState.DECIDED, winners=(OTHER,)), False),
        (record(WriteState.DECIDED, generation=2), False),
        (record(WriteState.DONE, winners=()), True),
        (record(WriteState.DONE, generation=4), False),
        (record(WriteState.VOID, winners=()), False),
    ],
)
def test_a_decision_is_ours_by_its_generation_and_winners(known, expected):
    """A decision is the driver's own by generation and winners, or by generation once done."""
    assert expected == is_ours(known, PLAN, (WINNER,))


def test_a_plan_has_the_state_of_its_write_or_of_all_streams():
    """A plan has its own write or all streams, and rolled-forward records take precedence."""
    old, new = record(WriteState.DECIDED), record(WriteState.DONE)
    state = state_of({"w": old, "s": STREAM})
    assert {"w": old} == writes_for_plan(state, {}, "w")
    assert {"w": new} == writes_for_plan(state, {"w": new, "s": new}, "w")
    assert {} == writes_for_plan(state, {"w": new}, "unknown")
    assert {"s": STREAM} == writes_for_plan(state, {"w": new}, None)
    assert {"s": new} == writes_for_plan(state, {"s": new}, None)


def test_a_batch_is_written_once_and_in_order():
    """A new batch is written, a replay is skipped, and an older batch or mixed write is refused."""
    writes = {"w": STREAM.write, "m": Write(5, 3, WriteState.MIXED, 4)}
    plan = Plan("p", 3, PLANNED, writes, {"m": "in part"})
    assert (True, False, True) == (
        plan.must_write("w", 6),
        plan.must_write("w", 5),
        plan.must_write("new", 0),
    )
    with pytest.raises(
        RolledBackError, match="batch 4 of 'w' is not written, since batch 5 is already"
    ):
        plan.must_write("w", 4)
    with pytest.raises(MixedError, match=r"^in part$"):
        plan.must_write("m", 6)


MIXED = record(WriteState.MIXED)
TAKEN_OVER = "another driver has taken over: host claimed generation 9, and this driver has 3"


@pytest.mark.parametrize(
    ("says", "writes", "claim", "kind", "sentence"),
    [
        (Verdict.MIXED, {"w": MIXED}, None, MixedError, "batch 5 of 'w' is only partly visible"),
        (
            Verdict.MIXED,
            {},
            None,
            OvertakenError,
            "the ledger no longer has a claim of this prefix",
        ),
        (Verdict.ROLLED_BACK, {"w": STREAM}, None, RolledBackError, "since batch 5 is already"),
        (
            Verdict.ROLLED_BACK,
            {},
            None,
            RolledBackError,
            "since a later batch is already committed",
        ),
        (Verdict.OVERTAKEN, {"w": MIXED}, 9, OvertakenError, f"{TAKEN_OVER}. Give each query"),
        (Verdict.DECIDED, {"w": STREAM}, 9, OvertakenError, f"{TAKEN_OVER}. Another driver has"),
    ],
)
def test_the_error_of_a_rejected_decision_says_why(says, writes, claim, kind, sentence):
    """Each verdict has its error, which names the new owner of the prefix or the ledger's state."""
    claim = None if claim is None else Claim(claim, 1, "host")
    error = refusal(says, PLAN, "w", 4, state_of(writes, claim))
    assert kind is type(error)
    assert sentence in str(error)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("INVALID_PRODUCER_EPOCH", True),
        ("PRODUCER_FENCED", True),
        ("INVALID_TXN_STATE", True),
        ("TRANSACTION_ABORTABLE", True),
        ("NOT_LEADER_OR_FOLLOWER", False),
    ],
)
def test_a_broker_error_shows_that_others_ended_the_transaction(name, expected):
    """A broker error anywhere in the causes shows that a task's transaction was ended by others."""
    error = KafkaError("a row was not delivered")
    error.__cause__ = KafkaError("the batch failed")
    error.__cause__.__cause__ = BrokerError("what the broker said", code=1, name=name)
    assert expected == is_ended_by_others(error)
    assert not is_ended_by_others(None)
