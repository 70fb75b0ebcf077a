"""Which transaction protocol applies, and when the next transaction needs a new epoch."""

from __future__ import annotations

import pytest

from spark_kafka_sink.producer.sending.transaction_state import EpochRules


def _rules(*, init_producer_id_version: int = 5, transaction_version: int) -> EpochRules:
    """Return the rules of a producer initialized in a cluster with these features."""
    rules = EpochRules()
    rules.update_features(
        init_producer_id_version=init_producer_id_version, transaction_version=transaction_version
    )
    rules.adopt_version()
    return rules


@pytest.mark.parametrize(
    ("finalized", "expected"), [(0, (False, 1)), (1, (False, 1)), (2, (True, 2)), (3, (True, 2))]
)
def test_the_finalized_feature_selects_the_protocol(finalized, expected):
    """The rules of KIP-890 apply from transaction.version 2 on; older clusters count as 1."""
    rules = _rules(transaction_version=finalized)
    assert expected == (rules.is_transaction_v2, rules.transaction_version)


def test_an_open_transaction_keeps_its_rules():
    """An upgrade of the cluster takes effect in the next transaction, which has a new epoch."""
    rules = _rules(transaction_version=1)
    rules.update_features(init_producer_id_version=5, transaction_version=2)
    assert (False, True) == (rules.is_transaction_v2, rules.next_needs_epoch)
    rules.adopt_version()
    assert (True, False) == (rules.is_transaction_v2, rules.next_needs_epoch)


def test_a_downgrade_needs_no_epoch():
    """Only partitions added under the older rules could count as added to the next transaction."""
    rules = _rules(transaction_version=2)
    rules.update_features(init_producer_id_version=5, transaction_version=1)
    assert not rules.next_needs_epoch
    rules.adopt_version()
    assert not rules.is_transaction_v2


@pytest.mark.parametrize(("transaction_version", "expected"), [(1, True), (2, False)])
def test_a_failed_batch_requires_a_new_epoch_unless_each_transaction_has_one(
    transaction_version, expected
):
    """Under TV2 the end of each transaction returns a new epoch, so none is requested."""
    rules = _rules(transaction_version=transaction_version)
    rules.require_bump_after_failure()
    assert expected is rules.next_needs_epoch


def test_a_required_epoch_is_requested_once():
    """After the request nothing is required, until the next failure."""
    rules = _rules(transaction_version=2)
    rules.bump_required = True
    rules.require_bump_after_failure()
    assert rules.next_needs_epoch
    rules.bump_required = False
    assert not rules.next_needs_epoch


@pytest.mark.parametrize(
    ("init_producer_id_version", "transaction_version", "expected"),
    [(2, 1, (False, False)), (3, 1, (True, True)), (2, 2, (False, True))],
)
def test_which_coordinators_can_bump_an_epoch(
    init_producer_id_version, transaction_version, expected
):
    """A new epoch can be requested from InitProducerId 3 on (KIP-360), or comes with EndTxn."""
    rules = _rules(
        init_producer_id_version=init_producer_id_version, transaction_version=transaction_version
    )
    assert expected == (rules.coordinator_bumps_epochs, rules.can_renew_epoch)
