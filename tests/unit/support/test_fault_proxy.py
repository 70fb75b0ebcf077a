"""The fault proxy, between a plain socket and a broker that answers in upper case."""

from __future__ import annotations

import asyncio
import queue
import select
import socket
import struct

import pytest

from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.support.faults.fault_proxy import FaultProxy
from tests.support.faults.fault_rules import Action, Fault, FaultRules, Side
from tests.support.kafka.real_kafka import wait_until
from tests.support.network.scripted_broker import ScriptedBroker

PRODUCE, METADATA = ApiKey.PRODUCE, ApiKey.METADATA
#: The bytes of a split frame after each of which the proxy pauses.
SINGLE_BYTES = 24


def answer_to(request):
    correlation_id = request[4:8]
    body = correlation_id + request[8:].upper()
    return struct.pack(">i", len(body)) + body


def request(correlation_id, text=b"abcdefgh", api_key=PRODUCE):
    body = struct.pack(">hhi", api_key, 9, correlation_id) + text
    return struct.pack(">i", len(body)) + body


def answer(correlation_id, text=b"ABCDEFGH"):
    return struct.pack(">ii", 4 + len(text), correlation_id) + text


@pytest.fixture
def broker():
    with ScriptedBroker(answer_to) as broker:
        yield broker


class Pauses:
    """Pauses of a proxy that last until a test ends them."""

    def __init__(self):
        self._begun = queue.Queue()

    async def pass_seconds(self, seconds):
        """Wait on the proxy's loop until the test ends the pause."""
        loop = asyncio.get_running_loop()
        is_over = loop.create_future()
        self._begun.put((seconds, lambda: loop.call_soon_threadsafe(is_over.set_result, None)))
        await is_over

    def next(self):
        """Wait until the proxy pauses, and return its duration and a function that ends it."""
        return self._begun.get(timeout=120)


@pytest.fixture
def pauses():
    return Pauses()


@pytest.fixture
def proxy(broker, pauses):
    with FaultProxy(seed=1, pause=pauses.pass_seconds) as proxy:
        proxy.connect_to(f"{broker.node.host}:{broker.node.port}")
        yield proxy


@pytest.fixture
def client(proxy):
    with connect(proxy) as client:
        yield client


def connect(proxy):
    host, _, port = proxy.address.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=120)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def receive(client, count):
    received = b""
    while len(received) < count and (data := client.recv(count - len(received))):
        received += data
    return received


def test_without_faults_everything_passes(client, proxy):
    """Requests and responses arrive unchanged, and are counted by side and API."""
    client.sendall(request(1) + request(2, b"x" * 100_000, METADATA))
    expected = answer(1) + answer(2, b"X" * 100_000)
    assert expected == receive(client, len(expected))
    assert {
        (side, api_key): 1 for side in Side for api_key in (PRODUCE, METADATA)
    } == proxy.rules.frames
    assert [] == proxy.strikes


def test_a_tls_client_of_an_earlier_server_is_rejected(client, proxy):
    """A client that expects an earlier server on this port is not an error of the proxy."""
    client.sendall(b"\x16\x03\x01\x02\x00\x01")
    assert b"" == receive(client, 1)
    with connect(proxy) as other:
        other.sendall(request(1))
        assert answer(1) == receive(other, len(answer(1)))


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Action.SWALLOW, b""),
        (Action.CUT, answer(2)[:8]),
    ],
)
def test_a_response_can_be_lost_with_its_connection(broker, client, proxy, action, expected):
    """The broker gets the request, and the client at most part of the response before the close."""
    fault = Fault(side=Side.ANSWER, action=action, nth=2)
    proxy.arm(fault)
    client.sendall(request(1))
    assert answer(1) == receive(client, len(answer(1)))
    client.sendall(request(2))
    assert expected == receive(client, 1000)
    wait_until(lambda: len(broker.requests) == 2, seconds=120, what="both requests")
    assert [request(1)[4:], request(2)[4:]] == broker.requests
    assert 1 == proxy.strikes_of(fault)


@pytest.mark.parametrize("action", [Action.SWALLOW, Action.CUT])
def test_a_request_can_be_lost_with_its_connection(broker, client, proxy, action):
    """The broker never gets a swallowed or cut request, and the client sees the close."""
    fault = Fault(side=Side.REQUEST, action=action)
    proxy.arm(fault)
    client.sendall(request(1))
    assert b"" == receive(client, 1)
    assert [] == broker.requests
    assert 1 == proxy.strikes_of(fault)


def test_a_connection_can_be_reset(client, proxy):
    """The client sees a reset instead of a close."""
    proxy.arm(Fault(side=Side.ANSWER, action=Action.RESET))
    client.sendall(request(1))
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_responses_can_stop_while_the_connection_stays_open(broker, client, proxy):
    """After a hang requests still reach the broker, but no response comes back."""
    proxy.arm(Fault(side=Side.ANSWER, action=Action.HANG))
    client.sendall(request(1) + request(2))
    wait_until(lambda: len(broker.requests) == 2, seconds=120, what="both requests")
    assert [request(1)[4:], request(2)[4:]] == broker.requests
    client.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.recv(1)


@pytest.mark.parametrize(("action", "early"), [(Action.DELAY, 0), (Action.STALL, 8)])
def test_a_response_can_be_delayed(client, proxy, pauses, action, early):
    """The response, or its rest, arrives unchanged after the given time."""
    proxy.arm(Fault(side=Side.ANSWER, action=action, seconds=2))
    client.sendall(request(1))
    assert answer(1)[:early] == receive(client, early)
    seconds, end = pauses.next()
    assert 2 == seconds
    assert [] == select.select([client], [], [], 0)[0]
    end()
    assert answer(1)[early:] == receive(client, len(answer(1)) - early)


