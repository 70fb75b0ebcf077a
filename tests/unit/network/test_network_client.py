"""Questions that any node can answer, the wait for topics, and which node is asked when."""

from __future__ import annotations

import asyncio
import errno
import itertools
import select
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import BrokerError, KafkaTimeoutError, NetworkError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.host_resolver import HostResolver
from spark_kafka_sink.network.least_loaded_node import Availability
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tests.support.metadata_script import MetadataScript, described
from tests.support.recording_listener import RecordingListener
from tests.support.scripted_broker import ScriptedBroker
from tests.support.scripted_transport import AnsweringTransport, run_without_waiting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from spark_kafka_sink.network.transport import Transport

FAST = {
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 10,
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 10,
    "request.timeout.ms": 20_000,
    "linger.ms": 0,
}
NODE = Node(7, "h.example", 9092)
#: Only the socket limits how much is sent.
MANY_IN_FLIGHT = {"max.in.flight.requests.per.connection": 1_000_000, "enable.idempotence": False}
#: Long enough for a machine that is busy with something else.
PATIENCE = 20.0


def _address(node: Node) -> str:
    return f"{node.host}:{node.port}"


def _run(
    servers: str,
    act: Callable[[NetworkClient], Awaitable[object]],
    *,
    listener: RecordingListener | None = None,
    resolver: HostResolver | None = None,
    **settings: object,
) -> object:
    """Do something with a client, and close it whatever happens."""

    async def run() -> object:
        config = ProducerConfig.from_mapping({"bootstrap.servers": servers, **FAST, **settings})
        client = NetworkClient(config, listener=listener, resolver=resolver)
        try:
            return await act(client)
        finally:
            await client.close()

    return asyncio.run(run())


def _run_in_memory(
    connect: Callable[[Node], Transport],
    act: Callable[[NetworkClient], Awaitable[object]],
    *,
    listener: RecordingListener | None = None,
    **settings: object,
) -> object:
    """Do the same with connections in memory, on a clock that waits for nothing."""

    async def connect_at_once(node: Node, _timeout: float) -> Transport:
        return connect(node)

    async def run() -> object:
        config = ProducerConfig.from_mapping(
            {"bootstrap.servers": _address(NODE), **FAST, **settings}
        )
        client = NetworkClient(config, listener=listener)
        client._dialer.connect = connect_at_once
        try:
            return await act(client)
        finally:
            await client.close()

    return run_without_waiting(run)


def _answering(
    script: Callable[[bytes], bytes | None], *absent: Node
) -> Callable[[Node], Transport]:
    """Connect to any node, but to those where nobody listens."""

    def connect(node: Node) -> Transport:
        if node in absent:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "")
        return AnsweringTransport(script)

    return connect


async def _wait(client: NetworkClient, *topics: str, within: float, **more: int) -> None:
    await client.wait_for_topics(topics, asyncio.get_running_loop().time() + within, **more)


