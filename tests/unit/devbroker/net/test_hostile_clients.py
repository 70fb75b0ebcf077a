"""Malicious clients over real sockets: the broker uses little memory and serves other clients."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import ssl
import struct
import threading
import time

import pytest

from spark_kafka_sink.devbroker import ConnectionLimits, DevBroker
from spark_kafka_sink.devbroker.base.broker_settings import Patience
from spark_kafka_sink.devbroker.net import connection
from spark_kafka_sink.devbroker.net.dispatcher import Lane
from spark_kafka_sink.devbroker.net.frame_receiver import FrameReceiver
from spark_kafka_sink.devbroker.net.sasl_authenticator import SaslAuthenticator
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from spark_kafka_sink.protocol.primitives import Writer
from spark_kafka_sink.record.compression import CompressionType
from tests.support.devbroker.odd_batches import bomb
from tests.support.kafka.real_kafka import wait_until
from tests.support.network.raw_client import TIMEOUT_SECONDS, RawClient
from tests.support.record.plain_batches import plain_batch
from tests.support.security.secure_listeners import PASSWORD, USER, listener

API_VERSIONS = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
METADATA = MetadataRequest(topics=())
HANDSHAKE = SaslHandshakeRequest(mechanism="PLAIN")
ALICE = SaslAuthenticateRequest(auth_bytes=f"\0{USER}\0{PASSWORD}".encode())
SOON_MS = 1000
ATTEMPTS = 10
MEBIBYTE = 1 << 20


def is_served(broker):
    """Return whether another client gets a response."""
    with RawClient(broker.port) as other:
        return ErrorCode.NONE == other.ask(API_VERSIONS, 4).error_code


def before_it_is_late(attempt):
    """Retry an attempt that the broker cuts off if this process pauses for `SOON_MS`."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            return attempt()
    return attempt()


def resident_bytes():
    """Return the resident memory of this process, which includes the broker's."""
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - no file of a file system
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def memory_may_grow(*, most):
    """Check that this process's peak resident memory grows by less than `most` bytes."""
    with open("/proc/self/clear_refs", "w") as peak:  # noqa: PTH123 - no file of a file system
        peak.write("5")
    before = resident_bytes()
    yield
    with open("/proc/self/status") as status:  # noqa: PTH123 - no file of a file system
        (peak_kib,) = re.findall(r"VmHWM:\s*(\d+) kB", status.read())
    assert int(peak_kib) * 1024 - before < most


def test_a_request_that_does_not_end_ends_the_connection():
    """A client that sends single bytes is disconnected once the time for a request is over."""
    limits = ConnectionLimits(request_receive_timeout_ms=SOON_MS)
    with DevBroker(connection_limits=limits) as broker, RawClient(broker.port) as client:
        client.send_bytes(struct.pack(">i", 10_000))
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 9_999 and client.is_silent_for(0.02):
                client.send_bytes(b"x")
                sent += 1
        assert sent < 9_999
        assert client.is_closed()
        assert is_served(broker)


def test_a_request_in_pieces_has_its_time():
    """A request that arrives in time gets a response, and the next one has its own time."""
    limits = ConnectionLimits(request_receive_timeout_ms=60_000)
    with DevBroker(connection_limits=limits) as broker, RawClient(broker.port) as client:
        for _ in range(3):
            frame = client.frame(METADATA, 12)
            client.send_bytes(frame[:9])
            assert client.is_silent_for(0.05)
            client.send_bytes(frame[9:])
            client.receive()


def test_an_idle_connection_is_closed():
    """A client that sends nothing at all is disconnected too."""
    limits = ConnectionLimits(connections_max_idle_ms=SOON_MS)
    with DevBroker(connection_limits=limits) as broker:
        with RawClient(broker.port) as silent:
            assert silent.is_closed()

        def ask_and_fall_silent():
            with RawClient(broker.port) as other:
                other.ask(API_VERSIONS, 4)
                assert other.is_closed()

        before_it_is_late(ask_and_fall_silent)
        assert before_it_is_late(lambda: is_served(broker))


def test_a_client_that_waits_for_an_answer_is_not_idle():
    """A long poll may last longer than the limit for idle connections."""
    limits = ConnectionLimits(connections_max_idle_ms=SOON_MS)
    poll = FetchRequest(
        max_wait_ms=2 * SOON_MS,
        min_bytes=1,
        topics=(
            FetchTopic(
                topic="t",
                partitions=(
                    FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MEBIBYTE),
                ),
            ),
        ),
    )
    with DevBroker(topics={"t": 1}, connection_limits=limits) as broker:

        def ask():
            with RawClient(broker.port) as client:
                return client.ask(poll, 12).error_code

        assert ErrorCode.NONE == before_it_is_late(ask)


