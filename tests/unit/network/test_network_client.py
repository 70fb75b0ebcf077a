"""Questions that any node can answer, when none does or when nobody waits any more."""

from __future__ import annotations

import asyncio
import socket

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.network.network_client import NetworkClient


def test_a_question_that_fails_after_its_asker_has_gone_is_no_unhandled_error(monkeypatch):
    """Who asked has had an answer, the time-out; the loop must not hear of it once more."""
    # asyncio.shield reports it to the loop from Python 3.14 on, which would end the producer.
    monkeypatch.delattr(asyncio, "shield")
    unhandled: list[dict[str, object]] = []

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, it: unhandled.append(it))
        config = ProducerConfig.from_mapping(
            {
                "bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}",
                "request.timeout.ms": 50,
                "socket.connection.setup.timeout.ms": 50,
                "socket.connection.setup.timeout.max.ms": 50,
            }
        )
        client = NetworkClient(config)
        loop = asyncio.get_running_loop()
        patient = loop.create_task(client.update_metadata(loop.time() + 0.2))
        await asyncio.sleep(0)
        with pytest.raises(NetworkError, match=r"bootstrap\.servers"):
            await client.update_metadata(loop.time() + 0.01)
        question = client._metadata_update
        assert question is not None
        patient.cancel()
        await asyncio.wait({question})
        assert not client.is_updating_metadata
        await client.close()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(ask())
    assert [] == unhandled


def test_a_question_is_asked_once_for_all_who_want_to_know():
    """A second asker joins the question that is under way, and both hear its outcome."""

    async def ask() -> list[object]:
        client = NetworkClient(ProducerConfig.from_mapping({"bootstrap.servers": address}))
        deadline = asyncio.get_running_loop().time() + 0.1
        answers = await asyncio.gather(
            *(client.update_metadata(deadline) for _ in range(2)), return_exceptions=True
        )
        await client.close()
        return answers

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        first, second = asyncio.run(ask())
    assert isinstance(first, NetworkError)
    assert isinstance(second, NetworkError)
