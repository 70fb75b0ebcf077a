"""Rights missing for an exactly-once write are named on the driver, with the failed request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from spark_kafka_sink import transactions
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.exactly_once.errors import MixedError
from spark_kafka_sink.exactly_once.transitions import WriteState
from tests.support.exactly_once.exactly_once_sites import KafkaSite
from tests.support.exactly_once.exactly_once_world import QUERY, TIMEOUT, World, each_once, world_at
from tests.support.kafka.kafka_rights import Rights
from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.kafka.real_kafka import KafkaCluster

_SECONDS = 120
_TOPIC, _ID = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID


@pytest.fixture
def here(kafka_with_acls: KafkaCluster) -> Iterator[World]:
    """Yield a world in which rights can be revoked."""
    with world_at(KafkaSite(kafka_with_acls)) as made:
        yield made


@pytest.fixture
def rights(here: World, kafka_with_acls: KafkaCluster) -> Iterator[Rights]:
    """Yield an object that revokes rights until the end of the test."""
    taken = Rights(kafka_with_acls)
    yield taken
    taken.give_back()
    wait_until(lambda: _can_read(here), seconds=_SECONDS, what="rights to be back")


def _can_read(world: World) -> bool:
    try:
        world.visible()
        world.left_open()
    except BrokerError:
        return False
    return True


def _refused(action, *parts):
    """Wait until an action is refused, since ACLs take effect late, and check the message."""
    said = []

    def is_refused():
        try:
            action()
        except BrokerError as error:
            said.append(str(error))
            return True
        return False

    wait_until(is_refused, seconds=_SECONDS, what="the refusal")
    assert [] == [part for part in parts if part not in said[0]], said[0]


def test_a_missing_permission_on_the_transactional_ids_is_named(here, rights):
    """The plan fails before any task runs, with the id and Kafka's error code."""
    rights.only(_ID, here.prefix, AclOperation.DESCRIBE, prefixed=True)
    _refused(
        here.driver().plan,
        f"InitProducerId of '{here.prefix}.ledger'",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    )


@pytest.mark.parametrize(
    ("allowed", "what"),
    [
        ([AclOperation.DESCRIBE, AclOperation.WRITE], "Fetch of "),
        ([AclOperation.DESCRIBE, AclOperation.READ], "Produce of |AddPartitionsToTxn"),
    ],
    ids=["READ", "WRITE"],
)
def test_a_missing_permission_on_the_ledger_is_named(here, rights, allowed, what):
    """The plan fails without READ or without WRITE on the ledger, and the error names its topic."""
    here.finish(0)
    rights.only(_TOPIC, here.ledger, *allowed)
    wait_until(
        lambda: any(part in _error_of(here.driver().plan) for part in what.split("|")),
        seconds=_SECONDS,
        what="the refusal",
    )
    said = _error_of(here.driver().plan)
    assert here.ledger in said
    assert "TOPIC_AUTHORIZATION_FAILED" in said


def _error_of(action) -> str:
    try:
        action()
    except BrokerError as error:
        return str(error)
    return ""


def test_a_missing_permission_to_describe_the_ledger_is_named(here, rights):
    """The check of the ledger's configs fails with the request and Kafka's error code."""
    rights.only(_TOPIC, here.ledger, AclOperation.READ, AclOperation.WRITE)
    _refused(
        here.create_ledger,
        f"DescribeConfigs of topic '{here.ledger}'",
        "TOPIC_AUTHORIZATION_FAILED",
    )


def test_without_read_permission_on_the_data_a_lost_batch_is_mixed(here, rights):
    """If its markers cannot be read, a batch is left to an operator, and not written again."""
    for winner in here.decide_and_die():
        here.abort_by_hand(winner)
    here.visible()
    rights.only(_TOPIC, here.data, AclOperation.DESCRIBE, AclOperation.WRITE)
    wait_until(lambda: not _may_read_data(here), seconds=_SECONDS, what="the refusal")
    with pytest.raises(MixedError, match=f"unknown: {here.data}-0 offsets 0 to 2"):
        here.driver().plan()
    assert WriteState.MIXED is here.state()


def _may_read_data(here) -> bool:
    try:
        here.admin.read_partition(here.places[0], 0, timeout=TIMEOUT)
    except BrokerError:
        return False
    return True


def test_the_documented_permissions_are_enough_for_a_write(here, rights):
    """The rights in docs/guides/exactly-once.md suffice, also for the operator's `list`."""
    prefix, operation = here.prefix, AclOperation
    rights.only(_ID, f"{prefix}.", operation.WRITE, operation.DESCRIBE, prefixed=True)
    rights.only(
        _TOPIC,
        here.ledger,
        operation.READ,
        operation.WRITE,
        operation.DESCRIBE,
        operation.DESCRIBE_CONFIGS,
    )
    rights.only(_TOPIC, here.data, operation.WRITE, operation.DESCRIBE, operation.READ)
    here.create_ledger()
    here.finish(0)
    here.worker.begin(here.driver().plan(), 0).write("a loser's row")
    here.finish(1)
    where = ["--bootstrap-server", here.site.bootstrap_servers, "--ledger-topic", here.ledger]
    assert 0 == transactions.main(["list", *where, "--topic", here.data])
    assert each_once(0, 1) == here.visible()
    assert not here.driver().plan().must_write(QUERY, 1)


def test_a_timeout_above_the_brokers_limit_is_named(here):
    """A timeout above transaction.max.timeout.ms raises an error that names the setting."""
    with pytest.raises(BrokerError, match=r"transaction\.max\.timeout\.ms"):
        here.admin.init_producer_id(
            f"{here.prefix}.ledger", transaction_timeout_ms=900_001, timeout=TIMEOUT
        )
