"""Connecting to one of a host's addresses."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection.dialer import Dialer, addresses_in_turn
from spark_kafka_sink.network.connection.host_resolver import Address, HostResolver
from tests.support.network.scripted_transport import run_without_waiting

NODE = Node(1, "host", 9092)


def _address(family: int, *where: object) -> Address:
    return Address(family, socket.IPPROTO_TCP, where)


def _dialer(addresses: list[Address]) -> Dialer:
    """Return a dialer for hosts that all have these addresses."""
    found = [(it.family, socket.SOCK_STREAM, it.protocol, "", it[2]) for it in addresses]
    return Dialer(HostResolver(getaddrinfo=lambda *_, **__: found))


def _connect(dialer: Dialer, times: int = 1) -> list[tuple]:
    """Connect `times` times, hang up, and return the addresses that were reached."""
    reached = []

    async def connect() -> None:
        for _ in range(times):
            transport = await dialer.connect(NODE, timeout=30)
            reached.append(transport._socket.getpeername())
            transport.close()

    asyncio.run(connect())
    return reached


def _without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine whose name service knows IPv6 and whose kernel does not."""

    class Socket(socket.socket):
        def __init__(self, family: int = -1, *rest: object, **named: object) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *rest, **named)

    monkeypatch.setattr(socket, "socket", Socket)


def test_addresses_of_an_unsupported_family_are_skipped(monkeypatch):
    """Without IPv6, the IPv4 address of a broker that has both is enough."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ipv4 = _address(socket.AF_INET, *server.getsockname())
        with monkeypatch.context() as machine:
            _without_ipv6(machine)
            dialer = _dialer([_address(socket.AF_INET6, "::1", 9, 0, 0), ipv4])
            assert [server.getsockname()] == _connect(dialer)


def test_the_error_of_the_last_unusable_address_is_raised(monkeypatch):
    """The error of the last address is raised."""
    with monkeypatch.context() as machine:
        _without_ipv6(machine)
        with pytest.raises(OSError, match="Address family not supported"):
            _connect(_dialer([_address(socket.AF_INET6, "::1", 9, 0, 0)]))


def test_a_host_refuses_connections_only_if_every_address_does(monkeypatch, unused_port):
    """Something may listen at an unreachable address, even if all others refuse."""
    refused = _address(socket.AF_INET, "127.0.0.1", unused_port)
    other = _address(socket.AF_INET6, "::1", 9, 0, 0)
    with monkeypatch.context() as machine:
        _without_ipv6(machine)
        for addresses in ([refused, other], [other, refused]):
            with pytest.raises(OSError, match="Address family not supported"):
                _connect(_dialer(addresses))
    with pytest.raises(ConnectionRefusedError):
        _connect(_dialer([refused, refused]))


def test_a_refused_address_is_followed_by_the_next(unused_port):
    """The first address that answers is used."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        hosts = [("127.0.0.1", unused_port), server.getsockname()]
        addresses = [_address(socket.AF_INET, *host) for host in hosts]
        assert [server.getsockname()] == _connect(_dialer(addresses))


def test_a_host_without_an_address_is_an_error():
    """The error for an empty answer of the name service says so."""
    with pytest.raises(OSError, match="host has no address"):
        _connect(_dialer([]))


def test_a_silent_address_leaves_time_for_the_next(monkeypatch):
    """At every attempt, a route that swallows packets costs only its share of the time."""
    silent = _address(socket.AF_INET, "192.0.2.1", 9092)
    other = _address(socket.AF_INET, "192.0.2.2", 9092)
    tried = []

    class Resolver(HostResolver):
        async def addresses(self, host: str, port: int) -> list[Address]:
            del port
            return {"host": [silent, other], "silent": [silent]}[host]

    async def connect(loop: asyncio.AbstractEventLoop, _: socket.socket, where: tuple) -> None:
        tried.append((where, loop.time()))
        await (asyncio.Event().wait() if where == silent.socket_address else asyncio.sleep(0))

    async def run() -> tuple[list, float]:
        dialer, began = Dialer(Resolver()), asyncio.get_running_loop().time()
        (await dialer.connect(NODE, 30)).close()
        with pytest.raises(TimeoutError):
            await dialer.connect(NODE._replace(host="silent"), 30)
        seconds = asyncio.get_running_loop().time() - began
        return [(where, at - began) for where, at in tried], seconds

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", connect)
    addresses = [silent.socket_address, other.socket_address, silent.socket_address]
    assert (list(zip(addresses, [0, 15, 15], strict=True)), 45) == run_without_waiting(run)


def test_the_next_connection_goes_to_the_next_address():
    """After a lost connection, another address of the host is tried first."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        servers = [one.getsockname(), other.getsockname()]
        dialer = _dialer([_address(socket.AF_INET, *where) for where in servers])
        assert [*servers, *servers] == _connect(dialer, times=4)


def test_each_node_has_its_own_order_of_addresses():
    """Attempts for one node affect neither another nor the same id with another host name."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        servers = [one.getsockname(), other.getsockname()]
        dialer = _dialer([_address(socket.AF_INET, *where) for where in servers])

        async def connect(node: Node) -> tuple:
            transport = await dialer.connect(node, timeout=30)
            reached = transport._socket.getpeername()
            transport.close()
            return reached

        async def connect_all() -> list[tuple]:
            return [await connect(NODE), await connect(NODE._replace(host="moved"))]

        assert [servers[0], servers[0]] == asyncio.run(connect_all())


@given(st.lists(st.integers(1, 9), unique=True, min_size=1), st.data())
def test_every_address_is_tried_beginning_after_the_last_one(ports, data):
    """All addresses are tried, starting after the one that was tried last."""
    addresses = [_address(socket.AF_INET, "h", port) for port in ports]
    last = data.draw(st.sampled_from(addresses))
    in_turn = addresses_in_turn(addresses, last)
    assert sorted(addresses) == sorted(in_turn)
    assert last == in_turn[-1]


def test_a_removed_address_does_not_change_the_order():
    """If the address tried last no longer exists, the system's order is used."""
    addresses = [_address(socket.AF_INET, "h", port) for port in (1, 2)]
    assert addresses == addresses_in_turn(addresses, _address(socket.AF_INET, "h", 3))
    assert addresses == addresses_in_turn(addresses, None)