async def _until(condition: Callable[[], bool]) -> None:
    """Let the loop go on until something has happened that it does by itself."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  any change at all may bring it about
            await asyncio.sleep(0.001)


def _error_of(code: ErrorCode) -> int:
    """Give an error code as `described` takes it."""
    return -code


@pytest.fixture
def nowhere(unused_port):
    """Return a node with an address on which nobody listens."""
    return Node(5, "127.0.0.1", unused_port)


def test_a_question_that_fails_after_its_asker_has_gone_is_no_unhandled_error(monkeypatch):
    """Who asked has had an answer, the time-out; the loop must not hear of it once more."""
    # asyncio.shield reports it to the loop from Python 3.14 on, which would end the producer.
    monkeypatch.delattr(asyncio, "shield")
    unhandled: list[dict[str, object]] = []

    async def ask(client: NetworkClient) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, it: unhandled.append(it))
        patient = loop.create_task(client.update_metadata(loop.time() + 60))
        await asyncio.sleep(0)
        with pytest.raises(NetworkError, match=r"bootstrap\.servers"):
            await client.update_metadata(loop.time() + 10)
        question = client._metadata_updater._question
        assert question is not None
        patient.cancel()
        await asyncio.wait({question})
        assert not client.is_updating_metadata

    _run_in_memory(_answering(lambda _: b""), ask)
    assert [] == unhandled


def test_a_question_is_asked_once_for_all_who_want_to_know():
    """A second asker joins the question that is under way, and both hear its outcome."""

    async def ask(client: NetworkClient) -> list[object]:
        deadline = asyncio.get_running_loop().time() + 1
        return await asyncio.gather(
            *(client.update_metadata(deadline) for _ in range(2)), return_exceptions=True
        )

    first, second = _run_in_memory(_answering(lambda _: b"", Node(-1, *NODE[1:])), ask)
    assert isinstance(first, NetworkError)
    assert first is second


# --- waiting for topics


def test_a_topic_that_does_not_come_is_told_with_the_broker_and_its_last_word():
    """The time-out names the topic, who answered last, and what."""
    unknown = _error_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    script = MetadataScript(lambda _: described(NODE, {"t": unknown}))
    with pytest.raises(KafkaTimeoutError) as caught:
        _run_in_memory(_answering(script), lambda client: _wait(client, "t", within=1.0))
    message = str(caught.value)
    assert "topic 't' is not known to the cluster after 1.0 s (max.block.ms)" in message
    assert "h.example:9092 (id -1): topic 't'" in message
    assert "UNKNOWN_TOPIC_OR_PARTITION" in message
    assert isinstance(caught.value.__cause__, BrokerError)
    assert len(script.asked) > 50


def test_a_topic_of_which_nobody_answers_is_told_with_the_addresses_tried():
    """Where no broker can be reached, the error names the topic, the address and the reason."""
    nobody = Node(-1, *NODE[1:])
    with pytest.raises(NetworkError) as caught:
        _run_in_memory(
            _answering(lambda _: None, nobody), lambda client: _wait(client, "t", within=1.0)
        )
    message = str(caught.value)
    assert "topic 't' is not known after 1.0 s" in message
    assert _address(NODE) in message
    assert "Connection refused" in message


def test_topics_that_come_later_are_waited_for():
    """A topic that the broker creates on being asked for appears within the time given."""
    answers = itertools.count()

    def answer(_: object) -> MetadataResponse:
        created = next(answers) >= 2
        count = 3 if created else _error_of(ErrorCode.LEADER_NOT_AVAILABLE)
        return described(broker.node, {"t": count})

    async def act(client: NetworkClient) -> int:
        await _wait(client, "t", within=PATIENCE)
        return client.metadata.snapshot.partition_count("t")

    with ScriptedBroker(MetadataScript(answer)) as broker:
        assert 3 == _run(_address(broker.node), act)


def test_a_partition_beyond_those_known_is_asked_for_first():
    """A topic that has grown since it was last asked about has the partition after all."""
    counts = itertools.chain([2, 2], itertools.repeat(4))

    async def act(client: NetworkClient) -> int:
        await _wait(client, "t", within=PATIENCE)
        await _wait(client, "t", within=PATIENCE, partition=1)
        await _wait(client, "t", within=PATIENCE, partition=3)
        return client.metadata.snapshot.partition_count("t")

    script = MetadataScript(lambda _: described(broker.node, {"t": next(counts)}))
    with ScriptedBroker(script) as broker:
        assert 4 == _run(_address(broker.node), act)
    assert 3 == len(script.asked)


def test_a_partition_that_there_is_not_is_refused_at_the_deadline():
    """The error says which partition is missing, and how many there are."""
    script = MetadataScript(lambda _: described(NODE, {"t": 2}))
    with pytest.raises(KafkaTimeoutError, match=r"t-2 does not exist: .* has 2 partitions"):
        _run_in_memory(
            _answering(script), lambda client: _wait(client, "t", within=1.0, partition=2)
        )
    assert len(script.asked) > 50


async def _refused_twice(client: NetworkClient) -> list[str]:
    refusals = []
    for _ in range(2):
        with pytest.raises(BrokerError) as caught:
            await _wait(client, "t", within=PATIENCE)
        refusals.append(caught.value.name)
    return refusals


@pytest.mark.parametrize(
    ("code", "questions"),
    [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, 2), (ErrorCode.INVALID_TOPIC_EXCEPTION, 1)],
)
def test_a_topic_that_is_refused_is_told_at_once(code, questions):
    """A missing right is asked about once for each who wants the topic, a bad name only once."""
    script = MetadataScript(lambda _: described(broker.node, {"t": _error_of(code)}))
    with ScriptedBroker(script) as broker:
        assert [code.name] * 2 == _run(_address(broker.node), _refused_twice)
    assert [("t",)] * questions == script.asked


def test_new_topics_are_asked_about_without_the_known_ones():
    """A producer with many topics asks about the next one alone."""

    async def act(client: NetworkClient) -> None:
        await _wait(client, "t", within=PATIENCE)
        await _wait(client, "u", "v", within=PATIENCE)
        assert {"t", "u", "v"} == set(client.metadata.snapshot.topics)

    def answer(request: object) -> MetadataResponse:
        return described(broker.node, {topic.name: 1 for topic in request.topics})

    script = MetadataScript(answer)
    with ScriptedBroker(script) as broker:
        _run(_address(broker.node), act)
    assert [("t",), ("u", "v")] == script.asked


def test_a_refresh_asks_about_all_topics_however_new_the_metadata_is():
    """One question, with no back-off before it; the answer replaces what was known."""
    counts = {"one": 4, "two": 1}
    script = MetadataScript(lambda _: described(broker.node, counts))

    async def act(client: NetworkClient) -> None:
        await _wait(client, "one", "two", within=PATIENCE)
        asked = len(script.asked)
        counts["one"] = 2
        await client.refresh_metadata(asyncio.get_running_loop().time() + PATIENCE)
        assert [("one", "two")] == script.asked[asked:]
        assert 2 == client.metadata.snapshot.partition_count("one")

    with ScriptedBroker(script) as broker:
        _run(_address(broker.node), act, **{"retry.backoff.ms": 900_000})


def test_a_refresh_is_tried_again_until_its_deadline():
    """A connection that was closed meanwhile costs another question, not the refresh."""
    hang_ups = 2
    answers = 0

    def answer(_: MetadataRequest) -> MetadataResponse | None:
        nonlocal answers
        answers += 1
        if 1 < answers <= 1 + hang_ups:
            return None
        return described(broker.node, {"t": 1})

    async def act(client: NetworkClient) -> None:
        await _wait(client, "t", within=PATIENCE)
        await client.refresh_metadata(asyncio.get_running_loop().time() + PATIENCE)

    with ScriptedBroker(MetadataScript(answer)) as broker:
        _run(_address(broker.node), act)
    assert 2 + hang_ups == answers


def test_a_refresh_that_nobody_answers_ends_at_its_deadline():
    """It raises who was asked in vain, and what was known stays."""
    script = MetadataScript(lambda _: described(broker.node, {"t": 1}) if known else None)
    known = True

    async def act(client: NetworkClient) -> None:
        nonlocal known
        await _wait(client, "t", within=PATIENCE)
        known = False
        with pytest.raises(NetworkError):
            await client.refresh_metadata(asyncio.get_running_loop().time() + 0.05)
        assert 1 == client.metadata.snapshot.partition_count("t")

    with ScriptedBroker(script) as broker:
        _run(_address(broker.node), act)


def test_a_broker_that_knows_no_brokers_is_asked_again():
    """An answer of a broker that is still starting does not pass for a cluster."""
    answers = itertools.count()

    def answer(_: object) -> MetadataResponse:
        if next(answers):
            return described(broker.node, {"t": 1})
        return MetadataResponse(brokers=(), topics=())

    async def act(client: NetworkClient) -> None:
        await _wait(client, "t", within=PATIENCE)
        assert "knows of no brokers" in str(client.last_error)

    with ScriptedBroker(MetadataScript(answer)) as broker:
        _run(_address(broker.node), act)


@pytest.mark.parametrize("is_interrupted", [False, True], ids=["paused", "stopped by a signal"])
def test_an_answer_that_arrived_during_a_pause_of_the_process_ends_the_wait(is_interrupted):
    """After a pause beyond the deadline, the answer is read before the time-out is looked at."""
    may_answer = threading.Event()
    may_answer.set()

    def answer(request: object) -> MetadataResponse:
        assert may_answer.wait(30)
        return described(broker.node, {topic.name: 1 for topic in request.topics})

    async def act(client: NetworkClient) -> int:
        loop, pause = asyncio.get_running_loop(), 0.0
        real_time, real_select = loop.time, loop._selector.select
        loop.time = lambda: real_time() + pause

        # After SIGSTOP the first poll ends early and reports no socket, though one is readable.
        def interrupted_select(_timeout: float) -> list:
            loop._selector.select = real_select
            return []

        await _wait(client, "t", within=PATIENCE)
        [connection] = client._connections.values()
        for topic in ("u", "v", "w"):
            may_answer.clear()
            waiting = loop.create_task(_wait(client, topic, within=PATIENCE))
            while not connection.in_flight_count:  # noqa: ASYNC110  no time passes
                await asyncio.sleep(0)
            may_answer.set()
            # Nothing else happens on the loop until the answer is there.
            select.select([connection._transport._socket], [], [], 30)
            pause += 60.0
            if is_interrupted:
                loop._selector.select = interrupted_select
            await waiting
        return len(client.metadata.snapshot.topics)

    with ScriptedBroker(MetadataScript(answer)) as broker:
        assert 4 == _run(_address(broker.node), act)


# --- beginning anew


def _answers_but_once(broker: Callable[[], Node], gone: Node) -> Callable[[object], object]:
    """Name a broker that cannot be reached, hang up on the second question, then name itself."""
    answers = itertools.count()

    def answer(_: object) -> MetadataResponse | None:
        match next(answers):
            case 0:
                return described(gone, {"t": 1})
            case 1:
                return None
        return described(broker(), {"t": 1, "u": 1})

    return answer


def test_the_bootstrap_servers_are_asked_again_when_no_known_broker_is_there(nowhere):
    """A cluster that has moved is found where it was found first (KIP-899)."""

    async def act(client: NetworkClient) -> dict[int, Node]:
        await _wait(client, "t", within=PATIENCE)
        await _wait(client, "u", within=PATIENCE)
        return dict(client.metadata.snapshot.nodes)

    script = MetadataScript(_answers_but_once(lambda: broker.node, nowhere))
    with ScriptedBroker(script) as broker:
        assert {7: broker.node} == _run(_address(broker.node), act)


def test_with_the_strategy_none_only_known_brokers_are_tried():
    """metadata.recovery.strategy=none never goes back to bootstrap.servers."""
    gone = Node(5, "gone.example", 9092)

    async def act(client: NetworkClient) -> None:
        await _wait(client, "t", within=PATIENCE)
        with pytest.raises(NetworkError, match=r"gone\.example:9092 \(id 5\).*refused"):
            await _wait(client, "u", within=1.0)

    script = MetadataScript(_answers_but_once(lambda: NODE, gone))
    strategy = {"metadata.recovery.strategy": "none"}
    _run_in_memory(_answering(script, gone), act, **strategy)
    assert 1 == script.connections


def test_a_broker_can_ask_for_a_new_beginning():
    """REBOOTSTRAP_REQUIRED closes the connections, and bootstrap.servers are asked (KIP-1102)."""
    answers = itertools.count()
    listener = RecordingListener()

    def answer(_: object) -> MetadataResponse:
        if next(answers) == 1:
            return MetadataResponse(
                brokers=(), topics=(), error_code=ErrorCode.REBOOTSTRAP_REQUIRED
            )
        return described(broker.node, {"t": 1, "u": 1})

    async def act(client: NetworkClient) -> None:
        await _wait(client, "t", within=PATIENCE)
        await _wait(client, "u", within=PATIENCE)
        assert {7: broker.node} == client.metadata.snapshot.nodes

    with ScriptedBroker(MetadataScript(answer)) as broker:
        _run(_address(broker.node), act, listener=listener)
    changes = [event for event in listener.events if "connected" in event[0]]
    expected = [("connected", -1), ("disconnected", -1)] * 2
    assert expected == changes


def test_a_refused_beginning_is_no_reason_to_stop(nowhere):
    """With the strategy none, REBOOTSTRAP_REQUIRED is an error like any other: asked again."""
    answers = itertools.count()

    def answer(_: object) -> MetadataResponse:
        if next(answers) == 0:
            return MetadataResponse(
                brokers=(), topics=(), error_code=ErrorCode.REBOOTSTRAP_REQUIRED
            )
        return described(broker.node, {"t": 1})

    async def act(client: NetworkClient) -> None:
        await _wait(client, "t", within=PATIENCE)
        assert "REBOOTSTRAP_REQUIRED" in str(client.last_error)

    script = MetadataScript(answer)
    with ScriptedBroker(script) as broker:
        _run(_address(broker.node), act, **{"metadata.recovery.strategy": "none"})
    assert 1 == script.connections


def test_brokers_that_give_no_metadata_for_too_long_are_forgotten():
    """After metadata.recovery.rebootstrap.trigger.ms in vain the client begins anew (KIP-1102)."""
    answers = itertools.count()

    def answer(_: object) -> MetadataResponse:
        if 0 < next(answers) < 3:
            return MetadataResponse(brokers=(), topics=())
        return described(broker.node, {"t": 1, "u": 1})

    async def act(client: NetworkClient) -> None:
        await _wait(client, "t", within=PATIENCE)
        await _wait(client, "u", within=PATIENCE)

    script = MetadataScript(answer)
    with ScriptedBroker(script) as broker:
        trigger = {"metadata.recovery.rebootstrap.trigger.ms": 0}
        _run(_address(broker.node), act, **trigger)
    assert script.connections > 1


def test_the_bootstrap_servers_become_nodes_by_their_canonical_names():
    """resolve_canonical_bootstrap_servers_only connects to what stands behind an alias."""
    asked = []

    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]

    resolver = HostResolver(
        getaddrinfo=getaddrinfo, getnameinfo=lambda *_: ("canonical.example", "0")
    )
    with ScriptedBroker(MetadataScript(lambda _: described(broker.node, {"t": 1}))) as broker:
        _run(
            f"alias.example:{broker.node.port}",
            lambda client: _wait(client, "t", within=PATIENCE),
            resolver=resolver,
            **{"client.dns.lookup": "resolve_canonical_bootstrap_servers_only"},
        )
    assert ["alias.example", "canonical.example"] == asked


# --- connections


def test_a_throttled_node_gets_no_requests_before_its_time():
    """What an answer asks for is kept to, and can be seen (KIP-219)."""
    bootstrap = Node(-1, *NODE[1:])

    async def act(client: NetworkClient) -> None:
        await _wait(client, "t", within=PATIENCE)
        until = client.throttled_until(bootstrap)
        assert 60.0 == until - asyncio.get_running_loop().time()
        assert until == client.ready_at(bootstrap)
        assert client.ready_connection(bootstrap) is None
        assert 0.0 == client.throttled_until(NODE)

    script = MetadataScript(lambda _: described(NODE, {"t": 1}, throttle_time_ms=60_000))
    _run_in_memory(_answering(script), act)


def test_a_node_that_asks_for_a_pause_is_asked_again_after_it():
    """Where there is no other node, a question waits for the end of the pause, and no longer."""
    bootstrap = Node(-1, *NODE[1:])

    async def act(client: NetworkClient) -> float:
        await _wait(client, "t", within=PATIENCE)
        began = asyncio.get_running_loop().time()
        await _wait(client, "u", within=PATIENCE)
        return asyncio.get_running_loop().time() - began

    known = {"t": 1, "u": 1}
    script = MetadataScript(lambda _: described(bootstrap, known, throttle_time_ms=10_000))
    assert 10.0 == _run_in_memory(_answering(script), act)


def test_connections_are_told_to_the_listener(nowhere):
    """Attempts, connections and their ends are told; those that are ready are counted."""
    listener = RecordingListener()

    async def act(client: NetworkClient) -> None:
        await _wait(client, "t", within=PATIENCE)
        assert 1 == client.connection_count
        assert client.ready_connection(nowhere) is None
        await _until(lambda: ("connection failed", 5) in listener.events)

    with ScriptedBroker(MetadataScript(lambda _: described(broker.node, {"t": 1}))) as broker:
        _run(_address(broker.node), act, listener=listener)
    assert ("connected", -1) in listener.events
    assert ("disconnected", -1) == listener.events[-1]


def test_an_idle_connection_is_closed_without_an_alarm():
    """What connections.max.idle.ms ends is no error, and no reason to ask for metadata."""
    listener = RecordingListener()

    async def act(client: NetworkClient) -> None:
        await _wait(client, "t", within=PATIENCE)
        due = client.metadata.next_update_at()
        await asyncio.sleep(29.0)
        assert 1 == client.connection_count
        await asyncio.sleep(2.0)
        assert 0 == client.connection_count
        assert client.last_error is None
        assert due == client.metadata.next_update_at()

    script = MetadataScript(lambda _: described(NODE, {"t": 1}))
    idle = {"connections.max.idle.ms": 30_000}
    _run_in_memory(_answering(script), act, listener=listener, **idle)
    assert ("disconnected", -1) == listener.events[-1]


def test_a_name_service_that_hangs_does_not_hold_up_the_close():
    """Closing ends at once, though the look-up of a name may go on for a minute."""
    hanging, answer, answered = threading.Event(), threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> list[tuple]:
        hanging.set()
        answer.wait(60)
        answered.set()
        return []

    async def act(client: NetworkClient) -> None:
        attempt = asyncio.ensure_future(_wait(client, "t", within=60))
        await _until(hanging.is_set)
        attempt.cancel()

    _run("h.example:9092", act, resolver=HostResolver(getaddrinfo=hang))
    assert not answered.is_set()
    answer.set()
    assert answered.wait(60)


def test_an_attempt_that_is_given_up_before_it_began_can_be_made_again():
    """A new beginning gives up attempts that are under way, and leaves nothing behind of them."""

    async def act(client: NetworkClient) -> None:
        bootstrap = Node(-1, *broker.node[1:])
        assert client.ready_connection(bootstrap) is None
        client.rebootstrap()
        await _wait(client, "t", within=PATIENCE)

    with ScriptedBroker(MetadataScript(lambda _: described(broker.node, {"t": 1}))) as broker:
        _run(_address(broker.node), act)


def test_a_fault_of_ours_in_connecting_is_not_hidden():
    """An error that is none of the network's reaches the loop, not only a later time-out."""
    unexpected: list[object] = []

    def fail(_: Node) -> Transport:
        raise LookupError("a fault")

    async def act(client: NetworkClient) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unexpected.append(context["exception"]))
        with pytest.raises(NetworkError):
            await _wait(client, "t", within=1.0)

    _run_in_memory(fail, act)
    assert isinstance(unexpected[0], LookupError)


