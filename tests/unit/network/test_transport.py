"""Connecting to one of a host's addresses."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from spark_kafka_sink.network.transport import PlaintextTransport


def _connect(addresses: list[tuple], monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect to a host that has these addresses, and close again."""

    async def resolve(*_: object, **__: object) -> list[tuple]:
        return addresses

    async def connect() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        transport = await PlaintextTransport.connect("host", 9092, timeout=0.1)
        transport.close()

    asyncio.run(connect())


def _address(family: int, *address: object) -> tuple:
    return (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)


def _without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a machine whose name service knows IPv6, and whose kernel does not."""

    class Socket(socket.socket):
        def __init__(self, family: int = -1, *rest: object, **named: object) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *rest, **named)

    monkeypatch.setattr(socket, "socket", Socket)


def test_an_address_of_a_family_that_the_machine_lacks_is_passed_over(monkeypatch):
    """Where IPv6 is switched off, a broker's IPv4 address beside it is enough."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ipv4 = _address(socket.AF_INET, *server.getsockname())
        with monkeypatch.context() as machine:
            _without_ipv6(machine)
            _connect([_address(socket.AF_INET6, "::1", 9, 0, 0), ipv4], machine)


def test_a_host_of_which_no_address_can_be_used_tells_why(monkeypatch):
    """The last address's error is the one that is raised."""
    with monkeypatch.context() as machine:
        _without_ipv6(machine)
        with pytest.raises(OSError, match="Address family not supported"):
            _connect([_address(socket.AF_INET6, "::1", 9, 0, 0)], machine)


def test_a_refused_address_is_followed_by_the_next(monkeypatch):
    """The first address that answers is taken."""
    with socket.socket() as unused, socket.create_server(("127.0.0.1", 0)) as server:
        unused.bind(("127.0.0.1", 0))
        addresses = [_address(socket.AF_INET, *s.getsockname()) for s in (unused, server)]
        _connect(addresses, monkeypatch)


def test_a_host_without_an_address_is_an_error(monkeypatch):
    """An empty answer of the name service is told as such."""
    with pytest.raises(OSError, match="host has no address"):
        _connect([], monkeypatch)


def test_an_address_that_never_answers_leaves_time_for_the_next(monkeypatch):
    """A route that swallows packets costs its share of the time, not all of it, at every try."""
    silent = ("192.0.2.1", 9092)
    sock_connect = asyncio.SelectorEventLoop.sock_connect

    async def connect(loop: asyncio.SelectorEventLoop, sock: socket.socket, address: tuple) -> None:
        await (asyncio.Event().wait() if address == silent else sock_connect(loop, sock, address))

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", connect)
    with socket.create_server(("127.0.0.1", 0)) as server:
        ipv4 = _address(socket.AF_INET, *server.getsockname())
        _connect([_address(socket.AF_INET, *silent), ipv4], monkeypatch)
    with pytest.raises(TimeoutError):
        _connect([_address(socket.AF_INET, *silent)], monkeypatch)
