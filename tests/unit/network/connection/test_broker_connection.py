from __future__ import annotations

import asyncio
import select
import struct
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.errors import BrokerError, NetworkError, UnsupportedVersionError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection import broker_connection
from spark_kafka_sink.network.connection.broker_connection import (
    LATER_RESPONSES,
    BrokerConnection,
    ConnectionSettings,
)
from spark_kafka_sink.network.connection.dialer import Dialer
from spark_kafka_sink.network.connection.host_resolver import HostResolver
from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.primitives import Writer
from spark_kafka_sink.protocol.registry import decode_request_header, encode_response
from tests.support.network.recording_listener import RecordingListener
from tests.support.network.scripted_broker import ScriptedBroker
from tests.support.network.scripted_transport import AnsweringTransport, run_without_waiting

if TYPE_CHECKING:
    from collections.abc import Callable

VERSIONS = ApiVersionsResponse(
    api_keys=(
        ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=4),
        ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=9),
    ),
    finalized_features=(
        FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=0),
    ),
)


def _versions_first(then):
    """Respond to ApiVersions, and pass every other request to `then(correlation_id, version)`."""

    def script(frame: bytes) -> bytes | None:
        header, _ = decode_request_header(frame)
        if header.request_api_key == ApiKey.API_VERSIONS:
            version = header.request_api_version
            return b"".join(encode_response(header.correlation_id, VERSIONS, version))
        return then(header.correlation_id, header.request_api_version)

    return script


def _metadata(correlation_id: int, version: int) -> bytes:
    response = MetadataResponse(brokers=(), topics=(), cluster_id=f"answer {correlation_id}")
    return b"".join(encode_response(correlation_id, response, version))


async def _open(
    node: Node,
    *,
    setup_timeout: float = 30.0,
    listener: RecordingListener | None = None,
    on_throttle: Callable[[float], None] | None = None,
    **settings: float,
) -> BrokerConnection:
    return await BrokerConnection.open(
        node,
        ConnectionSettings(**{"client_id": "test", "request_timeout": 30.0, **settings}),
        connect=Dialer(HostResolver()).connect,
        setup_timeout=setup_timeout,
        listener=listener,
        on_throttle=on_throttle,
    )


def _ask(script, count: int = 1, **settings: float) -> list:
    """Open a connection, send requests at once, and return each one's response or error."""

    async def run() -> list:
        connection = await _open(broker.node, **settings)
        futures = [connection.send(MetadataRequest(topics=())) for _ in range(count)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        connection.close()
        return results

    with ScriptedBroker(script) as broker:
        return asyncio.run(run())


def test_the_highest_common_version_is_used():
    """A request is sent in the highest version that both sides support."""
    seen = []
    _ask(_versions_first(lambda cid, version: (seen.append(version), _metadata(cid, version))[1]))
    assert [9] == seen


def test_the_caller_may_cap_the_version():
    """A request whose meaning changes in a later version is sent in the requested version."""
    seen = []

    async def run() -> None:
        connection = await _open(broker.node)
        await connection.send(MetadataRequest(topics=()), max_version=7)
        await connection.send(MetadataRequest(topics=()), max_version=99)
        connection.close()

    script = _versions_first(
        lambda cid, version: (seen.append(version), _metadata(cid, version))[1]
    )
    with ScriptedBroker(script) as broker:
        asyncio.run(run())
    assert [7, 9] == seen


def test_a_cap_below_the_brokers_versions_is_rejected():
    """If the broker no longer supports the capped versions, the request is not sent."""
    versions = NodeApiVersions({ApiKey.METADATA: (8, 12)}, {})
    with pytest.raises(UnsupportedVersionError, match="versions 8 to 12, this client 0 to 7"):
        versions.version_for(ApiKey.METADATA, 7)


def test_responses_are_matched_to_their_requests():
    """Each of several requests sent at once gets its own response, in order."""
    answers = _ask(_versions_first(_metadata), count=5)
    assert [f"answer {n}" for n in range(1, 6)] == [answer.cluster_id for answer in answers]


def test_the_brokers_versions_and_features_are_stored():
    """Versions and finalized features are known as soon as the connection is open."""

    async def run() -> None:
        connection = await _open(broker.node)
        assert {"transaction.version": 2} == connection.api_versions.finalized_features
        assert 9 == connection.api_versions.version_for(ApiKey.METADATA)
        with pytest.raises(UnsupportedVersionError, match="does not support the PRODUCE API"):
            connection.api_versions.version_for(ApiKey.PRODUCE)
        connection.close()

    with ScriptedBroker(_versions_first(_metadata)) as broker:
        asyncio.run(run())


def test_api_versions_is_repeated_in_a_version_of_the_broker():
    """A version 0 response that lists older versions is followed by a request in one of them."""
    asked = []

    def script(frame: bytes) -> bytes:
        header, _ = decode_request_header(frame)
        asked.append(header.request_api_version)
        if header.request_api_version > 2:
            refusal = ApiVersionsResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                api_keys=(ApiVersion(api_key=18, min_version=0, max_version=2),),
            )
            return b"".join(encode_response(header.correlation_id, refusal, 0))
        return b"".join(encode_response(header.correlation_id, VERSIONS, 2))

    async def run() -> None:
        connection = await _open(broker.node)
        connection.close()

    with ScriptedBroker(script) as broker:
        asyncio.run(run())
    assert [5, 2] == asked


