"""Looking up names without blocking on a name service that hangs."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading

import pytest

from spark_kafka_sink.network.connection.host_resolver import MAX_THREADS, Address, HostResolver

WAIT = 60.0


def _found(*hosts: str) -> list[tuple]:
    return [
        (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, 9092)) for host in hosts
    ]


def test_a_lookup_imports_nothing():
    """A process that is forked during a lookup can look names up, whatever that lookup needs."""
    code = (
        "import sys\n"
        "import spark_kafka_sink.network.connection.host_resolver\n"
        "print('encodings.idna' in sys.modules)"
    )
    finished = subprocess.run(  # noqa: S603  our own interpreter and code
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    assert "True" == finished.stdout.strip()


def test_all_addresses_are_returned_in_order():
    """All addresses that the system knows are returned, in its order."""
    resolver = HostResolver(getaddrinfo=lambda *_, **__: _found("10.0.0.2", "10.0.0.1"))
    expected = [
        Address(socket.AF_INET, socket.IPPROTO_TCP, (host, 9092))
        for host in ("10.0.0.2", "10.0.0.1")
    ]
    assert expected == asyncio.run(resolver.addresses("h", 9092))


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), "not known"),
        (UnicodeError("label too long"), "label too long"),
    ],
)
def test_a_failed_lookup_is_an_os_error(failure, words):
    """The error for an unknown or invalid name has the system's message."""

    def fail(*_: object, **__: object) -> list:
        raise failure

    with pytest.raises(OSError, match=words):
        asyncio.run(HostResolver(getaddrinfo=fail).addresses("h", 9092))


def test_a_hanging_lookup_does_not_prevent_the_loop_from_closing():
    """The loop and the waiter end, while the lookup continues without them."""
    started, answer, answered = threading.Event(), threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> list:
        started.set()
        answer.wait(WAIT)
        answered.set()
        return _found("10.0.0.1")

    async def ask() -> None:
        async with asyncio.timeout(0.05):
            await HostResolver(getaddrinfo=hang).addresses("h", 9092)

    with pytest.raises(TimeoutError):
        asyncio.run(ask())
    assert started.wait(WAIT)
    assert not answered.is_set()
    # The late answer finds a closed loop, which causes no error.
    answer.set()
    assert answered.wait(WAIT)


def test_concurrent_lookups_of_a_name_are_shared():
    """All requests for a name share one lookup, even if the first of them is cancelled."""
    calls, answer = [], threading.Event()

    def slow(host: str, *_: object, **__: object) -> list:
        calls.append(host)
        answer.wait(WAIT)
        return _found("10.0.0.1")

    async def ask() -> list:
        resolver = HostResolver(getaddrinfo=slow)
        first, second = (asyncio.ensure_future(resolver.addresses("h", 1)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        answer.set()
        found = await second
        await resolver.addresses("h", 1)
        return found

    assert 1 == len(asyncio.run(ask()))
    assert ["h", "h"] == calls


class _Slow:
    """A name service that answers once it is released, and notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.release = threading.Event()

    def __call__(self, host: str, *_: object, **__: object) -> list:
        self.asked.append(host)
        self.release.wait(WAIT)
        return _found("10.0.0.1")


def _resolver_threads() -> int:
    return sum(thread.name == "kafka-host-resolver" for thread in threading.enumerate())


def test_four_hundred_hosts_share_a_few_threads():
    """Further names wait for their turn, and are all looked up."""
    slow = _Slow()
    names = [f"broker-{number}" for number in range(400)]

    async def ask() -> list[list[Address]]:
        before = _resolver_threads()
        resolver = HostResolver(getaddrinfo=slow)
        waits = [asyncio.ensure_future(resolver.addresses(name, 1)) for name in names]
        await asyncio.sleep(0)
        assert MAX_THREADS == _resolver_threads() - before
        slow.release.set()
        return await asyncio.gather(*waits)

    assert 400 == len(asyncio.run(ask()))
    assert sorted(names) == sorted(slow.asked)


def test_a_name_that_nobody_waits_for_any_more_loses_its_turn():
    """A cancelled wait costs no thread, unless another caller waits for the same name."""
    slow = _Slow()

    async def ask() -> None:
        resolver = HostResolver(getaddrinfo=slow)
        busy = [asyncio.ensure_future(resolver.addresses(f"h{i}", 1)) for i in range(MAX_THREADS)]
        given_up, shared, kept = (
            asyncio.ensure_future(resolver.addresses(name, 1))
            for name in ("given-up", "shared", "shared")
        )
        await asyncio.sleep(0)
        given_up.cancel()
        shared.cancel()
        await asyncio.wait({given_up, shared})
        slow.release.set()
        await asyncio.gather(*busy, kept)
        # A name whose turn was lost can be asked for again.
        await resolver.addresses("given-up", 1)

    asyncio.run(ask())
    assert (1, 1) == (slow.asked.count("shared"), slow.asked.count("given-up"))


def test_canonical_names_are_those_of_all_addresses():
    """Each address contributes its name once, or its number if it has none."""
    names = {"10.0.0.1": "one.example", "10.0.0.2": "one.example", "10.0.0.3": "10.0.0.3"}
    resolver = HostResolver(
        getaddrinfo=lambda *_, **__: _found(*names),
        getnameinfo=lambda where, _: (names[where[0]], "0"),
    )
    assert ["one.example", "10.0.0.3"] == asyncio.run(resolver.canonical_names("alias"))


def test_this_machine_is_resolved():
    """The default functions are the system's."""
    found = asyncio.run(HostResolver().addresses("127.0.0.1", 9092))
    assert ("127.0.0.1", 9092) in [address.socket_address for address in found]
    assert asyncio.run(HostResolver().canonical_names("127.0.0.1"))
