"""The transitions of a transactional id that need neither a clock nor a log."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.transactions.transaction_metadata import (
    IllegalTransitionError,
    TransactionMetadata,
    TransactionState,
    is_epoch_exhausted,
)
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
DEAD, FENCE = TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
#: The epoch that no producer is given, since it is reserved for fencing.
LAST_EPOCH = 32_767


def metadata_of(**fields):
    """Return an id whose fields all have different values, except for the given ones."""
    return TransactionMetadata(
        **{
            "transactional_id": "x",
            "producer_id": 7,
            "timeout_ms": 60_000,
            "last_update_ms": 100,
            "producer_epoch": 5,
            "last_producer_epoch": 3,
            "previous_producer_id": 6,
            "next_producer_id": -1,
            "state": EMPTY,
            "partitions": {T0},
            "start_ms": 90,
            "client_version": 1,
        }
        | fields
    )


def changes(metadata, step, *args, **fields):
    """Return the fields that a step has changed."""
    before = asdict(metadata)
    step(*args, **fields)
    return {name: value for name, value in asdict(metadata).items() if before[name] != value}


def test_an_id_begins_without_a_producer():
    """A new id has no epoch and no transaction."""
    metadata = TransactionMetadata(
        transactional_id="x", producer_id=7, timeout_ms=1, last_update_ms=2
    )
    assert {
        "transactional_id": "x",
        "producer_id": 7,
        "timeout_ms": 1,
        "last_update_ms": 2,
        "producer_epoch": -1,
        "last_producer_epoch": -1,
        "previous_producer_id": -1,
        "next_producer_id": -1,
        "state": EMPTY,
        "partitions": set(),
        "start_ms": -1,
        "client_version": 0,
    } == asdict(metadata)
    assert ProducerIdAndEpoch(7, -1) == metadata.identity


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, False), (32_765, False), (32_766, True), (32_767, True)]
)
def test_the_last_epoch_is_left_for_fencing(epoch, expected):
    """A producer with the epoch before the last one has exhausted its epochs."""
    assert expected == is_epoch_exhausted(epoch)
    assert expected == metadata_of(producer_epoch=epoch).epoch_exhausted


@pytest.mark.parametrize(
    ("epoch", "last_epoch", "expected_epoch", "following"),
    [
        (-1, -1, None, (0, -1)),
        (5, 3, None, (6, -1)),
        (5, 4, 5, (6, 5)),
        (5, 4, 4, (5, 4)),
        (-1, -1, 9, (0, -1)),
        (32_765, -1, None, (32_766, -1)),
    ],
)
def test_a_producer_gets_the_next_epoch(epoch, last_epoch, expected_epoch, following):
    """A producer that repeats its request gets the same epoch again."""
    metadata = metadata_of(producer_epoch=epoch, last_producer_epoch=last_epoch)
    metadata.increment_epoch(1_000, expected_epoch, 200)

    assert following == (metadata.producer_epoch, metadata.last_producer_epoch)
    assert (EMPTY, 7, 7, 1_000, 200, set(), -1) == (
        metadata.state,
        metadata.producer_id,
        metadata.previous_producer_id,
        metadata.timeout_ms,
        metadata.last_update_ms,
        metadata.partitions,
        metadata.start_ms,
    )


@pytest.mark.parametrize(
    ("epoch", "expected_epoch", "code"),
    [
        (5, 2, ErrorCode.PRODUCER_FENCED),
        (5, 4, ErrorCode.PRODUCER_FENCED),
        (5, 6, ErrorCode.PRODUCER_FENCED),
        (32_766, 32_766, ErrorCode.UNKNOWN_SERVER_ERROR),
        (32_766, None, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_producer_that_expects_another_epoch_gets_none(epoch, expected_epoch, code):
    """An exhausted epoch is not incremented either, and nothing changes."""
    metadata = metadata_of(producer_epoch=epoch)
    before = asdict(metadata)
    with pytest.raises(RefusedError) as refused:
        metadata.increment_epoch(1_000, expected_epoch, 200)

    assert code == refused.value.error_code
    assert before == asdict(metadata)


@pytest.mark.parametrize(("record_last_epoch", "last_epoch"), [(True, 5), (False, -1)])
def test_a_new_producer_id_begins_with_epoch_0(record_last_epoch, last_epoch):
    """The last epoch of the previous id is kept for a producer that repeats its request."""
    metadata = metadata_of()
    assert {
        "producer_id": 8,
        "previous_producer_id": 7,
        "producer_epoch": 0,
        "last_producer_epoch": last_epoch,
        "timeout_ms": 1_000,
        "last_update_ms": 200,
        "partitions": set(),
        "start_ms": -1,
    } == changes(
        metadata,
        metadata.rotate_producer_id,
        8,
        1_000,
        200,
        record_last_epoch=record_last_epoch,
    )


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (EMPTY, {"state": ONGOING, "start_ms": 200}),
        (COMPLETE_COMMIT, {"state": ONGOING, "start_ms": 200}),
        (ONGOING, {}),
    ],
)
def test_a_transaction_begins_with_its_first_partition(state, expected):
    """Adding further partitions does not change the start time."""
    metadata = metadata_of(state=state)
    assert expected | {
        "previous_producer_id": 7,
        "last_update_ms": 200,
        "partitions": {T0, T1},
        "client_version": 2,
    } == changes(metadata, metadata.add_partitions, frozenset({T1}), 2, 200)


@pytest.mark.parametrize(
    ("epoch", "version", "expected"),
    [
        (5, 0, {}),
        (5, 1, {}),
        (5, 2, {"producer_epoch": 6, "last_producer_epoch": 5}),
        (5, 3, {"producer_epoch": 6, "last_producer_epoch": 5}),
        (32_766, 2, {"producer_epoch": 32_767, "last_producer_epoch": 32_766}),
        (LAST_EPOCH, 2, {"last_producer_epoch": LAST_EPOCH}),
    ],
)
@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_an_end_takes_the_next_epoch_from_version_2_on(epoch, version, expected, state):
    """The epoch stops at the last one; partitions and start time are kept."""
    metadata = metadata_of(state=ONGOING, producer_epoch=epoch, client_version=9)
    assert expected | {
        "state": state,
        "previous_producer_id": 7,
        "last_update_ms": 200,
        "next_producer_id": 8,
        "client_version": version,
    } == changes(metadata, metadata.prepare_end, state, version, 200, next_producer_id=8)


@pytest.mark.parametrize(
    ("state", "start_ms"),
    [(ONGOING, 90), (FENCE, 90), (EMPTY, 200), (COMPLETE_COMMIT, 200), (COMPLETE_ABORT, 200)],
)
def test_the_end_of_nothing_begins_now(state, start_ms):
    """An abort without a transaction starts now, and has no new producer id."""
    metadata = metadata_of(state=state, next_producer_id=9)
    metadata.prepare_end(PREPARE_ABORT, 2, 200)

    assert (start_ms, -1) == (metadata.start_ms, metadata.next_producer_id)


@pytest.mark.parametrize(
    ("version", "next_producer_id", "expected"),
    [
        (2, -1, (7, 7, 5)),
        (2, 0, (0, 7, 0)),
        (2, 8, (8, 7, 0)),
        (3, 8, (8, 7, 0)),
        (1, 8, (7, 7, 5)),
        (1, -1, (7, 7, 5)),
    ],
)
@pytest.mark.parametrize(
    ("state", "done"), [(PREPARE_COMMIT, COMPLETE_COMMIT), (PREPARE_ABORT, COMPLETE_ABORT)]
)
def test_a_completed_end_may_bring_a_new_producer_id(
    version, next_producer_id, expected, state, done
):
    """This requires version 2 and a new id, which the producer gets before the completion."""
    metadata = metadata_of(state=state, client_version=version, next_producer_id=next_producer_id)
    producer_id, _, epoch = expected
    assert ProducerIdAndEpoch(producer_id, epoch) == metadata.identity_after_completion
    metadata.complete(300)

    assert expected == (
        metadata.producer_id,
        metadata.previous_producer_id,
        metadata.producer_epoch,
    )
    assert (done, 300, -1, set()) == (
        metadata.state,
        metadata.last_update_ms,
        metadata.next_producer_id,
        metadata.partitions,
    )
    assert metadata.identity == metadata.identity_after_completion


@pytest.mark.parametrize(
    ("epoch", "fencing"), [(5, 6), (32_766, LAST_EPOCH), (LAST_EPOCH, LAST_EPOCH)]
)
def test_fencing_takes_any_epoch_up_to_the_last(epoch, fencing):
    """All earlier epochs are fenced."""
    metadata = metadata_of(state=ONGOING, producer_epoch=epoch)
    metadata.fence()
    assert (FENCE, epoch, 3) == (
        metadata.state,
        metadata.producer_epoch,
        metadata.last_producer_epoch,
    )
    metadata.bump_fencing_epoch()
    assert (fencing, -1) == (metadata.producer_epoch, metadata.last_producer_epoch)


def test_an_id_that_expires_has_no_partitions():
    """The producer id is kept until the id is removed."""
    metadata = metadata_of()
    assert {"state": DEAD, "partitions": set()} == changes(metadata, metadata.expire)


@pytest.mark.parametrize("before", TransactionState)
@pytest.mark.parametrize(
    ("step", "allowed"),
    [
        (lambda m: m.increment_epoch(1, None, 2), {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
        (
            lambda m: m.rotate_producer_id(1, 2, 3, record_last_epoch=False),
            {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
        ),
        (
            lambda m: m.add_partitions(frozenset(), 2, 3),
            {EMPTY, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT},
        ),
        (lambda m: m.fence(), {ONGOING}),
        (lambda m: m.prepare_end(PREPARE_COMMIT, 2, 3), {ONGOING}),
        (
            lambda m: m.prepare_end(PREPARE_ABORT, 2, 3),
            {EMPTY, ONGOING, FENCE, COMPLETE_COMMIT, COMPLETE_ABORT},
        ),
        (lambda m: m.complete(3), {PREPARE_COMMIT, PREPARE_ABORT}),
        (lambda m: m.expire(), {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}),
    ],
    ids=["increment", "rotate", "add", "fence", "commit", "abort", "complete", "expire"],
)
def test_a_step_that_kafka_does_not_take_changes_nothing(before, step, allowed):
    """An illegal transition is a bug of the coordinator and raises an error."""
    metadata = metadata_of(state=before)
    untouched = asdict(metadata)
    if before in allowed:
        step(metadata)
        assert untouched != asdict(metadata)
    else:
        with pytest.raises(IllegalTransitionError, match=f"x cannot go from {before} to "):
            step(metadata)
        assert untouched == asdict(metadata)
