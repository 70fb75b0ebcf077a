"""Waiting for topics until they are known, a broker refuses them, or time is over."""

from __future__ import annotations

import asyncio
import itertools
import select
import threading
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.errors import BrokerError, KafkaTimeoutError, NetworkError
from spark_kafka_sink.model import Node
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.network.metadata_script import MetadataScript, described
from tests.support.network.network_clients import (
    NODE,
    PATIENCE,
    address,
    answering,
    run_client,
    run_in_memory,
    wait_for,
)
from tests.support.network.scripted_broker import ScriptedBroker

if TYPE_CHECKING:
    from spark_kafka_sink.network.network_client import NetworkClient

#: A wait after which the process pauses. After three pauses the client must still know its topics,
#: which it forgets after `metadata.max.idle.ms`, five minutes.
_WAIT = 30.0


def _error_of(code: ErrorCode) -> int:
    """Return an error code as `described` takes it."""
    return -code


def test_the_error_for_a_missing_topic_names_the_broker_and_its_last_response():
    """The timeout names the topic, the broker that answered last, and its answer."""
    unknown = _error_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    script = MetadataScript(lambda _: described(NODE, {"t": unknown}))
    with pytest.raises(KafkaTimeoutError) as caught:
        run_in_memory(answering(script), lambda client: wait_for(client, "t", within=1.0))
    message = str(caught.value)
    assert "topic 't' is not known to the cluster after 1.0 s (max.block.ms)" in message
    assert "h.example:9092: topic 't'" in message
    assert "UNKNOWN_TOPIC_OR_PARTITION" in message
    assert isinstance(caught.value.__cause__, BrokerError)
    assert len(script.asked) > 50


def test_the_error_for_unreachable_brokers_names_the_addresses_tried():
    """If no broker can be reached, the error names the topic, the address and the reason."""
    nobody = Node(-1, *NODE[1:])
    with pytest.raises(NetworkError) as caught:
        run_in_memory(
            answering(lambda _: None, nobody),
            lambda client: wait_for(client, "t", within=1.0),
        )
    message = str(caught.value)
    assert "topic 't' is not known after 1.0 s" in message
    assert address(NODE) in message
    assert "Connection refused" in message


def test_a_topic_that_is_being_created_is_waited_for():
    """A topic that the broker creates on request appears in time."""
    answers = itertools.count()

    def answer(_: object) -> MetadataResponse:
        created = next(answers) >= 2
        count = 3 if created else _error_of(ErrorCode.LEADER_NOT_AVAILABLE)
        return described(broker.node, {"t": count})

    async def act(client: NetworkClient) -> int:
        await wait_for(client, "t", within=PATIENCE)
        return client.metadata.snapshot.partition_count("t")

    with ScriptedBroker(MetadataScript(answer)) as broker:
        assert 3 == run_client(address(broker.node), act)


def test_an_unknown_partition_is_requested_before_it_is_rejected():
    """A topic that has grown since the last response has the partition after all."""
    counts = itertools.chain([2, 2], itertools.repeat(4))

    async def act(client: NetworkClient) -> int:
        await wait_for(client, "t", within=PATIENCE)
        await wait_for(client, "t", within=PATIENCE, partition=1)
        await wait_for(client, "t", within=PATIENCE, partition=3)
        return client.metadata.snapshot.partition_count("t")

    script = MetadataScript(lambda _: described(broker.node, {"t": next(counts)}))
    with ScriptedBroker(script) as broker:
        assert 4 == run_client(address(broker.node), act)
    assert 3 == len(script.asked)


def test_a_missing_partition_is_rejected_at_the_deadline():
    """The error says which partition is missing, and how many there are."""
    script = MetadataScript(lambda _: described(NODE, {"t": 2}))
    with pytest.raises(KafkaTimeoutError, match=r"t-2 does not exist: .* has 2 partitions"):
        run_in_memory(
            answering(script), lambda client: wait_for(client, "t", within=1.0, partition=2)
        )
    assert len(script.asked) > 50


async def _errors_of_two_waits(client: NetworkClient) -> list[str]:
    refusals = []
    for _ in range(2):
        with pytest.raises(BrokerError) as caught:
            await wait_for(client, "t", within=PATIENCE)
        refusals.append(caught.value.name)
    return refusals


@pytest.mark.parametrize(
    ("code", "questions"),
    [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, 2), (ErrorCode.INVALID_TOPIC_EXCEPTION, 1)],
)
def test_a_permanent_error_of_a_topic_is_raised_at_once(code, questions):
    """A missing authorization is checked again for each caller, an invalid name only once."""
    script = MetadataScript(lambda _: described(broker.node, {"t": _error_of(code)}))
    with ScriptedBroker(script) as broker:
        assert [code.name] * 2 == run_client(address(broker.node), _errors_of_two_waits)
    assert [("t",)] * questions == script.asked


