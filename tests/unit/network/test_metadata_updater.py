"""Waiting for topics while another caller requests metadata, on a simulated clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaTimeoutError, NetworkError
from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.metadata_updater import MetadataUpdater
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.network.metadata_script import described
from tests.support.network.scripted_transport import run_without_waiting
from tests.support.producer.mock_network import MockNetwork
from tests.support.producer.producer_batches import NODES

NODE = NODES[1]
UNKNOWN = described(NODE, {"t": -ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


def updater_of(network, *, include_topic_authorized_operations=False, **settings):
    """Return an updater of topics over a network, ten seconds after each response."""
    network.metadata = Metadata(refresh_backoff=ExponentialBackoff(10, 10), max_age=300)
    return MetadataUpdater(
        ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9", **settings}),
        network,
        on_change=lambda: None,
        include_topic_authorized_operations=include_topic_authorized_operations,
    )


async def nth_request(network, count):
    """Run the loop until `count` requests were sent."""
    while len(network.sent) < count:  # noqa: ASYNC110  no time passes
        await asyncio.sleep(0)
    return network.sent[-1]


def wait_for_topic(rounds_after_deadline):
    """Wait for a topic that another caller's request finds just as the time is over."""

    async def run() -> float:
        loop, network = asyncio.get_running_loop(), MockNetwork({})
        updater = updater_of(network)
        began = loop.time()
        waiting = loop.create_task(updater.wait_for_topics(["t"], began + 5))
        (await nth_request(network, 1)).answer(UNKNOWN)
        await asyncio.sleep(1)
        another = loop.create_task(updater.update(began + 100))
        sent = await nth_request(network, 2)

        def arrive(rounds: int) -> None:
            if rounds:
                loop.call_soon(arrive, rounds - 1)
            else:
                sent.answer(described(NODE, {"t": 1}))

        loop.call_at(began + 5, arrive, rounds_after_deadline)
        try:
            await waiting
        finally:
            await another
        return loop.time() - began

    return run_without_waiting(run)


@pytest.mark.parametrize("rounds", range(5))
def test_the_response_to_another_callers_request_counts(rounds):
    """The response has arrived when the time is over, and only has to be read."""
    assert 5 == wait_for_topic(rounds)


def test_a_response_after_the_deadline_is_too_late():
    """The error has the last response and the time spent waiting."""
    with pytest.raises(KafkaTimeoutError, match=r"not known to the cluster after 5\.0 s"):
        wait_for_topic(50)


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [(7, True, False), (8, True, True), (9, True, True), (8, False, False), (7, False, False)],
)
def test_authorized_operations_are_requested_if_supported(version, wanted, expected):
    """Authorized operations are returned from version 8 of Metadata on (KIP-430)."""

    async def run():
        network = MockNetwork({})
        network.api_versions = NodeApiVersions({ApiKey.METADATA: (0, version)}, {})
        updater = updater_of(network, include_topic_authorized_operations=wanted)
        asking = asyncio.create_task(updater.update(60))
        sent = await nth_request(network, 1)
        sent.answer(described(NODE, {}))
        await asking
        return sent.request.include_topic_authorized_operations

    assert expected is run_without_waiting(run)


@pytest.mark.parametrize(
    ("code", "strategy", "expected"),
    [(129, "rebootstrap", 1), (129, "none", 0), (3, "rebootstrap", 0), (130, "rebootstrap", 0)],
)
def test_only_rebootstrap_required_triggers_a_rebootstrap(code, strategy, expected):
    """It takes REBOOTSTRAP_REQUIRED (129) and a matching metadata.recovery.strategy."""

    async def run():
        network, begun = MockNetwork({}), []
        network.rebootstrap = lambda: begun.append(1)
        updater = updater_of(network, **{"metadata.recovery.strategy": strategy})
        asking = asyncio.create_task(updater.update(60))
        (await nth_request(network, 1)).answer(replace(described(NODE, {}), error_code=code))
        with pytest.raises(NetworkError, match="refused Metadata"):
            await asking
        return len(begun)

    assert expected == run_without_waiting(run)


def test_a_refresh_sends_one_request():
    """A response that arrives in the same instant counts as recent."""

    async def run():
        network = MockNetwork({})
        updater = updater_of(network)
        refreshing = asyncio.create_task(updater.refresh(asyncio.get_running_loop().time() + 5))
        (await nth_request(network, 1)).answer(described(NODE, {"t": 1}))
        await refreshing
        return len(network.sent)

    assert 1 == run_without_waiting(run)


def test_a_long_time_without_responses_triggers_a_rebootstrap():
    """The time is metadata.recovery.rebootstrap.trigger.ms, from the first request on."""

    async def run():
        network = MockNetwork({})
        trigger = {"metadata.recovery.rebootstrap.trigger.ms": "1500"}
        updater = updater_of(network, **trigger)
        began = asyncio.get_running_loop().time()
        asking = asyncio.create_task(updater.update(began + 60))
        sent = await nth_request(network, 1)
        due = updater.recovery.due_at() - began
        sent.answer(described(NODE, {}))
        await asking
        return due

    assert 1.5 == run_without_waiting(run)


def test_topics_that_nobody_asked_for_are_not_kept():
    """A broker that names others would fill the memory of a client that runs for months."""

    async def run() -> tuple[str, ...]:
        loop, network = asyncio.get_running_loop(), MockNetwork({})
        updater = updater_of(network)
        waiting = loop.create_task(updater.wait_for_topics(["t"], loop.time() + 5))
        (await nth_request(network, 1)).answer(described(NODE, {"other": 1, "t": 2}))
        await waiting
        return tuple(network.metadata.snapshot.topics)

    assert ("t",) == run_without_waiting(run)