def test_the_error_for_a_refused_api_versions_request_has_its_code():
    """The error for a refused first request names the broker's error."""

    def script(frame: bytes) -> bytes:
        header, _ = decode_request_header(frame)
        refusal = ApiVersionsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, api_keys=()
        )
        return b"".join(encode_response(header.correlation_id, refusal, 4))

    with (
        ScriptedBroker(script) as broker,
        pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"),
    ):
        asyncio.run(_open(broker.node))


def _versions_with(count: int) -> ApiVersionsResponse:
    key = ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=9)
    return ApiVersionsResponse(api_keys=(key,) * count)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (lambda _: struct.pack(">i", 512 * 1024 + 1), "a frame of 524289 bytes"),
        (
            lambda cid: b"".join(encode_response(cid, _versions_with(10_001), 4)),
            "10001 before byte 4 are 1 more than the limit",
        ),
    ],
)
def test_responses_before_the_brokers_versions_are_limited(answer, cause):
    """Until a broker has sent its versions, its responses must be short and have few elements."""

    def script(frame: bytes) -> bytes:
        header, _ = decode_request_header(frame)
        return answer(header.correlation_id)

    with ScriptedBroker(script) as broker, pytest.raises(NetworkError, match=cause):
        asyncio.run(_open(broker.node))


def test_later_responses_may_be_larger():
    """Later responses may be larger and have more elements."""

    def large(correlation_id: int, version: int) -> bytes:
        topics = tuple(
            MetadataResponseTopic(error_code=0, name=f"{number:0100d}", partitions=())
            for number in range(10_001)
        )
        response = MetadataResponse(brokers=(), topics=topics)
        return b"".join(encode_response(correlation_id, response, version))

    [answer] = _ask(_versions_first(large))
    assert 10_001 == len(answer.topics)


def test_a_large_response_that_ends_early_is_an_error():
    """A broker that hangs up in the middle of a large response ends the connection."""
    beginning = struct.pack(">i", 10_000_000) + bytes(200_000)
    answers = iter([beginning, None])

    first, second = _ask(_versions_first(lambda *_: next(answers)), 2)
    assert isinstance(first, NetworkError)
    assert "the broker closed the connection" in str(first)
    assert str(first) == str(second)


