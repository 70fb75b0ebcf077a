"""Commits and look-ups of committed offsets, without a network thread: their ends and order."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest

from spark_kafka_sink.consumer.consumer_context import Answer
from spark_kafka_sink.consumer.group.offset_commits import OffsetCommits
from spark_kafka_sink.errors import KafkaTimeoutError, NetworkError
from spark_kafka_sink.model import ConsumerGroupMetadata, Node, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.network.exponential_backoff import NEVER

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
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


def test_a_commit_is_not_retried_after_a_later_one(commits, monkeypatch):
    """Otherwise the older offset would be the committed one; its own error is raised."""
    sent = []

    async def commit_once(offsets, *_, on_connected, **__):
        on_connected()
        sent.append(offsets[FIRST].offset)
        return None if 2 == len(sent) else NetworkError("no answer")

    async def back_off(*_):
        await commits.commit(commits.prepare({FIRST: OffsetAndMetadata(6)}), NEVER)

    monkeypatch.setattr(commits, "_commit_once", commit_once)
    monkeypatch.setattr(commits, "_back_off", back_off)
    with pytest.raises(NetworkError, match="no answer"):
        asyncio.run(commits.commit(commits.prepare({FIRST: OffsetAndMetadata(5)}), NEVER))
    assert [5, 6] == sent


def test_a_commit_is_retried_after_a_later_one_of_another_partition(commits, monkeypatch):
    """It takes nothing back."""
    sent = []

    async def commit_once(offsets, *_, on_connected, **__):
        on_connected()
        sent.append(list(offsets))
        return NetworkError("no answer") if 1 == len(sent) else None

    async def back_off(*_):
        await commits.commit(commits.prepare({SECOND: OffsetAndMetadata(6)}), NEVER)

    monkeypatch.setattr(commits, "_commit_once", commit_once)
    monkeypatch.setattr(commits, "_back_off", back_off)
    asyncio.run(commits.commit(commits.prepare({FIRST: OffsetAndMetadata(5)}), NEVER))
    assert [[FIRST], [SECOND], [FIRST]] == sent


def test_what_is_cancelled_before_it_begins_does_not_begin():
    """Ctrl-C may come between the handing over of a commit and its start."""
    begun = []

    async def work():
        begun.append(1)

    answer = Answer(work)
    answer.cancel()
    asyncio.run(answer.run())
    assert [] == begun
    assert not answer.is_done
