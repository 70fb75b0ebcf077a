"""How brokers describe transactions to an administrator and answer requests to end them."""

from __future__ import annotations

import pytest

from spark_kafka_sink.admin.record_batches import KeyValue
from spark_kafka_sink.admin.transaction_values import EndAnswer, EndOutcome, TransactionEnd
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.exactly_once.exactly_once_world import TIMEOUT


@pytest.fixture
def name(here):
    """Return a transactional id for this test."""
    return f"{here.prefix}.somebody"


def _init(here, name, *, timeout_ms=60_000):
    return here.admin.init_producer_id(name, transaction_timeout_ms=timeout_ms, timeout=TIMEOUT)


def _write(here, name, producer):
    now_ms = int(here.clock() * 1000)
    return here.admin.write_to_transaction(
        name, producer, here.places[0], [KeyValue(b"k", b"v")], now_ms=now_ms, timeout=TIMEOUT
    )


def _open(here, name, **settings):
    producer = _init(here, name, **settings)
    return producer, _write(here, name, producer)


def _end(here, name, producer, *, committed=True, rules=None):
    end = TransactionEnd(name, producer, committed, rules)
    return here.admin.end_transaction(end, timeout=TIMEOUT)


def _describe(here, name):
    return here.admin.describe_transactions([name], timeout=TIMEOUT)[name]


def test_an_open_transaction_is_described(here, name):
    """An open transaction is described with its producer, start time, timeout and partitions."""
    before_ms = int(here.clock() * 1000)
    producer, _ = _open(here, name)
    found = _describe(here, name)
    assert (True, producer, 60_000) == (found.is_open, found.producer, found.timeout_ms)
    assert (here.places[0],) == found.partitions
    assert before_ms <= found.start_time_ms <= int(here.clock() * 1000)


def test_an_id_without_a_transaction_is_not_described_as_open(here, name):
    """An id that is unknown, has no transaction or has ended it is not described as open."""
    assert _describe(here, name) is None
    producer = _init(here, name)
    assert (False, None) == (_describe(here, name).is_open, _describe(here, name).start_time_ms)
    _end(here, name, producer, rules=_write(here, name, producer))
    assert not _describe(here, name).is_open


def test_transactions_are_listed_by_state(here, name):
    """Transactions are listed by state and by the caller's own filter."""
    producer, rules = _open(here, name)

    def listed(*states):
        return here.admin.list_transactions(
            lambda found: found == name, states=states, pattern=f"{name}.*", timeout=TIMEOUT
        )

    assert [(name, producer.producer_id, "Ongoing")] == listed("Ongoing")
    assert [] == listed("CompleteCommit")
    _end(here, name, producer, rules=rules)
    assert [] == listed("Ongoing")


def test_a_repeated_commit_is_acknowledged_again(here, name):
    """A repeated commit under the transaction's original version is acknowledged again."""
    producer, rules = _open(here, name)
    for _ in range(3):
        assert EndOutcome.ENDED is _end(here, name, producer, rules=rules).outcome


@pytest.mark.parametrize("first", [True, False], ids=["committed", "aborted"])
def test_ending_a_transaction_the_opposite_way_is_rejected(here, name, first):
    """Ending a transaction the opposite way is refused with INVALID_TXN_STATE."""
    producer, rules = _open(here, name)
    _end(here, name, producer, committed=first, rules=rules)
    answer = _end(here, name, producer, committed=not first, rules=rules)
    assert EndAnswer(EndOutcome.REFUSED, ErrorCode.INVALID_TXN_STATE) == answer


def test_an_end_txn_with_an_old_epoch_is_rejected(here, name):
    """EndTxn with an old epoch is refused and leaves the id's new transaction open."""
    old, rules = _open(here, name)
    new, _ = _open(here, name)
    assert EndOutcome.REFUSED is _end(here, name, old, rules=rules).outcome
    assert (new, True) == (_describe(here, name).producer, _describe(here, name).is_open)
    _end(here, name, new, committed=False)


def test_an_end_txn_for_an_unknown_id_is_rejected(here, name):
    """EndTxn for an unknown transactional id is refused."""
    answer = _end(here, name, ProducerIdAndEpoch(4711, 0))
    assert EndOutcome.REFUSED is answer.outcome


def test_a_transaction_that_timed_out_cannot_be_committed(here, name):
    """A commit after the timeout is refused, with an error code that depends on the version."""
    producer, rules = _open(here, name, timeout_ms=1_000)
    here.wait_for_time_out(name, 1_000)
    answer = _end(here, name, producer, rules=rules)
    assert EndOutcome.REFUSED is answer.outcome
    assert answer.error_code in {ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED}


def test_the_last_stable_offset_is_the_start_of_the_oldest_transaction(here, name):
    """The last stable offset is the start of the oldest open transaction, which is listed."""
    here.finish(0)
    here.visible()
    place = here.places[0]
    end = here.admin.end_offset(place, timeout=TIMEOUT)
    assert end == here.admin.last_stable_offset(place, timeout=TIMEOUT)
    assert [] == here.admin.open_producers(place, timeout=TIMEOUT)
    producer, _ = _open(here, name)
    assert end == here.admin.last_stable_offset(place, timeout=TIMEOUT)
    [found] = here.admin.open_producers(place, timeout=TIMEOUT)
    assert (producer, end) == (found.producer, found.start_offset)