def test_later_responses_are_limited_too(monkeypatch):
    """A later response with more elements than its limit ends the connection."""
    limits = LATER_RESPONSES._replace(elements=100)
    monkeypatch.setattr(broker_connection, "LATER_RESPONSES", limits)
    topics = Writer()
    topics.write_compact_length(101)
    # No tags in the header, no throttling, no brokers, no cluster id, no controller.
    body = b"\0" + bytes(4) + b"\1" + b"\0" + bytes(4) + b"".join(topics.finish())
    padding = bytes(20 * 101)

    def endless(correlation_id: int, _version: int) -> bytes:
        frame = struct.pack(">i", correlation_id) + body + padding
        return struct.pack(">i", len(frame)) + frame

    [error] = _ask(_versions_first(endless))
    assert isinstance(error, NetworkError)
    assert "101 before byte 11 are 1 more than the limit" in str(error)


def test_all_unanswered_requests_fail_when_the_broker_hangs_up():
    """When the broker hangs up, every waiting request gets a retriable error that says so."""
    errors = _ask(_versions_first(lambda *_: None), count=3)
    assert [True] * 3 == [isinstance(e, NetworkError) and e.retriable for e in errors]
    assert [True] * 3 == ["closed the connection" in str(e) or "lost" in str(e) for e in errors]


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (lambda cid, version: _metadata(cid + 1, version), "a response to request 2 instead of 1"),
        (lambda *_: struct.pack(">i", -5), "a frame of -5 bytes"),
        (lambda *_: struct.pack(">i", 2**31 - 1), "a frame of 2147483647 bytes"),
        (lambda *_: struct.pack(">ih", 2, 0), "cannot read the response"),
        (lambda cid, _: struct.pack(">iii", 8, cid, -1), "METADATA response"),
    ],
    ids=["other request", "negative size", "huge size", "short frame", "broken body"],
)
def test_a_malformed_response_ends_the_connection(answer, cause):
    """The error for a malformed response says so and is retriable."""
    [error] = _ask(_versions_first(answer))
    assert isinstance(error, NetworkError)
    assert cause in str(error)


def _in_memory(act, **settings: float):
    """Use a connection to a peer that answers only ApiVersions; time passes only in waits."""

    async def connect(_node: Node, _timeout: float) -> AnsweringTransport:
        return AnsweringTransport(_versions_first(lambda *_: b""))

    async def run():
        connection = await BrokerConnection.open(
            Node(7, "h.example", 9092),
            ConnectionSettings(**{"client_id": "test", "request_timeout": 30.0, **settings}),
            connect=connect,
            setup_timeout=30.0,
        )
        began = asyncio.get_running_loop().time()
        result = await act(connection)
        return result, asyncio.get_running_loop().time() - began

    return run_without_waiting(run)


async def _ask_twice(connection: BrokerConnection) -> list[str]:
    answers = [connection.send(MetadataRequest(topics=())) for _ in range(2)]
    return [str(error) for error in await asyncio.gather(*answers, return_exceptions=True)]


def test_a_request_timeout_ends_the_connection():
    """After request.timeout.ms all requests of the connection fail."""
    error = "h.example:9092 (id 7): no answer within 30 s (request.timeout.ms)"
    assert ([error, error], 30.0) == _in_memory(_ask_twice)


def test_later_requests_do_not_delay_the_timeout_of_the_oldest():
    """A later one does not put off the end of a connection that answers nothing."""

    async def ask_later_again(connection: BrokerConnection) -> list[str]:
        first = connection.send(MetadataRequest(topics=()))
        await asyncio.sleep(20.0)
        second = connection.send(MetadataRequest(topics=()))
        answers = await asyncio.gather(first, second, return_exceptions=True)
        return [type(error).__name__ for error in answers]

    assert (["NetworkError", "NetworkError"], 30.0) == _in_memory(ask_later_again)


