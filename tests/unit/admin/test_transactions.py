"""Transactions, in the public admin client."""

from __future__ import annotations

import pytest

from spark_kafka_sink import (
    AdminError,
    KafkaProducer,
    TopicPartition,
)
from spark_kafka_sink.admin.transaction_values import TRANSACTION_STATES
from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.admin.admin_errors import failed

FIRST = TopicPartition("data", 0)


def test_transactions_are_listed_and_described(admin, settings):
    """An open transaction has its state, its partitions and its producer."""
    with KafkaProducer({**settings, "transactional.id": "t"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("data", b"a", partition=0).result(timeout=120)
        [listed] = admin.list_transactions()
        opened = admin.describe_transactions(["t"])["t"]
        [state] = admin.describe_producers([FIRST])[FIRST]
        chosen = [
            admin.list_transactions(states=["Ongoing"], transactional_id_pattern="t"),
            admin.list_transactions(producer_ids=[listed.producer_id]),
            admin.list_transactions(states=["ongoing", "ONGOING", "prepareabort"]),
        ]
        others = [
            admin.list_transactions(states=["Empty"]),
            admin.list_transactions(transactional_id_pattern="other"),
            admin.list_transactions(min_duration_ms=3_600_000),
        ]
        producer.abort_transaction()

    assert ("t", "Ongoing") == (listed.transactional_id, listed.state)
    assert ("Ongoing", (FIRST,)) == (opened.state, opened.partitions)
    assert opened.producer == (state.producer_id, state.producer_epoch)
    assert (0, listed.producer_id) == (state.current_transaction_start_offset, state.producer_id)
    assert [[listed]] * 3 == chosen
    assert [[]] * 3 == others


@pytest.mark.parametrize("state", ["Sleeping", "Unknown", "Dead", ""])
def test_an_unknown_state_is_an_error_with_the_known_ones(broker, admin, state):
    """A mistyped state is found before a broker is asked to list transactions."""
    hook = broker.on(ApiKey.LIST_TRANSACTIONS, AnswerError(ErrorCode.INVALID_REQUEST), expect=False)

    with pytest.raises(ValueError, match=r"^states must be") as caught:
        admin.list_transactions(states=["Empty", state])

    assert (
        "states must be among Ongoing, PrepareAbort, PrepareCommit, CompleteAbort, "
        f"CompleteCommit, Empty, PrepareEpochFence, but one is {state!r}"
    ) == str(caught.value)
    assert 0 == hook.fired


@pytest.mark.parametrize("state", TRANSACTION_STATES)
def test_every_state_is_one_that_brokers_know(admin, state):
    """Transactions can be listed by each of the states, in any case."""
    assert [] == admin.list_transactions(states=[state.lower()])


def test_an_unknown_transactional_id_is_an_error(admin):
    """An id that no coordinator knows is an error of that id."""
    with pytest.raises(AdminError) as caught:
        admin.describe_transactions(["nobody"])

    assert {"nobody": "TRANSACTIONAL_ID_NOT_FOUND"} == failed(caught)
