"""How brokers describe transactions to an administrator and answer requests to end them."""

from __future__ import annotations

import pytest

from spark_kafka_sink.admin.records import KeyValue
from spark_kafka_sink.admin.transaction_values import EndAnswer, EndOutcome, TransactionEnd
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.exactly_once.exactly_once_world import TIMEOUT


@pytest.fixture
def name(world):
    """Return a transactional id for this test."""
    return f"{world.prefix}.somebody"


def _init(world, name, *, timeout_ms=60_000):
    return world.admin.init_producer_id(name, transaction_timeout_ms=timeout_ms, timeout=TIMEOUT)


def _write(world, name, producer):
    now_ms = int(world.clock() * 1000)
    return world.admin.write_to_transaction(
        name, producer, world.places[0], [KeyValue(b"k", b"v")], now_ms=now_ms, timeout=TIMEOUT
    )


def _open(world, name, **settings):
    producer = _init(world, name, **settings)
    return producer, _write(world, name, producer)


def _end(world, name, producer, *, committed=True, rules=None):
    end = TransactionEnd(name, producer, committed, rules)
    return world.admin.end_transaction(end, timeout=TIMEOUT)


def _describe(world, name):
    return world.admin.describe_transactions([name], timeout=TIMEOUT)[name]


def test_an_open_transaction_is_described(world, name):
    """An open transaction is described with its producer, start time, timeout and partitions."""
    before_ms = int(world.clock() * 1000)
    producer, _ = _open(world, name)
    found = _describe(world, name)
    assert (True, producer, 60_000) == (found.is_open, found.producer, found.timeout_ms)
    assert (world.places[0],) == found.partitions
    assert before_ms <= found.start_time_ms <= int(world.clock() * 1000)


def test_an_id_without_a_transaction_is_not_described_as_open(world, name):
    """An id that is unknown, has no transaction or has ended it is not described as open."""
    assert _describe(world, name) is None
    producer = _init(world, name)
    assert (False, None) == (_describe(world, name).is_open, _describe(world, name).start_time_ms)
    _end(world, name, producer, rules=_write(world, name, producer))
    assert not _describe(world, name).is_open


def test_transactions_are_listed_by_state(world, name):
    """Transactions are listed by state and by the caller's own filter."""
    producer, rules = _open(world, name)

    def listed(*states):
        return world.admin.list_transactions(
            lambda found: found == name, states=states, pattern=f"{name}.*", timeout=TIMEOUT
        )

    assert [(name, producer.producer_id, "Ongoing")] == listed("Ongoing")
    assert [] == listed("CompleteCommit")
    _end(world, name, producer, rules=rules)
    assert [] == listed("Ongoing")


def test_a_repeated_commit_is_acknowledged_again(world, name):
    """A repeated commit under the transaction's original version is acknowledged again."""
    producer, rules = _open(world, name)
    for _ in range(3):
        assert EndOutcome.ENDED is _end(world, name, producer, rules=rules).outcome


@pytest.mark.parametrize("first", [True, False], ids=["committed", "aborted"])
def test_ending_a_transaction_the_opposite_way_is_rejected(world, name, first):
    """Ending a transaction the opposite way is refused with INVALID_TXN_STATE."""
    producer, rules = _open(world, name)
    _end(world, name, producer, committed=first, rules=rules)
    answer = _end(world, name, producer, committed=not first, rules=rules)
    assert EndAnswer(EndOutcome.REFUSED, ErrorCode.INVALID_TXN_STATE) == answer


def test_an_end_txn_with_an_old_epoch_is_rejected(world, name):
    """EndTxn with an old epoch is refused and leaves the id's new transaction open."""
    old, rules = _open(world, name)
    new, _ = _open(world, name)
    assert EndOutcome.REFUSED is _end(world, name, old, rules=rules).outcome
    assert (new, True) == (_describe(world, name).producer, _describe(world, name).is_open)
    _end(world, name, new, committed=False)


def test_an_end_txn_for_an_unknown_id_is_rejected(world, name):
    """EndTxn for an unknown transactional id is refused."""
    answer = _end(world, name, ProducerIdAndEpoch(4711, 0))
    assert EndOutcome.REFUSED is answer.outcome


def test_a_transaction_that_timed_out_cannot_be_committed(world, name):
    """A commit after the timeout is refused, with an error code that depends on the version."""
    producer, rules = _open(world, name, timeout_ms=1_000)
    world.wait_for_time_out(name, 1_000)
    answer = _end(world, name, producer, rules=rules)
    assert EndOutcome.REFUSED is answer.outcome
    assert answer.error_code in {ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED}


def test_the_last_stable_offset_is_the_start_of_the_oldest_transaction(world, name):
    """The last stable offset is the start of the oldest open transaction, which is listed."""
    world.finish(0)
    world.visible()
    place = world.places[0]
    end = world.admin.end_offset(place, timeout=TIMEOUT)
    assert end == world.admin.last_stable_offset(place, timeout=TIMEOUT)
    assert [] == world.admin.open_producers(place, timeout=TIMEOUT)
    producer, _ = _open(world, name)
    assert end == world.admin.last_stable_offset(place, timeout=TIMEOUT)
    [found] = world.admin.open_producers(place, timeout=TIMEOUT)
    assert (producer, end) == (found.producer, found.start_offset)
