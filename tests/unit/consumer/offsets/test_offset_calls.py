"""The wait for any broker: what ends it early, and what does not."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from spark_kafka_sink.config.offset_specs import Subscribe
from spark_kafka_sink.consumer.offsets.offset_calls import FINAL_SECONDS, OffsetCalls
from spark_kafka_sink.errors import AuthenticationError, NetworkError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.protocol.messages.list_offsets import ListOffsetsResponse
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

#: The time of the loop at which each call begins, and the one until which it may last.
NOW, DEADLINE = 1000.0, 1060.0
SOON = NOW + FINAL_SECONDS
ANSWER = MetadataResponse(
    brokers=(MetadataResponseBroker(node_id=1, host="h", port=9092),),
    topics=(
        MetadataResponseTopic(
            name="t",
            partitions=(
                MetadataResponsePartition(
                    partition_index=0, leader_id=1, replica_nodes=(1,), isr_nodes=(1,)
                ),
            ),
        ),
    ),
)


class _Client:
    """A client that has a connection or fails, and records until when each call waits."""

    def __init__(self, error, *, finds_nobody):
        self._error = error
        self.finds_nobody = finds_nobody
        self.waits = []
        backoff = ExponentialBackoff(0.1, 1.0)
        self.metadata = Metadata(refresh_backoff=backoff, max_age=300.0, max_idle=300.0)

    async def least_loaded_connection(self, deadline):
        self.waits.append(deadline)
        if self._error is not None:
            raise self._error

    def ready_connection(self, node):
        return "a connection"


class _Requests:
    """Requests that a broker answers once there is one, with the time until which they wait."""

    def __init__(self, client):
        self.client = client
        self.deadlines = []

    async def ask(self, node, request, deadline):
        assert (None, "t") == (node, request.topics[0].name)
        self.deadlines.append(deadline)
        return ANSWER


def list_partitions(error=None, *, finds_nobody=False, deadline=DEADLINE, **more):
    """List the partitions; return them, the waits for a connection, and those for an answer."""

    async def run():
        loop = asyncio.get_running_loop()
        loop.time = lambda: NOW
        client = _Client(error, finds_nobody=finds_nobody)
        requests = _Requests(client)
        try:
            found = await OffsetCalls(requests).partitions(Subscribe(("t",)), deadline, **more)
        except Exception as raised:
            raised.waits = client.waits, requests.deadlines
            raise
        return found, client.waits, requests.deadlines

    return asyncio.run(run())


def test_nobody_listening_ends_an_early_failure_after_a_few_seconds():
    """If nothing listens at any address, nothing is asked, however long the call may last."""
    with pytest.raises(NetworkError, match="refused") as caught:
        list_partitions(NetworkError("refused"), finds_nobody=True, fails_early=True)
    assert ([SOON], []) == caught.value.waits


def test_brokers_that_may_be_there_have_the_whole_time():
    """An address that does not answer is waited for, even if the call would fail early."""
    expected = (TopicPartition("t", 0),), [SOON], [DEADLINE]
    assert expected == list_partitions(NetworkError("slow"), fails_early=True)


def test_a_broker_that_is_there_is_asked():
    """A call that would fail early has the whole time for the answer."""
    expected = (TopicPartition("t", 0),), [SOON], [DEADLINE]
    assert expected == list_partitions(fails_early=True)


def test_a_call_that_does_not_fail_early_has_the_whole_time():
    """A stream survives a cluster that is down for a while."""
    expected = (TopicPartition("t", 0),), [], [DEADLINE]
    assert expected == list_partitions(NetworkError("refused"), finds_nobody=True)


def test_a_permanent_error_is_raised_at_once():
    """Nothing is asked of brokers that reject the client."""
    with pytest.raises(AuthenticationError, match="no") as caught:
        list_partitions(AuthenticationError("no"), fails_early=True)
    assert ([SOON], []) == caught.value.waits


def test_no_call_waits_beyond_its_deadline():
    """A deadline within those few seconds is the only one."""
    with pytest.raises(NetworkError) as caught:
        list_partitions(
            NetworkError("refused"), finds_nobody=True, fails_early=True, deadline=NOW + 1
        )
    assert ([NOW + 1], []) == caught.value.waits


# --- why offsets are asked for again


class _GaveUpError(Exception):
    """The wait before another request; it has what is asked for, and the cause."""


class _Broker:
    """A broker that returns the same metadata, and the same offsets, to each request."""

    def __init__(self, metadata, offsets):
        self.client = _Client(None, finds_nobody=False)
        self._metadata, self._offsets = metadata, offsets

    async def ask(self, _node, request, _deadline):
        return self._metadata if isinstance(request, MetadataRequest) else self._offsets

    async def back_off(self, attempts, deadline, what, cause):
        assert (0, DEADLINE) == (attempts, deadline)
        raise _GaveUpError(what, str(cause))


def _without_leader():
    (topic,) = ANSWER.topics
    partitions = tuple(replace(each, leader_id=-1) for each in topic.partitions)
    return replace(ANSWER, topics=(replace(topic, partitions=partitions),))


@pytest.mark.parametrize(
    ("metadata", "cause"),
    [
        (_without_leader(), "t-0 has no leader at the moment"),
        (ANSWER, "the answer lacks t-0"),
    ],
)
def test_the_cause_of_another_request_for_offsets_names_the_partitions(metadata, cause):
    """It distinguishes partitions without a leader from those that an answer lacks."""

    async def run():
        calls = OffsetCalls(_Broker(metadata, ListOffsetsResponse(topics=())))
        await calls.offsets({TopicPartition("t", 0): -1}, DEADLINE, is_committed=False)

    with pytest.raises(_GaveUpError) as raised:
        asyncio.run(run())
    assert ("ListOffsets of t-0", cause) == raised.value.args
