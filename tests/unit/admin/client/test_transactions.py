"""Transactions, in the public admin client."""

from __future__ import annotations

import pytest

from spark_kafka_sink import (
    AdminError,
    KafkaProducer,
    TopicPartition,
)
from tests.support.admin.admin_errors import failed

FIRST = TopicPartition("data", 0)


def test_transactions_are_listed_and_described(admin, settings):
    """An open transaction has its state, its partitions and its producer."""
    with KafkaProducer({**settings, "transactional.id": "t"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("data", b"a", partition=0).result(timeout=30)
        [listed] = admin.list_transactions()
        opened = admin.describe_transactions(["t"])["t"]
        [state] = admin.describe_producers([FIRST])[FIRST]
        chosen = [
            admin.list_transactions(states=["Ongoing"], transactional_id_pattern="t"),
            admin.list_transactions(producer_ids=[listed.producer_id]),
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
    assert [[listed]] * 2 == chosen
    assert [[]] * 3 == others


def test_an_unknown_transactional_id_is_an_error(admin):
    """An id that no coordinator knows is an error of that id."""
    with pytest.raises(AdminError) as caught:
        admin.describe_transactions(["nobody"])

    assert {"nobody": "TRANSACTIONAL_ID_NOT_FOUND"} == failed(caught)
