"""Successful transactions of the producer over an in-memory network; time is an argument.

The scenarios are those of Kafka's TransactionManagerTest; errors, offsets, coordinators and calls
have modules of their own. TV1 and TV2 are transaction.version 1 and 2 (KIP-890). Under TV1 requests
of their own add partitions; under TV2 Produce adds them, and EndTxn returns a new epoch.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink.errors import (
    TransactionAbortedError,
)
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.find_coordinator import (
    CoordinatorType,
    FindCoordinatorResponse,
)
from tests.support.producer.producer_batches import NODES
from tests.support.producer.sender_harness import (
    PRODUCER_ID,
    SenderHarness,
    numbers,
)
from tests.support.producer.transactions_over_mock import TRANSACTIONAL, S, answer_end, is_ready

# --- the normal course


def test_initializing_finds_the_coordinator_and_fences_earlier_producers(either):
    """InitProducerId with the timeout goes to the coordinator of the transactional id."""
    result = either.manager.initialize_transactions()
    lookup = either.find_coordinator(node_id=1)
    assert CoordinatorType.TRANSACTION == lookup.request.key_type
    assert ("orders.7",) == lookup.request.coordinator_keys
    assert not result.is_completed
    sent = either.init_producer_id(epoch=5)
    assert NODES[1] == sent.node
    assert ("orders.7", 60_000) == (
        sent.request.transactional_id,
        sent.request.transaction_timeout_ms,
    )
    result.wait(0)
    assert ProducerIdAndEpoch(PRODUCER_ID, 5) == either.manager.sequences.producer_id_and_epoch
    assert S.READY is either.manager.state.current


def test_a_coordinator_is_found_with_a_single_key(tv1):
    """FindCoordinator 3 has a single key, as a field of the message."""
    versions = {**tv1.network.api_versions.versions, ApiKey.FIND_COORDINATOR: (0, 3)}
    tv1.network.api_versions = replace(tv1.network.api_versions, versions=versions)
    tv1.manager.initialize_transactions()
    sent = tv1.answer(
        ApiKey.FIND_COORDINATOR, FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=9093)
    )
    assert ("orders.7", 1) == (sent.request.key, sent.request.key_type)
    assert NODES[1] == tv1.init_producer_id().node


def test_a_transaction_under_tv1(tv1):
    """Under TV1 requests of their own add partitions, and the epoch does not change."""
    tv1.initialize()
    tv1.manager.begin_transaction()
    batch = tv1.add()
    tv1.step()
    assert 3 == tv1.network.sent[0].version
    assert PRODUCER_ID == tv1.add_partitions().request.v3_and_below_producer_id
    sent = tv1.produce()
    assert (11, "orders.7") == (sent.version, sent.request.transactional_id)
    assert batch.is_transactional
    result = tv1.manager.begin_commit()
    ended = tv1.end_txn()
    assert (4, True, 0) == (ended.version, ended.request.committed, ended.request.producer_epoch)
    result.wait(0)
    assert ProducerIdAndEpoch(PRODUCER_ID, 0) == tv1.manager.sequences.producer_id_and_epoch
    tv1.manager.begin_transaction()
    following = tv1.add()
    tv1.add_partitions()
    assert (0, 1) == numbers(following)


def test_a_transaction_under_tv2(tv2):
    """Under TV2 Produce is the first request, and EndTxn returns the next epoch, from 0."""
    tv2.initialize()
    tv2.manager.begin_transaction()
    batch = tv2.add()
    tv2.step()
    sent = tv2.produce()
    assert sent.version >= 12
    assert (0, 0) == numbers(batch)
    result = tv2.manager.begin_commit()
    ended = tv2.end_txn(epoch=1)
    assert (5, True) == (ended.version, ended.request.committed)
    result.wait(0)
    tv2.manager.begin_transaction()
    following = tv2.add()
    tv2.step()
    assert (1, 0) == numbers(following)


def test_an_exhausted_epoch_returns_a_new_producer_id(tv2):
    """The coordinator may return a new producer id from EndTxn."""
    tv2.begin(0)
    tv2.produce()
    tv2.manager.begin_commit()
    tv2.step()
    sent = tv2.take(ApiKey.END_TXN)
    response = type("Response", (), {"error_code": 0, "producer_id": 2_000, "producer_epoch": 0})
    sent.answer(response())
    tv2.step()
    assert ProducerIdAndEpoch(2_000, 0) == tv2.manager.sequences.producer_id_and_epoch


def test_a_partition_is_added_once_per_transaction(tv1):
    """Further batches of a partition need no request."""
    tv1.begin(0)
    tv1.produce()
    tv1.add(0)
    tv1.step()
    assert ApiKey.PRODUCE == tv1.take().request.api_key


def test_partitions_are_added_together(tv1):
    """Partitions written at the same time are added in one request."""
    tv1.initialize()
    tv1.manager.begin_transaction()
    tv1.add(1)
    tv1.add(0)
    [topic] = tv1.add_partitions().request.v3_and_below_topics
    assert (0, 1) == topic.partitions


def test_nothing_is_sent_to_a_partition_before_it_belongs_to_the_transaction(tv1):
    """No batch is sent before its partition is added, while other partitions continue."""
    tv1.begin(0)
    tv1.produce()
    waiting, sent = tv1.add(1), tv1.add(0)
    tv1.step()
    assert not waiting.has_sequence
    assert sent.has_sequence


def test_a_commit_waits_for_written_batches(either):
    """EndTxn is sent after the last batch has been acknowledged."""
    either.begin(0)
    result = either.manager.begin_commit()
    either.step()
    assert [ApiKey.PRODUCE] == [sent.request.api_key for sent in either.network.sent]
    either.produce()
    answer_end(either, epoch=1)
    result.wait(0)


@pytest.mark.parametrize("end", ["begin_commit", "begin_abort"])
def test_an_empty_transaction_ends_without_a_request(either, end):
    """A transaction without records ends without a request, as the coordinator has none."""
    either.begin()
    result = getattr(either.manager, end)()
    either.step()
    assert [] == either.network.sent
    result.wait(0)
    assert S.READY is either.manager.state.current
    assert is_ready(either)


def test_an_abort_drops_unsent_batches_and_waits_for_those_in_flight(either):
    """Unsent batches fail, and EndTxn is sent after the response for the batch in flight."""
    [sent] = either.begin(0)
    dropped = either.add(0)
    result = either.manager.begin_abort()
    either.step()
    assert isinstance(dropped.result.error, TransactionAbortedError)
    assert not sent.is_done
    either.produce()
    assert sent.result.error is None
    answer_end(either, epoch=1)
    result.wait(0)
    assert is_ready(either)


def test_an_abort_drops_partitions_not_yet_requested(tv1):
    """An abort drops partitions that were not requested yet."""
    tv1.begin(0)
    tv1.produce()
    tv1.add(1)
    result = tv1.manager.begin_abort()
    assert not tv1.end_txn().request.committed
    result.wait(0)


def test_the_transaction_version_changes_only_between_transactions(tv1):
    """A transaction ends under the version it began with; after it TV2 raises the epoch."""
    tv1.begin(0)
    tv1.produce()
    tv1.network.use_transaction_version(2)
    result = tv1.manager.begin_commit()
    assert 4 == tv1.end_txn().version
    bump = tv1.init_producer_id(epoch=1)
    assert (PRODUCER_ID, 0) == (bump.request.producer_id, bump.request.producer_epoch)
    result.wait(0)
    assert tv1.manager.epochs.is_transaction_v2
    assert is_ready(tv1)


def test_a_newer_transaction_version_counts_as_tv2():
    """Additions of a later transaction.version are not used."""
    with SenderHarness(transaction_version=3, **TRANSACTIONAL) as harness:
        harness.begin(0)
        assert 12 == harness.produce().version


def test_only_the_finalized_feature_selects_the_transaction_version():
    """Without the finalized feature TV1 applies, however new the Produce version is."""
    with SenderHarness(transaction_version=0, **TRANSACTIONAL) as harness:
        harness.begin(0)
        assert 11 == harness.produce().version