def test_a_request_may_have_a_timeout_of_its_own():
    """A request that may take longer ends the connection later, and says after how long."""

    async def ask(connection: BrokerConnection) -> list[str]:
        answer = connection.send(MetadataRequest(topics=()), timeout=300.0)
        return [str(error) for error in await asyncio.gather(answer, return_exceptions=True)]

    assert (["h.example:9092 (id 7): no answer within 300 s"], 300.0) == _in_memory(ask)


def test_a_long_timeout_does_not_delay_the_timeout_of_a_later_request():
    """The earliest deadline of all requests ends the connection."""

    async def ask(connection: BrokerConnection) -> list[str]:
        first = connection.send(MetadataRequest(topics=()), timeout=300.0)
        await asyncio.sleep(20.0)
        second = connection.send(MetadataRequest(topics=()))
        answers = await asyncio.gather(first, second, return_exceptions=True)
        return [str(error) for error in answers]

    error = "h.example:9092 (id 7): no answer within 30 s (request.timeout.ms)"
    assert ([error, error], 50.0) == _in_memory(ask)


@pytest.mark.parametrize("is_interrupted", [False, True], ids=["paused", "stopped by a signal"])
def test_a_response_that_arrived_during_a_pause_of_the_process_counts(is_interrupted):
    """After any pause longer than request.timeout.ms the client reads before it times out."""

    async def run() -> list[str]:
        loop, pause = asyncio.get_running_loop(), 0.0
        real_time, real_select = loop.time, loop._selector.select
        loop.time = lambda: real_time() + pause

        # After SIGSTOP the first poll ends early and reports no socket, although one is readable.
        def interrupted_select(_timeout: float) -> list:
            loop._selector.select = real_select
            return []

        connection = await _open(broker.node)
        answers = []
        for _ in range(3):
            answer = connection.send(MetadataRequest(topics=()))
            # Nothing else runs on the loop until the response has arrived.
            select.select([connection._transport._socket], [], [], 120)
            pause += 60.0
            if is_interrupted:
                loop._selector.select = interrupted_select
            answers.append((await answer).cluster_id)
        connection.close()
        return answers

    with ScriptedBroker(_versions_first(_metadata)) as broker:
        assert ["answer 1", "answer 2", "answer 3"] == asyncio.run(run())


def test_a_response_that_takes_many_rounds_to_read_counts():
    """After a pause the client reads all that has arrived, however often it has to read."""

    async def ask(connection: BrokerConnection) -> str:
        loop, transport = asyncio.get_running_loop(), connection._transport
        answer = connection.send(MetadataRequest(topics=()))
        transport._incoming.extend(bytes([byte]) for byte in _metadata(1, 9))

        def read_each_round() -> None:
            transport._on_readable()
            if transport._incoming:
                loop.call_soon(read_each_round)

        loop.call_at(loop.time() + 30.0, read_each_round)
        return (await answer).cluster_id

    assert ("answer 1", 30.0) == _in_memory(ask)


def test_a_setup_timeout_is_an_error():
    """A peer that accepts but never responds costs no more than the setup timeout."""
    with (
        ScriptedBroker(lambda _: b"") as broker,
        pytest.raises(NetworkError, match=r"no connection within 0\.1 s"),
    ):
        asyncio.run(_open(broker.node, setup_timeout=0.1))


def test_a_refused_connection_names_the_address(unreachable_node):
    """The error for a port where nothing listens has the address and the system's message."""
    with pytest.raises(NetworkError, match=rf"127.0.0.1:{unreachable_node.port} .*refused"):
        asyncio.run(_open(unreachable_node))


def test_an_unresolvable_host_is_named():
    """The error for a name without an address has the name."""
    with pytest.raises(NetworkError, match=r"no-such-host\.invalid"):
        asyncio.run(_open(Node(1, "no-such-host.invalid", 9092)))