@pytest.mark.parametrize("said", [[], [HANDSHAKE], [HANDSHAKE, None]])
def test_an_authentication_that_does_not_end_ends_the_connection(said):
    """A client that does not authenticate is disconnected, whatever else it sends."""
    limits = ConnectionLimits(authentication_timeout_ms=SOON_MS)
    with DevBroker(listeners=[listener("SASL_PLAINTEXT")], connection_limits=limits) as broker:

        def begin_to_authenticate():
            with RawClient(broker.port) as client:
                for request in said:
                    if request is None:
                        client.send_bytes(b"\0")
                    else:
                        client.ask(request, 1)
                assert client.is_closed()

        before_it_is_late(begin_to_authenticate)


def test_the_authentication_timeout_ends_with_the_authentication():
    """The authentication timeout does not apply after authentication."""
    limits = ConnectionLimits(authentication_timeout_ms=SOON_MS)
    with (
        DevBroker(listeners=[listener("SASL_PLAINTEXT")], connection_limits=limits) as broker,
        contextlib.ExitStack() as stack,
    ):

        def authenticate():
            client = stack.enter_context(RawClient(broker.port))
            client.ask(HANDSHAKE, 1)
            client.ask(ALICE, 2)
            return client

        client = before_it_is_late(authenticate)
        assert client.is_silent_for(1.5 * SOON_MS / 1000)
        assert 1 == len(client.ask(METADATA, 12).brokers)


