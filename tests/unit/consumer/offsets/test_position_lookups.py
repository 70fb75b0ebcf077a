"""The look-ups of positions, without a network thread: which answers are applied."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from uuid import UUID

import pytest

from spark_kafka_sink.consumer.offsets.position_lookups import PositionLookups
from spark_kafka_sink.consumer.subscription.partition_state import EARLIEST
from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

FIRST, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def context():
    """Return a context at time 0 that keeps what it is to start, and the calls that wake."""
    backoff = ExponentialBackoff(0.1, 1.0)
    context = SimpleNamespace(
        config=SimpleNamespace(
            default_api_timeout_ms=60_000,
            request_timeout_ms=30_000,
            retry_backoff_ms=100,
            is_read_committed=False,
        ),
        subscriptions=SubscriptionState(EARLIEST),
        clock=lambda: 0.0,
        lock=nullcontext(),
        may_look_up=True,
        client=SimpleNamespace(
            metadata=Metadata(refresh_backoff=backoff, max_age=300.0, max_idle=300.0)
        ),
        started=[],
        woken=[],
    )
    context.start = context.started.append
    context.wake = context.tell_user = lambda: context.woken.append(True)
    return context


@pytest.mark.parametrize("is_lost", [False, True])
def test_committed_offsets_of_an_earlier_assignment_are_not_applied(context, is_lost):
    """While a partition was lost, another member may have read and committed more of it."""
    subscriptions = context.subscriptions
    subscriptions.assign_from_user([FIRST])

    class Commits:
        async def fetch(self, partitions, deadline):
            assert ((FIRST,), 60.0) == (partitions, deadline)
            if is_lost:
                subscriptions.assign_from_user([OTHER])
                subscriptions.assign_from_user([FIRST])
            return {FIRST: OffsetAndMetadata(5)}

    lookups = PositionLookups(context, Commits(), wall_clock_ms=lambda: 0)
    lookups.advance(0.0)
    (look_up,) = context.started
    asyncio.run(look_up())

    found = subscriptions.position_or_none(FIRST)
    assert (None if is_lost else 5) == (None if found is None else found.offset)
    assert [True] == context.woken
    lookups.advance(0.0)
    assert (2 if is_lost else 1) == len(context.started)


def metadata_of(*leaders):
    """Return metadata in which partitions of topic `t` have these leaders."""
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=each, host="h", port=each) for each in set(leaders)
        ),
        topics=(
            MetadataResponseTopic(
                name="t",
                topic_id=UUID(int=1),
                partitions=tuple(
                    MetadataResponsePartition(
                        partition_index=number, leader_id=each, replica_nodes=(), isr_nodes=()
                    )
                    for number, each in enumerate(leaders)
                ),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("known", "first"), [([], []), ([1, 1], [(1, [0])])], ids=["no leader", "one leader"]
)
def test_partitions_that_get_leaders_of_their_own_meanwhile_do_not_wait_for_each_other(
    context, known, first
):
    """One of these leaders may be silent; each is asked by itself, after the back-off."""
    asked = []

    async def ask(node, request, _):
        asked.append((node.node_id, [it.partition_index for it in request.topics[0].partitions]))
        raise NetworkError("no answer")

    context.requests = SimpleNamespace(ask=ask)
    context.subscriptions.assign_from_user([FIRST, OTHER])
    metadata = context.client.metadata
    if known:
        metadata.update(metadata_of(*known), 0.0, is_full=True)
    lookups = PositionLookups(context, None, wall_clock_ms=lambda: 0)
    lookups.advance(0.0)
    metadata.update(metadata_of(1, 2), 0.0, is_full=True)
    (together,) = context.started
    asyncio.run(together())
    assert first == asked
    asked.clear()
    context.started.clear()
    lookups.advance(0.1)
    assert 2 == len(context.started)
    for each in context.started:
        asyncio.run(each())
    assert [(1, [0]), (2, [1])] == sorted(asked)