def test_a_node_that_stops_reading_is_given_no_further_request():
    """One request may wait for its socket; then the node takes none, until that one is gone."""
    reads_on = threading.Event()
    script = MetadataScript(lambda _: described(broker.node, {}))

    def stop_reading(frame: bytes) -> bytes | None:
        if len(frame) <= 1_000:
            return script(frame)
        reads_on.wait(PATIENCE)
        return None

    async def ask(client: NetworkClient) -> None:
        loop = asyncio.get_running_loop()
        connection = await client.least_loaded_connection(loop.time() + PATIENCE)
        node = connection.node
        assert Availability.READY is client.least_loaded_node(loop.time()).availability
        # More than sockets hold, in requests of which each is read as a whole.
        topics = tuple(str(number) * 100 for number in range(100))
        request = MetadataRequest(topics=tuple(MetadataRequestTopic(name=t) for t in topics))
        outcomes = []
        while not connection.has_unsent:
            outcomes.append(connection.send(request))
        assert client.ready_connection(node) is None
        assert Availability.SATURATED is client.least_loaded_node(loop.time()).availability
        client.close_unsent()
        reads_on.set()
        results = await asyncio.gather(*outcomes, return_exceptions=True)
        assert {NetworkError} == set(map(type, results))

    with ScriptedBroker(stop_reading) as broker:
        try:
            _run(_address(broker.node), ask, **MANY_IN_FLIGHT)
        finally:
            reads_on.set()


def test_a_node_that_has_everything_keeps_its_connection():
    """Only connections whose socket has not taken a request are closed for its sake."""

    async def ask(client: NetworkClient) -> None:
        await _until(lambda: client.ready_connection(broker.node) is not None)
        client.close_unsent()
        assert client.ready_connection(broker.node) is not None

    with ScriptedBroker(MetadataScript(lambda _: described(broker.node, {}))) as broker:
        _run(_address(broker.node), ask)