def test_a_closed_connection_rejects_requests():
    """Sending on a closed connection raises the error that ended it."""

    async def run() -> None:
        connection = await _open(broker.node)
        connection.close()
        connection.close()
        with pytest.raises(NetworkError, match="closed by this client"):
            connection.send(MetadataRequest(topics=()))

    with ScriptedBroker(_versions_first(_metadata)) as broker:
        asyncio.run(run())


def test_a_late_close_callback_is_called_at_once():
    """A function set after the end of the connection is called at once."""
    reasons = []

    async def run() -> None:
        connection = await _open(broker.node)
        connection.close()
        connection.set_on_close(reasons.append)

    with ScriptedBroker(_versions_first(_metadata)) as broker:
        asyncio.run(run())
    assert 1 == len(reasons)


def test_requests_and_responses_are_reported_to_the_listener():
    """Requests and responses are reported with node, API, sizes on the wire, and latency."""
    listener, sizes, lasted = RecordingListener(), [], []

    def answer(correlation_id: int, version: int) -> bytes:
        sizes.append(len(_metadata(correlation_id, version)))
        return _metadata(correlation_id, version)

    async def run() -> None:
        connection = await _open(broker.node, listener=listener)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await connection.send(MetadataRequest(topics=()))
        lasted.append(loop.time() - began)
        connection.close()

    with ScriptedBroker(_versions_first(answer)) as broker:
        asyncio.run(run())
    *_, sent, received = listener.events
    assert ("sent", 7, ApiKey.METADATA, len(broker.requests[-1]) + 4) == sent
    assert ("received", 7, ApiKey.METADATA, sizes[0]) == received[:-1]
    assert 0 <= received[-1] <= lasted[0]
    assert ["sent", "received"] * 2 == [event[0] for event in listener.events]


@pytest.mark.parametrize(("max_version", "pauses"), [(6, [0.25]), (5, [])])
def test_a_throttle_is_reported_from_its_version_on(max_version, pauses):
    """From the version in which the client has to pause, it is told to (KIP-219)."""
    asked_for, listener = [], RecordingListener()

    def throttling(correlation_id: int, version: int) -> bytes:
        response = MetadataResponse(brokers=(), topics=(), throttle_time_ms=250)
        return b"".join(encode_response(correlation_id, response, version))

    async def run() -> None:
        connection = await _open(broker.node, listener=listener, on_throttle=asked_for.append)
        await connection.send(MetadataRequest(topics=()), max_version=max_version)
        connection.close()

    with ScriptedBroker(_versions_first(throttling)) as broker:
        asyncio.run(run())
    assert pauses == asked_for
    assert ("throttled", 7, ApiKey.METADATA, 0.25) in listener.events


def test_an_unused_connection_is_closed():
    """After connections.max.idle.ms without a request the connection ends with that reason."""

    async def wait(connection: BrokerConnection) -> tuple[str, bool]:
        closed = asyncio.get_running_loop().create_future()
        connection.set_on_close(closed.set_result)
        return str(await closed), connection.closed_in_peace

    (reason, in_peace), seconds = _in_memory(wait, max_idle=540.0)
    assert "the connection was idle for 540 s (connections.max.idle.ms)" in reason
    assert (True, 540.0) == (in_peace, seconds)


def test_a_connection_that_waits_for_an_answer_is_not_idle():
    """Only request.timeout.ms ends the wait for a response."""
    errors, seconds = _in_memory(_ask_twice, max_idle=1.0)
    assert "no answer within 30 s" in errors[0]
    assert 30.0 == seconds


def test_a_close_by_the_broker_differs_from_one_by_the_client():
    """A connection closed by the broker can be told from one closed by this client."""

    async def run() -> bool:
        connection = await _open(broker.node)
        with pytest.raises(NetworkError):
            await connection.send(MetadataRequest(topics=()))
        connection.close()
        return connection.closed_in_peace

    with ScriptedBroker(_versions_first(lambda *_: None)) as broker:
        assert asyncio.run(run()) is False