def test_a_response_can_arrive_byte_by_byte(client, proxy, pauses):
    """A split response arrives completely, its size and header byte by byte."""
    proxy.arm(Fault(side=Side.ANSWER, action=Action.SPLIT))
    text = b"x" * 3000
    client.sendall(request(1, text))
    expected = answer(1, text.upper())
    for place in range(SINGLE_BYTES):
        _, end = pauses.next()
        assert expected[place : place + 1] == client.recv(100_000)
        end()
    assert expected[SINGLE_BYTES:] == receive(client, len(expected) - SINGLE_BYTES)


def test_responses_can_arrive_together(client, proxy):
    """A merged response waits for the next one and arrives with it."""
    proxy.arm(Fault(side=Side.ANSWER, action=Action.MERGE, seconds=3600))
    client.sendall(request(1))
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.sendall(request(2))
    client.settimeout(120)
    assert answer(1) + answer(2) == receive(client, 2 * len(answer(1)))


def test_a_held_response_is_forwarded_after_its_time(client, proxy):
    """A response that no other one follows is forwarded after its time."""
    proxy.arm(Fault(side=Side.ANSWER, action=Action.MERGE, seconds=0.1))
    client.sendall(request(1))
    assert answer(1) == receive(client, len(answer(1)))


def test_a_response_can_be_garbage_after_its_correlation_id(client, proxy):
    """The size and the correlation id of a garbled response are right, and the rest is not."""
    proxy.arm(Fault(side=Side.ANSWER, action=Action.GARBLE))
    client.sendall(request(1))
    received = receive(client, len(answer(1)))
    assert answer(1)[:8] == received[:8]
    assert answer(1)[8:] != received[8:]


def test_one_bit_of_a_request_can_be_flipped(broker, client, proxy):
    """A garbled request differs in one bit, at the given position."""
    proxy.arm(Fault(side=Side.REQUEST, action=Action.GARBLE, at=0.99))
    client.sendall(request(1))
    receive(client, len(answer(1)))
    assert [request(1, b"abcdefgi")[4:]] == broker.requests


def test_a_response_can_have_the_wrong_correlation_id(client, proxy):
    """Only the correlation id is changed."""
    proxy.arm(Fault(side=Side.ANSWER, action=Action.WRONG_CORRELATION_ID))
    client.sendall(request(1))
    assert answer(1_000_001) == receive(client, len(answer(1)))


def test_a_response_can_arrive_twice(client, proxy):
    """A repeated response arrives once more."""
    proxy.arm(Fault(side=Side.ANSWER, action=Action.REPEAT))
    client.sendall(request(1))
    assert answer(1) * 2 == receive(client, 2 * len(answer(1)))


@pytest.mark.parametrize("size", [-1, 2**31 - 1])
def test_a_response_can_have_the_wrong_size(client, proxy, size):
    """The response has the given size field."""
    proxy.arm(Fault(side=Side.ANSWER, action=Action.WRONG_SIZE, size=size))
    client.sendall(request(1))
    expected = struct.pack(">i", size) + answer(1)[4:]
    assert expected == receive(client, len(expected))


def test_connections_can_be_refused_for_a_while(client, proxy):
    """Refusing resets open and new connections until they are accepted again."""
    client.sendall(request(1))
    receive(client, len(answer(1)))
    proxy.refuse()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionResetError), connect(proxy) as refused:
        refused.recv(1)
    proxy.accept()
    with connect(proxy) as accepted:
        accepted.sendall(request(2))
        assert answer(2) == receive(accepted, len(answer(2)))


def test_a_proxy_ends_by_itself(broker):
    """After its lifetime a proxy has closed its connections and accepts no others."""
    proxy = FaultProxy(lifetime_seconds=0.1)
    proxy.connect_to(f"{broker.node.host}:{broker.node.port}")
    # A proxy accepts connections from the start, and serves them later.
    with connect(proxy) as client, proxy:
        assert b"" == client.recv(1)


def strike(rules, side=Side.ANSWER, api_key=PRODUCE):
    return rules.strike(side, api_key, connection=1, frame_bytes=100)


def test_a_fault_affects_only_the_frames_it_selects():
    """Only the nth frame of its side and API and those right after it are struck."""
    rules = FaultRules()
    fault = Fault(side=Side.ANSWER, action=Action.CUT, nth=2, times=2)
    rules.arm(fault)
    assert strike(rules, side=Side.REQUEST) is None
    assert strike(rules, api_key=METADATA) is None
    assert [None, fault, fault, None] == [strike(rules) for _ in range(4)]


def test_a_rule_counts_from_when_it_was_armed():
    """Frames that passed earlier do not count."""
    rules = FaultRules()
    strike(rules)
    fault = Fault(side=Side.ANSWER, action=Action.CUT)
    rules.arm(fault)
    assert fault == strike(rules)


def test_only_the_first_of_two_faults_strikes_and_both_count():
    """A frame suffers at most one fault."""
    first = Fault(side=Side.ANSWER, action=Action.CUT)
    second = Fault(side=Side.ANSWER, action=Action.DELAY, times=2)
    rules = FaultRules()
    rules.arm(first, second)
    assert [first, second, None] == [strike(rules) for _ in range(3)]


def test_strikes_can_be_waited_for():
    """Waiting returns whether the condition on the strikes was met in time."""
    rules = FaultRules()
    rules.arm(Fault(side=Side.ANSWER, action=Action.CUT))
    assert not rules.wait_for(bool, 0)
    strike(rules)
    assert rules.wait_for(bool, 0)
