"""Which connections are kept, which nodes are used, and which cause a timeout names."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaTimeoutError, NetworkError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.network.metadata_script import MetadataScript, described
from tests.support.network.network_clients import until, wait_for
from tests.support.network.recording_listener import RecordingListener
from tests.support.network.scripted_broker import ScriptedBroker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: A node that is never connected to here.
ELSEWHERE = Node(5, "elsewhere.example", 9092)


def _run(
    node: Node,
    act: Callable[[NetworkClient], Awaitable[None]],
    *,
    listener: RecordingListener | None = None,
    **settings: object,
) -> None:
    """Do something with a client, and close it in any case."""

    async def run() -> None:
        config = ProducerConfig.from_mapping(
            {"bootstrap.servers": f"{node.host}:{node.port}", "retry.backoff.ms": 5, **settings}
        )
        client = NetworkClient(config, listener=listener)
        try:
            await act(client)
        finally:
            await client.close()

    asyncio.run(run())


def test_a_maximum_idle_time_of_zero_closes_connections_at_once():
    """A connections.max.idle.ms of 0 is a valid limit."""

    async def act(client: NetworkClient) -> None:
        assert client.ready_connection(broker.node) is None
        await until(lambda: "idle for 0 s (connections.max.idle.ms)" in str(client.last_error))

    with ScriptedBroker(MetadataScript(lambda _: described(broker.node, {"t": 1}))) as broker:
        _run(broker.node, act, **{"connections.max.idle.ms": 0})


def test_a_negative_maximum_idle_time_is_no_limit():
    """A negative connections.max.idle.ms is no limit: later requests use the same connection."""
    listener = RecordingListener()

    async def act(client: NetworkClient) -> None:
        for topic in topics:
            await wait_for(client, topic)
            assert 1 == client.connection_count

    topics = {"t": 1, "u": 1, "v": 1}
    with ScriptedBroker(MetadataScript(lambda _: described(broker.node, topics))) as broker:
        _run(broker.node, act, listener=listener, **{"connections.max.idle.ms": -1})
    assert 1 == listener.events.count(("connected", -1))


def test_metadata_is_not_requested_from_a_node_that_has_left_the_cluster():
    """Its connection may still be open, but only a bootstrap address leads to the cluster."""

    async def act(client: NetworkClient) -> None:
        await wait_for(client, "t")
        bootstrap_is_up.close()
        await until(lambda: not client.connection_count)
        await until(lambda: client.ready_connection(leaver) is not None)
        now = asyncio.get_running_loop().time()
        client.metadata.update(described(ELSEWHERE, {"t": 1}), now)
        chosen = client.least_loaded_node(now)
        assert chosen is not None
        assert ELSEWHERE == chosen.node

    script = MetadataScript(lambda _: described(leaver, {"t": 1}))
    with ExitStack() as bootstrap_is_up, ScriptedBroker(script) as broker:
        leaver = broker.node._replace(node_id=0)
        _run(bootstrap_is_up.enter_context(ScriptedBroker(script)).node, act)


def test_a_wait_without_time_names_the_last_error():
    """If nothing was requested in that time, the cause is the client's last error, unchanged."""

    async def act(client: NetworkClient) -> None:
        client.last_error = NetworkError("the cable was cut")
        with pytest.raises(KafkaTimeoutError) as caught:
            await wait_for(client, "t", within=0.0)
        assert "topic 't' is not known after 0.0 s (max.block.ms): the cable was cut" == (
            str(caught.value)
        )

    _run(ELSEWHERE, act)


def test_a_wait_without_time_and_errors_names_the_bootstrap_servers():
    """There is no other cause to name."""

    async def act(client: NetworkClient) -> None:
        with pytest.raises(KafkaTimeoutError, match=r"no broker answered through elsewhere\.ex"):
            await wait_for(client, "t", within=0.0)

    _run(ELSEWHERE, act)


@pytest.mark.parametrize(
    ("described_as", "said"),
    [
        (2, "t-2 does not exist: "),
        (-ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 't' is not known to the cluster after "),
    ],
)
def test_the_error_for_a_missing_topic_gives_no_number_of_partitions(described_as, said):
    """The error for a missing topic gives no number of partitions."""

    async def act(client: NetworkClient) -> None:
        now = asyncio.get_running_loop().time()
        client.metadata.add_topic("t", now)
        client.metadata.update(described(ELSEWHERE, {"t": described_as}), now)
        with pytest.raises(KafkaTimeoutError) as caught:
            await client.wait_for_topics(["t"], now, partition=2)
        assert str(caught.value).startswith(said)

    _run(ELSEWHERE, act)
