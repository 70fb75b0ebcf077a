"""The example of a web service, under uvicorn: many requests, and clients that go away."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support import leaks
from tests.support.producer.on_loop import LOOPS, on_loop, until
from tests.support.producer.sending import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXAMPLES = Path(__file__).parents[2] / "examples"
CONNECTIONS = 20
#: Every so many connections, one is closed without waiting for its answer.
DROPS = 4


@pytest.fixture
def broker():
    """Return a broker with the topic of the example."""
    with DevBroker(topics={"orders": 3}) as broker:
        yield broker


@pytest.fixture
def service(monkeypatch):
    """Return the example's function that creates the service."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / "fastapi_service.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "example", module)
    spec.loader.exec_module(module)
    yield module.service
    sys.modules.pop("cluster", None)


@asynccontextmanager
async def served(app) -> AsyncIterator[tuple[str, int]]:
    """Run an app on the running loop; yield its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    await until(lambda: server.started or serving.done(), "the server to start")
    try:
        yield listening.getsockname()
    finally:
        server.should_exit = True
        await serving


class Client:
    """An HTTP client with one connection, which it keeps."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    def send(self, method: str, path: str, body: object = None) -> None:
        """Send a request."""
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        )
        self.writer.write(head.encode() + content)

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request; return the status and the body of its answer."""
        self.send(method, path, body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status, *headers = head.decode().splitlines()
        [length] = [
            int(value)
            for name, _, value in (each.partition(":") for each in headers)
            if name.lower() == "content-length"
        ]
        return int(status.split()[1]), json.loads(await self._reader.readexactly(length))


@asynccontextmanager
async def connected(address: tuple[str, int]) -> AsyncIterator[Client]:
    """Connect to a server."""
    client = Client(*await asyncio.open_connection(*address))
    try:
        yield client
    finally:
        client.writer.close()


@pytest.mark.parametrize(
    ("requests", "seconds"), [(50, TIMEOUT), pytest.param(5_000, 3_600, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("loop", LOOPS)
def test_each_order_with_a_receipt_is_in_the_topic_once(broker, service, loop, requests, seconds):
    """Thousands of requests get the place of their record, also when other clients vanish."""
    before = leaks.look()
    receipts = {}

    async def order(address, connection):
        async with connected(address) as client:
            for request in range(requests):
                number = f"{connection}-{request}"
                if connection % DROPS == 0:
                    async with connected(address) as vanishing:
                        vanishing.send("PUT", f"/orders/lost-{number}", {"books": request})
                status, receipt = await client.ask("PUT", f"/orders/{number}", {"books": request})
                assert 201 == status, receipt
                receipts[number] = (receipt["partition"], receipt["offset"])

    async def main():
        tasks = asyncio.all_tasks()
        async with served(service(broker.bootstrap_servers)) as address:
            await asyncio.gather(*(order(address, number) for number in range(CONNECTIONS)))
            async with connected(address) as client:
                for connection in range(CONNECTIONS):
                    path = f"/orders/{connection}-{requests - 1}"
                    status = 404
                    while status == 404:
                        # Its record is on the way.
                        status, found = await client.ask("GET", path)
                    assert (200, {"books": requests - 1}) == (status, found)
                assert 404 == (await client.ask("GET", "/orders/none"))[0]
        assert tasks == asyncio.all_tasks()

    on_loop(main, loop, seconds=seconds)
    records = broker.records("orders")
    in_topic = [
        (record.key.decode(), (partition, record.offset))
        for partition in range(3)
        for record in records[partition]
    ]
    assert receipts == {key: place for key, place in in_topic if not key.startswith("lost-")}
    assert len(in_topic) == len(dict(in_topic))
    assert [] == leaks.left_since(before)


def test_an_order_that_brokers_refuse_has_no_receipt(broker, service):
    """The customer reads why; a request that is no order does not reach Kafka."""
    refusal = broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))

    async def main():
        async with (
            served(service(broker.bootstrap_servers)) as address,
            connected(address) as client,
        ):
            status, answer = await client.ask("PUT", "/orders/1", {"books": 1})
            assert 503 == status
            assert "TOPIC_AUTHORIZATION_FAILED" in answer["detail"]
            assert 422 == (await client.ask("PUT", "/orders/1", {"cars": 1}))[0]

    on_loop(main)
    assert 1 == refusal.fired
