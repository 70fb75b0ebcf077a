"""Commits and look-ups of committed offsets, without a network thread: when they end."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest

from spark_kafka_sink.consumer.polling.offset_commits import OffsetCommits
from spark_kafka_sink.errors import KafkaTimeoutError
from spark_kafka_sink.model import ConsumerGroupMetadata, Node, OffsetAndMetadata, TopicPartition

FIRST = TopicPartition("t", 0)
#: Seconds that a pass never waits.
PATIENCE = 120


async def never(*_: object, **__: object) -> None:
    """Wait for an answer that does not come."""
    await asyncio.get_running_loop().create_future()


@pytest.fixture
def commits():
    """Return the commits of a consumer whose coordinator never answers."""
    context = SimpleNamespace(
        config=SimpleNamespace(group_id="g", retry_backoff_ms=100, retry_backoff_max_ms=100),
        lock=nullcontext(),
        wake=lambda: None,
        subscriptions=SimpleNamespace(is_assigned=lambda _: True),
    )
    coordinator = SimpleNamespace(
        member=SimpleNamespace(coordinator=Node(1, "h", 9092)),
        waiting=0,
        uses_topic_ids=False,
        awaits_others=False,
        committing_member=lambda: ConsumerGroupMetadata("g"),
        fetching_member=lambda: (None, -1),
        ask=never,
    )
    return OffsetCommits(context, coordinator)


@pytest.mark.parametrize("method", ["commit", "fetch"])
def test_a_call_ends_by_its_deadline_although_its_request_could_wait_longer(commits, method):
    """The error names the group and the coordinator."""
    prepared = commits.prepare({FIRST: OffsetAndMetadata(5)})
    call = {"commit": partial(commits.commit, prepared), "fetch": partial(commits.fetch, [FIRST])}

    async def run() -> None:
        async with asyncio.timeout(PATIENCE):
            await call[method](asyncio.get_running_loop().time() + 0.01)

    with pytest.raises(KafkaTimeoutError, match="of group 'g': the coordinator h:9092"):
        asyncio.run(run())