def test_new_topics_are_requested_without_the_known_ones():
    """A producer with many topics requests only the next one."""

    async def act(client: NetworkClient) -> None:
        await wait_for(client, "t", within=PATIENCE)
        await wait_for(client, "u", "v", within=PATIENCE)
        assert {"t", "u", "v"} == set(client.metadata.snapshot.topics)

    def answer(request: object) -> MetadataResponse:
        return described(broker.node, {topic.name: 1 for topic in request.topics})

    script = MetadataScript(answer)
    with ScriptedBroker(script) as broker:
        run_client(address(broker.node), act)
    assert [("t",), ("u", "v")] == script.asked


def test_a_refresh_requests_all_topics_even_if_the_metadata_is_recent():
    """One request is sent without back-off, and its response replaces what was known."""
    counts = {"one": 4, "two": 1}
    script = MetadataScript(lambda _: described(broker.node, counts))

    async def act(client: NetworkClient) -> None:
        await wait_for(client, "one", "two", within=PATIENCE)
        asked = len(script.asked)
        counts["one"] = 2
        await client.refresh_metadata(asyncio.get_running_loop().time() + PATIENCE)
        assert [("one", "two")] == script.asked[asked:]
        assert 2 == client.metadata.snapshot.partition_count("one")

    with ScriptedBroker(script) as broker:
        run_client(address(broker.node), act, **{"retry.backoff.ms": 900_000})


def test_a_refresh_is_retried_until_its_deadline():
    """A connection that was closed meanwhile costs another request, not the refresh."""
    hang_ups = 2
    answers = 0

    def answer(_: MetadataRequest) -> MetadataResponse | None:
        nonlocal answers
        answers += 1
        if 1 < answers <= 1 + hang_ups:
            return None
        return described(broker.node, {"t": 1})

    async def act(client: NetworkClient) -> None:
        await wait_for(client, "t", within=PATIENCE)
        await client.refresh_metadata(asyncio.get_running_loop().time() + PATIENCE)

    with ScriptedBroker(MetadataScript(answer)) as broker:
        run_client(address(broker.node), act)
    assert 2 + hang_ups == answers


def test_a_refresh_without_a_response_ends_at_its_deadline():
    """NetworkError is raised at the deadline, and what was known is kept."""
    script = MetadataScript(lambda _: described(broker.node, {"t": 1}) if known else None)
    known = True

    async def act(client: NetworkClient) -> None:
        nonlocal known
        await wait_for(client, "t", within=PATIENCE)
        known = False
        with pytest.raises(NetworkError):
            await client.refresh_metadata(asyncio.get_running_loop().time() + 0.05)
        assert 1 == client.metadata.snapshot.partition_count("t")

    with ScriptedBroker(script) as broker:
        run_client(address(broker.node), act)


def test_a_response_without_brokers_is_retried():
    """A response from a broker that is still starting is not accepted."""
    answers = itertools.count()

    def answer(_: object) -> MetadataResponse:
        if next(answers):
            return described(broker.node, {"t": 1})
        return MetadataResponse(brokers=(), topics=())

    async def act(client: NetworkClient) -> None:
        await wait_for(client, "t", within=PATIENCE)
        assert "returned no brokers" in str(client.last_error)

    with ScriptedBroker(MetadataScript(answer)) as broker:
        run_client(address(broker.node), act)


@pytest.mark.parametrize("is_interrupted", [False, True], ids=["paused", "stopped by a signal"])
def test_a_response_that_arrived_during_a_pause_of_the_process_ends_the_wait(is_interrupted):
    """After a pause beyond the deadline, the response is read before the timeout is checked."""
    may_answer = threading.Event()
    may_answer.set()

    def answer(request: object) -> MetadataResponse:
        assert may_answer.wait(120)
        return described(broker.node, {topic.name: 1 for topic in request.topics})

    async def act(client: NetworkClient) -> int:
        loop, pause = asyncio.get_running_loop(), 0.0
        real_time, real_select = loop.time, loop._selector.select
        loop.time = lambda: real_time() + pause

        # After SIGSTOP the first poll ends early and reports no socket, although one is readable.
        def interrupted_select(_timeout: float) -> list:
            loop._selector.select = real_select
            return []

        await wait_for(client, "t", within=PATIENCE)
        [connection] = client._connections.values()
        for topic in ("u", "v", "w"):
            may_answer.clear()
            waiting = loop.create_task(wait_for(client, topic, within=_WAIT))
            while not connection.in_flight_count:  # noqa: ASYNC110  no time passes
                await asyncio.sleep(0)
            may_answer.set()
            # Nothing else runs on the loop until the response has arrived.
            select.select([connection._transport._socket], [], [], PATIENCE)
            pause += 2 * _WAIT
            if is_interrupted:
                loop._selector.select = interrupted_select
            await waiting
        return len(client.metadata.snapshot.topics)

    with ScriptedBroker(MetadataScript(answer)) as broker:
        assert 4 == run_client(address(broker.node), act)