def test_a_tls_handshake_that_does_not_end_ends_the_connection(certificates, caplog):
    """A partial TLS greeting does not extend the authentication timeout."""
    limits = ConnectionLimits(authentication_timeout_ms=SOON_MS)
    with DevBroker(listeners=[listener("SSL", certificates)], connection_limits=limits) as broker:
        with socket.create_connection(("127.0.0.1", broker.port), timeout=120) as client:
            client.sendall(b"\x16\x03\x01\x02\x00")
            with contextlib.suppress(ConnectionError):
                assert b"" == client.recv(1)
        context = ssl.create_default_context(cafile=certificates.authority.pem_file)

        def ask():
            with RawClient(broker.port, context) as other:
                return other.ask(API_VERSIONS, 4).error_code

        assert ErrorCode.NONE == before_it_is_late(ask)
    assert [] == [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_ip"])
def test_a_flood_of_connections_is_kept_out(limit):
    """Connections over the limit are closed, others continue, and a freed place can be used."""
    limits = ConnectionLimits(**{limit: 5})
    with (
        DevBroker(connection_limits=limits) as broker,
        contextlib.ExitStack() as stack,
    ):
        inside = [stack.enter_context(RawClient(broker.port)) for _ in range(5)]
        for client in inside:
            client.ask(API_VERSIONS, 4)
        for _ in range(50):
            with RawClient(broker.port) as outside:
                assert outside.is_closed()
        assert [1] * 5 == [len(client.ask(METADATA, 12).brokers) for client in inside]
        inside[0].close()
        deadline = time.monotonic() + 120
        while not came_in(broker):
            assert time.monotonic() < deadline


def came_in(broker):
    with contextlib.suppress(ConnectionError), RawClient(broker.port) as client:
        return ErrorCode.NONE == client.ask(API_VERSIONS, 4).error_code
    return False


class _HeldOrder:
    """The connections whose requests a broker handles; the first request is held for a while."""

    def __init__(self):
        self.connections = []
        self._begun = threading.Event()
        self._may_end = threading.Event()

    def handle(self, connection):
        """Record a request, on the broker's thread."""
        self.connections.append(connection)
        if len(self.connections) == 1:
            self._begun.set()
            assert self._may_end.wait(TIMEOUT_SECONDS)

    def meanwhile(self, action):
        """Call a function while the first request is held, then let the request end."""
        assert self._begun.wait(TIMEOUT_SECONDS)
        action()
        self._may_end.set()


PIPELINED = 100


def test_pipelined_requests_do_not_keep_other_clients_waiting(monkeypatch):
    """Another client's request is handled between two of a hundred that were sent at once."""
    monkeypatch.setattr(connection, "TURN_SECONDS", 0.0)
    order = _HeldOrder()
    with (
        DevBroker() as broker,
        RawClient(broker.port) as hostile,
        RawClient(broker.port) as other,
    ):
        other.ask(METADATA, 12)
        broker.on(ApiKey.API_VERSIONS, lambda _, context: order.handle(context.connection_id))
        hostile.send_bytes(b"".join(hostile.frame(API_VERSIONS, 4) for _ in range(PIPELINED)))
        order.meanwhile(lambda: other.send(API_VERSIONS, 4))
        assert list(range(PIPELINED)) == [hostile.receive()[0] for _ in range(PIPELINED)]
        other.receive()

    assert PIPELINED + 1 == len(order.connections)
    assert order.connections[0] == order.connections[-1]


def test_pipelined_requests_before_authentication_do_not_keep_other_clients_waiting(monkeypatch):
    """The same holds for a client that has not authenticated, however short its requests are."""
    monkeypatch.setattr(connection, "TURN_SECONDS", 3600.0)
    order = _HeldOrder()
    receive = SaslAuthenticator.receive

    def recorded(authenticator, frame, now):
        order.handle(authenticator)
        return receive(authenticator, frame, now)

    with (
        DevBroker(listeners=[listener("SASL_PLAINTEXT")]) as broker,
        RawClient(broker.port) as hostile,
        RawClient(broker.port) as other,
    ):
        monkeypatch.setattr(SaslAuthenticator, "receive", recorded)
        # As in Kafka, a client may try any number of unsupported versions.
        frames = b"".join(hostile.frame(API_VERSIONS, 4) for _ in range(PIPELINED))
        hostile.send_bytes(frames.replace(b"\0\x12\0\4", b"\0\x12\0\x63"))
        order.meanwhile(lambda: other.send(HANDSHAKE, 1))
        for _ in range(PIPELINED):
            hostile.receive_frame()
        other.receive()

    assert PIPELINED + 1 == len(order.connections)
    assert order.connections[0] is order.connections[-1]


def test_a_turn_handles_many_short_requests(monkeypatch):
    """A client that sends short requests at once does not wait between them."""
    order = _HeldOrder()
    monkeypatch.setattr(connection, "LONG_SECONDS", 3600.0)
    monkeypatch.setattr(connection, "TURN_SECONDS", 3600.0)
    with (
        DevBroker() as broker,
        RawClient(broker.port) as client,
        RawClient(broker.port) as other,
    ):
        other.ask(METADATA, 12)
        broker.on(ApiKey.API_VERSIONS, lambda _, context: order.handle(context.connection_id))
        client.send_bytes(b"".join(client.frame(API_VERSIONS, 4) for _ in range(PIPELINED)))
        order.meanwhile(lambda: other.send(API_VERSIONS, 4))
        other.receive()

    assert order.connections[0] != order.connections[-1]
    assert PIPELINED + 1 == len(order.connections)


@pytest.mark.parametrize(("long_seconds", "expected"), [(3600.0, 0), (-1.0, 2)])
def test_a_client_whose_requests_take_long_waits_between_them(monkeypatch, long_seconds, expected):
    """The lane decides when the next request is handled, even if it is the only one there."""
    entered = []
    enter = Lane.enter

    def recorded(lane, turn):
        entered.append(lane)
        enter(lane, turn)

    with DevBroker() as broker, RawClient(broker.port) as client:
        monkeypatch.setattr(Lane, "enter", recorded)
        monkeypatch.setattr(connection, "LONG_SECONDS", long_seconds)
        client.ask(METADATA, 12)
        client.ask(METADATA, 12)
        client.ask(METADATA, 12)

    assert expected == len(entered)


@pytest.mark.parametrize("security_protocol", ["PLAINTEXT", "SSL"])
def test_requests_of_a_client_that_has_left_take_effect(certificates, security_protocol):
    """Records sent with acks=0 are appended although the client closes right behind them."""
    tls = None
    if security_protocol == "SSL":
        tls = ssl.create_default_context(cafile=certificates.authority.pem_file)
    request = ProduceRequest(
        acks=0,
        timeout_ms=1000,
        topic_data=(
            TopicProduceData(
                name="t",
                partition_data=(PartitionProduceData(index=0, records=plain_batch(1)),),
            ),
        ),
    )
    order = _HeldOrder()
    with (
        DevBroker(topics={"t": 1}, listeners=[listener(security_protocol, certificates)]) as broker,
        RawClient(broker.port, tls) as client,
        RawClient(broker.port, tls) as other,
    ):
        # The broker reads the records and the end of the connection at once.
        client.ask(METADATA, 12)
        broker.on(ApiKey.API_VERSIONS, lambda _, context: order.handle(context.connection_id))
        other.send(API_VERSIONS, 4)

        def send_and_leave():
            client.send_bytes(b"".join(client.frame(request, 9) for _ in range(PIPELINED)))
            client.leave()

        order.meanwhile(send_and_leave)
        wait_until(
            lambda: PIPELINED == len(broker.records("t")[0]),
            seconds=TIMEOUT_SECONDS,
            what="the records",
        )


def test_a_flood_of_handshakes_counts(certificates):
    """Connections in the middle of a TLS handshake count too."""
    limits = ConnectionLimits(max_connections=3)
    with (
        DevBroker(listeners=[listener("SSL", certificates)], connection_limits=limits) as broker,
        contextlib.ExitStack() as stack,
    ):
        inside = [stack.enter_context(RawClient(broker.port)) for _ in range(3)]
        with RawClient(broker.port) as outside:
            assert outside.is_closed()
        assert all(client.is_silent_for(0.05) for client in inside)


@pytest.mark.parametrize("bad", [{"max_connections": 0}, {"connections_max_idle_ms": -1}])
def test_limits_below_their_minimum_are_refused(bad):
    """A limit below its minimum is a mistake, and the error names it."""
    with pytest.raises(ConfigError, match=next(iter(bad))):
        ConnectionLimits(**bad)


def test_patience_is_counted_from_the_first_byte():
    """More bytes of a request do not extend its time, and its end cancels the timeout."""
    limits = ConnectionLimits(
        connections_max_idle_ms=100_000,
        request_receive_timeout_ms=10_000,
        authentication_timeout_ms=50_000,
    )
    patience = Patience(limits, 0.0, authenticates=True)
    ends = [patience.ends()[0]]
    patience.request_began(1.0)
    patience.request_began(5.0)
    ends.append(patience.ends()[0])
    patience.request_ended()
    patience.active(7.0)
    ends.append(patience.ends()[0])
    patience.authenticated()
    ends.append(patience.ends()[0])

    assert [50.0, 11.0, 50.0, 107.0] == ends


def test_large_requests_are_refused_by_their_size_alone():
    """socket.request.max.bytes is checked before any byte of the request has arrived."""
    with DevBroker(socket_request_max_bytes=1000) as broker, RawClient(broker.port) as client:
        assert 1 == len(client.ask(METADATA, 12).brokers)
        client.send_bytes(struct.pack(">i", 1001))
        assert client.is_closed()
        assert is_served(broker)


def test_sizes_that_lie_cost_no_memory():
    """Memory is not allocated for 200 clients that announce 100 MB each and send nothing."""
    with DevBroker() as broker, contextlib.ExitStack() as stack:
        is_served(broker)
        before = resident_bytes()
        clients = [stack.enter_context(RawClient(broker.port)) for _ in range(200)]
        for client in clients:
            client.send_bytes(struct.pack(">ih", 100 * MEBIBYTE, ApiKey.PRODUCE) + b"x" * 100)
        assert is_served(broker)
        assert all(client.is_silent_for(0.001) for client in clients)
        grown = resident_bytes() - before
    assert grown < 100 * MEBIBYTE, f"{grown} bytes"


def test_a_frame_receiver_allocates_little_more_than_it_has_received():
    """After the first buffer, a buffer is never larger than the bytes received so far."""
    receiver = FrameReceiver(100 * MEBIBYTE, 100 * MEBIBYTE)
    receiver.buffer()[:4] = struct.pack(">i", 100 * MEBIBYTE)
    receiver.received(4)
    assert None is receiver.next_frame()
    received = 0
    while received < 20 * MEBIBYTE:
        room = len(receiver.buffer())
        assert room <= max(128 * 1024, received)
        receiver.received(room)
        received += room


def find_coordinators(count):
    """Return a framed FindCoordinator request for `count` groups with names of one letter."""
    header = struct.pack(">hhihB", ApiKey.FIND_COORDINATOR, 4, 7, -1, 0)
    keys = Writer()
    keys.write_compact_length(count)
    body = header + b"\0" + b"".join(keys.finish()) + b"\2a" * count + b"\0"
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("keys", [4_000_000, 1_000_000, 20_001])
def test_many_short_elements_close_the_connection(keys):
    """A request with too many elements does not block other clients."""
    with DevBroker() as broker, RawClient(broker.port) as client:
        frame = find_coordinators(20_000)
        client.send_bytes(frame)
        assert len(frame) < len(client.receive_frame())
        with memory_may_grow(most=50 * MEBIBYTE):
            with contextlib.suppress(ConnectionError):
                client.send_bytes(find_coordinators(keys))
            assert client.is_closed()
            assert is_served(broker)


@pytest.mark.parametrize("api_key", [key for key in ApiKey if key is not ApiKey.PRODUCE])
def test_only_produce_requests_may_be_large(api_key):
    """Any other large request is refused once its first six bytes have arrived."""
    with DevBroker() as broker, RawClient(broker.port) as client:
        client.send_bytes(struct.pack(">ih", 4 * MEBIBYTE + 1, api_key))
        assert client.is_closed()
        assert is_served(broker)


def metadata_with_topics(count):
    """Return a framed Metadata request that announces `count` topics and names none."""
    header = struct.pack(">hhih", 3, 1, 7, -1)
    body = header + struct.pack(">i", count)
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("count", [10**9, 2**31 - 1, -2])
def test_arrays_of_a_billion_close_the_connection(count):
    """An element count that the frame cannot hold closes the connection, at no cost in memory."""
    with DevBroker() as broker, RawClient(broker.port) as client:
        is_served(broker)
        before = resident_bytes()
        client.send_bytes(metadata_with_topics(count))
        assert client.is_closed()
        assert resident_bytes() - before < 20 * MEBIBYTE
        assert is_served(broker)


def test_a_billion_partitions_are_refused():
    """Neither a new nor an existing topic gets more partitions than one request may create."""
    with DevBroker(topics={"t": 1}) as broker, RawClient(broker.port) as client:
        new = CreatableTopic(
            name="new", num_partitions=10**9, replication_factor=1, assignments=(), configs=()
        )
        (created,) = client.ask(CreateTopicsRequest(topics=(new,), timeout_ms=1000), 7).topics
        more = CreatePartitionsTopic(name="t", count=10**9, assignments=None)
        (added,) = client.ask(
            CreatePartitionsRequest(topics=(more,), timeout_ms=1000, validate_only=False), 3
        ).results
        assert [ErrorCode.POLICY_VIOLATION] * 2 == [created.error_code, added.error_code]


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "..", ".", "/tmp/x", "a/b", "a\\b", "a\0b", "", "x" * 250, "ü"],  # noqa: S108
)
def test_topic_names_are_no_paths(name):
    """No API creates a topic whose name could lead out of a directory."""
    with DevBroker() as broker, RawClient(broker.port) as client:
        request = CreateTopicsRequest(
            topics=(
                CreatableTopic(
                    name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()
                ),
            ),
            timeout_ms=1000,
        )
        (created,) = client.ask(request, 7).topics
        (asked,) = client.ask(
            MetadataRequest(
                topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=True
            ),
            9,
        ).topics
        assert ErrorCode.INVALID_TOPIC_EXCEPTION == created.error_code
        assert ErrorCode.INVALID_TOPIC_EXCEPTION == asked.error_code
        assert [] == broker.topic_names


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param({}, ErrorCode.NONE, id="within the limit"),
        pytest.param(
            {"request_max_validated_bytes": 100 * MEBIBYTE},
            ErrorCode.INVALID_RECORD,
            id="beyond the limit",
        ),
    ],
)
@pytest.mark.parametrize("compression", [CompressionType.GZIP, CompressionType.ZSTD])
def test_a_decompression_bomb_is_validated_in_little_memory(limits, expected, compression):
    """A batch that decompresses to 256 MiB is validated in pieces, up to a limit."""
    request = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=(
            TopicProduceData(
                name="t",
                partition_data=(
                    PartitionProduceData(
                        index=0, records=bomb(256 * MEBIBYTE, compression=compression)
                    ),
                ),
            ),
        ),
    )
    with (
        DevBroker(topics={"t": 1}, max_message_bytes=8 * MEBIBYTE, **limits) as broker,
        RawClient(broker.port) as client,
    ):
        is_served(broker)
        with memory_may_grow(most=64 * MEBIBYTE):
            (topic,) = client.ask(request, 9).responses
            assert expected == topic.partition_responses[0].error_code
        assert is_served(broker)
