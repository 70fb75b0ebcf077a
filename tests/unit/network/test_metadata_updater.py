"""Waiting for topics while somebody else asks, on a clock in hand."""

from __future__ import annotations

import asyncio

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaTimeoutError
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.metadata_updater import MetadataUpdater
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.metadata_script import described
from tests.support.mock_network import MockNetwork
from tests.support.producer_batches import NODES
from tests.support.scripted_transport import run_without_waiting

NODE = NODES[1]
UNKNOWN = described(NODE, {"t": -ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


def updater_of(network):
    """Return what asks about topics over a network, ten seconds after each answer."""
    network.metadata = Metadata(refresh_backoff=ExponentialBackoff(10, 10), max_age=300)
    return MetadataUpdater(
        ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9"}),
        network,
        on_change=lambda: None,
        include_topic_authorized_operations=False,
    )


async def asked(network, count):
    """Run the loop until so many questions were asked."""
    while len(network.sent) < count:  # noqa: ASYNC110  no time passes
        await asyncio.sleep(0)
    return network.sent[-1]


def waited(rounds_after_deadline):
    """Wait for a topic whose existence another one's question tells when the time is over."""

    async def run() -> float:
        loop, network = asyncio.get_running_loop(), MockNetwork({})
        updater = updater_of(network)
        began = loop.time()
        waiting = loop.create_task(updater.wait_for_topics(["t"], began + 5))
        (await asked(network, 1)).answer(UNKNOWN)
        await asyncio.sleep(1)
        another = loop.create_task(updater.update(began + 100))
        question = await asked(network, 2)

        def arrive(rounds: int) -> None:
            if rounds:
                loop.call_soon(arrive, rounds - 1)
            else:
                question.answer(described(NODE, {"t": 1}))

        loop.call_at(began + 5, arrive, rounds_after_deadline)
        try:
            await waiting
        finally:
            await another
        return loop.time() - began

    return run_without_waiting(run)


@pytest.mark.parametrize("rounds", range(5))
def test_what_somebody_elses_question_has_told_in_time_counts(rounds):
    """The answer is there when the time is over, and only has to be read."""
    assert 5 == waited(rounds)


def test_an_answer_that_comes_after_the_deadline_is_too_late():
    """The error has the last answer, and the time that was waited."""
    with pytest.raises(KafkaTimeoutError, match=r"not known to the cluster after 5\.0 s"):
        waited(50)
