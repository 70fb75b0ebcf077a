"""The broker over real sockets: order, splits, garbage, waits, faults, restarts."""

from __future__ import annotations

import dataclasses
import itertools
import signal
import socket
import struct
import threading
import time

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.net.faults import AnswerError, CloseConnection, Delay, NeverAnswer
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from spark_kafka_sink.record.decode import decode_records
from tests.support.devbroker.broker_process import broker_process
from tests.support.kafka.real_kafka import wait_until
from tests.support.network.raw_client import RawClient
from tests.support.record.plain_batches import PlainRecord, plain_batch

API_VERSIONS = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
METADATA = MetadataRequest(topics=())
#: Longer than a client waits for a response.
LONG_MS = 600_000


def produce(batch, *, acks=-1, partition=0):
    return ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=(
            TopicProduceData(
                name="t",
                partition_data=(PartitionProduceData(index=partition, records=batch),),
            ),
        ),
    )


def fetch(offset, *, max_wait_ms=0, min_bytes=1, max_bytes=10**8):
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=(
            FetchTopic(
                topic="t",
                partitions=(
                    FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=10**8),
                ),
            ),
        ),
    )


def values(response):
    (topic,) = response.responses
    return [record.value for record in decode_records(topic.partitions[0].records)]


def error_of(response):
    (topic,) = response.responses
    return topic.partition_responses[0].error_code


def log_end(broker):
    return broker.call(lambda b: b.cluster.topic("t").partitions[0].log.log_end_offset)


def listening(broker):
    (server,) = broker._server._servers.values()
    return server


@pytest.fixture
def broker():
    with DevBroker(topics={"t": 2}) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with RawClient(broker.port) as client:
        yield client


def test_pipelined_requests_are_answered_in_order(client):
    """Requests sent at once get their responses in order."""
    stream = b"".join(
        client.frame(request, version)
        for request, version in [
            (API_VERSIONS, 3),
            (METADATA, 9),
            (produce(plain_batch(1)), 9),
            (fetch(0), 12),
        ]
    )
    client.send_bytes(stream)

    assert [0, 1, 2, 3] == [client.receive()[0] for _ in range(4)]


def test_requests_arrive_byte_by_byte(client):
    """A request split into single bytes is received as usual."""
    for byte in client.frame(API_VERSIONS, 3) + client.frame(METADATA, 9):
        client.send_bytes(bytes([byte]))

    assert [0, 1] == [client.receive()[0], client.receive()[0]]


def test_records_come_back_as_they_went_in(client):
    """Records of any size that were produced over a socket are fetched unchanged."""
    records = [b"small", b"x" * 700_000, b"y" * 70_000]
    for value in records:
        client.send(produce(plain_batch([PlainRecord(value)])), 9)
    assert [0] * 3 == [error_of(client.receive()[1]) for _ in records]

    assert records == values(client.ask(fetch(0), 12))


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"\xff\xff\xff\xff", id="negative size"),
        pytest.param(struct.pack(">i", 100 * 1024 * 1024 + 1), id="size over the limit"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(struct.pack(">i", 0), id="empty frame"),
        pytest.param(struct.pack(">i", 3) + b"abc", id="frame without a header"),
        pytest.param(struct.pack(">ihhih", 10, 999, 0, 1, -1), id="no such api"),
        pytest.param(struct.pack(">ihhih", 10, 11, 0, 1, -1), id="an api not served"),
        pytest.param(struct.pack(">ihhih", 10, 3, 99, 1, -1), id="a version not served"),
        pytest.param(struct.pack(">ihhih", 10, 3, 1, 1, -1), id="no body"),
    ],
)
def test_garbage_closes_the_connection(broker, client, garbage):
    """Bytes that cannot be a request close their connection and no other."""
    with RawClient(broker.port) as other:
        client.send_bytes(garbage)

        assert client.is_closed()
        assert ErrorCode.NONE == other.ask(API_VERSIONS, 3).error_code


def test_bytes_behind_a_request_are_let_pass(client):
    """As in Kafka, a frame may be longer than its request: librdkafka's sometimes are."""
    frame = client.frame(METADATA, 9)
    client.send_bytes(struct.pack(">i", len(frame) - 4 + 3) + frame[4:] + b"\1\0\0")

    assert 0 == client.receive()[0]


def test_what_was_asked_before_the_garbage_is_answered(client):
    """Responses to earlier requests are sent before the connection is closed."""
    client.send_bytes(client.frame(API_VERSIONS, 3) + b"\xff\xff\xff\xff")

    assert 0 == client.receive()[0]
    assert client.is_closed()


def test_a_half_closed_connection_gets_its_answers(client):
    """A client that has shut down its sending side gets all responses before the close."""
    client.send_bytes(client.frame(API_VERSIONS, 3) + client.frame(METADATA, 9))
    client.half_close()

    assert [0, 1] == [client.receive()[0], client.receive()[0]]
    assert client.is_closed()


def test_a_client_that_leaves_while_it_waits_is_forgotten(broker, client):
    """A long poll ends when its client disconnects."""
    client.send(fetch(0, max_wait_ms=LONG_MS), 12)
    client.half_close()

    assert client.is_closed()
    assert frozenset() == broker.call(lambda _: listening(broker).dispatcher.watched)


def test_a_fetch_is_woken_by_data(broker, client):
    """A long poll gets its response as soon as there are new records."""
    client.send(fetch(0, max_wait_ms=LONG_MS), 12)
    assert client.is_silent_for(0.05)

    with RawClient(broker.port) as producer:
        producer.ask(produce(plain_batch([PlainRecord(b"news")])), 9)

    assert [b"news"] == values(client.receive()[1])


def test_a_fetch_is_not_woken_by_too_little_or_by_other_partitions(broker, client):
    """A long poll continues until its partitions have min_bytes."""
    batch = plain_batch([PlainRecord(b"part")])
    client.send(fetch(0, max_wait_ms=LONG_MS, min_bytes=2 * len(batch)), 12)

    with RawClient(broker.port) as producer:
        producer.ask(produce(batch, partition=1), 9)
        producer.ask(produce(batch), 9)
        assert client.is_silent_for(0.05)
        producer.ask(produce(batch), 9)

    assert [b"part"] * 2 == values(client.receive()[1])


def test_a_fetch_ends_when_its_time_is_up(client):
    """Without new records a long poll gets an empty response after max_wait_ms."""
    started = time.monotonic()

    assert [] == values(client.ask(fetch(0, max_wait_ms=100), 12))
    assert time.monotonic() - started >= 0.09


@pytest.mark.parametrize("leap", [0.0, -3600.0])
def test_a_fetch_ends_although_the_brokers_clock_stands_still_or_goes_back(leap):
    """A client waits for real; the broker's clock is for timestamps, and may be a test's."""
    times = itertools.chain([1_800_000_000.0] * 20, itertools.repeat(1_800_000_000.0 + leap))
    with (
        DevBroker(topics={"t": 1}, clock=lambda: next(times)) as broker,
        RawClient(broker.port) as client,
    ):
        assert [] == values(client.ask(fetch(0, max_wait_ms=50), 12))


def test_requests_behind_a_waiting_fetch_wait_too(broker, client):
    """Responses keep the order of the requests."""
    client.send_bytes(client.frame(fetch(0, max_wait_ms=LONG_MS), 12))
    client.send_bytes(client.frame(METADATA, 9) * 1 + client.frame(API_VERSIONS, 3))
    assert client.is_silent_for(0.05)

    with RawClient(broker.port) as producer:
        producer.ask(produce(plain_batch(1)), 9)

    assert [0, 1, 2] == [client.receive()[0] for _ in range(3)]


def test_acks_0_is_not_answered(broker, client):
    """The next response belongs to the next request."""
    client.send_bytes(client.frame(produce(plain_batch(2), acks=0), 9) + client.frame(METADATA, 9))

    assert 1 == client.receive()[0]
    assert 2 == log_end(broker)


def test_an_error_with_acks_0_closes_the_connection(client):
    """A producer that reads no responses notices the closed connection."""
    client.send(produce(plain_batch(1, crc=0), acks=0), 9)

    assert client.is_closed()


def test_a_client_that_does_not_read_does_not_block_others(broker, client):
    """Unread responses block the requests of their connection, not the broker."""
    batch = plain_batch([PlainRecord(b"x" * 1_000_000)])
    for _ in range(8):
        client.ask(produce(batch), 9)
    for _ in range(10):
        client.send(fetch(0), 12)

    with RawClient(broker.port) as other:
        for _ in range(3):
            assert ErrorCode.NONE == other.ask(API_VERSIONS, 3).error_code

    assert [8] * 10 == [len(values(client.receive()[1])) for _ in range(10)]


def test_an_error_can_be_answered_without_doing_anything(broker, client):
    """A fault responds in place of the broker as many times as requested."""
    hook = broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER), times=1)

    answers = [error_of(client.ask(produce(plain_batch(1)), 9)) for _ in range(2)]

    assert [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE] == answers
    assert (1, 1) == (hook.fired, log_end(broker))


def test_an_error_can_be_answered_after_appending(broker, client):
    """A response with NOT_ENOUGH_REPLICAS_AFTER_APPEND follows an append."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, handled=True))

    assert ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND == error_of(
        client.ask(produce(plain_batch(1)), 9)
    )
    assert 1 == log_end(broker)


@pytest.mark.parametrize(("handled", "appended"), [(False, 0), (True, 1)])
def test_the_connection_can_be_closed_before_or_after_appending(broker, client, handled, appended):
    """A lost request and a lost response look the same to the client."""
    broker.on(ApiKey.PRODUCE, CloseConnection(handled=handled), times=1)
    client.send(produce(plain_batch(1)), 9)

    assert client.is_closed()
    assert appended == log_end(broker)


@pytest.mark.parametrize(("handled", "appended"), [(False, 0), (True, 1)])
def test_the_broker_can_fall_silent(broker, client, handled, appended):
    """A fault that never answers also blocks the responses to later requests."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer(handled=handled), times=1)
    client.send_bytes(client.frame(produce(plain_batch(1)), 9) + client.frame(METADATA, 9))

    wait_until(lambda: hook.fired == 1, seconds=60, what="the request")
    assert client.is_silent_for(0.05)
    assert appended == log_end(broker)


def test_a_request_can_be_delayed(broker, client):
    """A delayed request is handled later, and later requests after it."""
    broker.on(ApiKey.PRODUCE, Delay(0.1), times=1)
    started = time.monotonic()
    client.send_bytes(client.frame(produce(plain_batch(1)), 9) + client.frame(METADATA, 9))

    assert [0, 1] == [client.receive()[0], client.receive()[0]]
    assert time.monotonic() - started >= 0.09
    assert 1 == log_end(broker)


def test_a_fault_sees_the_request(broker, client):
    """A hook gets the request and the connection, and may decide by both."""
    seen = []

    def choose(request, context):
        seen.append((request.acks, context.header.client_id, context.connection_id))

    broker.on(ApiKey.PRODUCE, choose)
    client.ask(produce(plain_batch(1), acks=1), 9)

    assert [(1, "raw", 1)] == seen


def test_a_restart_keeps_port_topics_and_records(client, broker):
    """A broker that is stopped and started again has lost only its connections."""
    client.ask(produce(plain_batch([PlainRecord(b"kept")])), 9)
    port = broker.port

    broker.stop()
    assert client.is_closed()
    broker.start()

    assert port == broker.port
    with RawClient(port) as again:
        assert [b"kept"] == values(again.ask(fetch(0), 12))


@pytest.mark.slow
def test_a_client_that_cannot_be_accepted_is_accepted_later(broker, caplog):
    """A process that has run out of sockets retries later, without a busy loop."""

    class Exhausted:
        """A listening socket that fails once."""

        def __init__(self, listener):
            self.listener = listener
            self.failures = 1

        def accept(self):
            """Fail the first time, and accept later."""
            if self.failures:
                self.failures -= 1
                raise OSError(24, "Too many open files")
            return self.listener.accept()

        def fileno(self):
            """Return the descriptor of the socket."""
            return self.listener.fileno()

        def close(self):
            """Close the socket."""
            self.listener.close()

    def exhaust(_):
        server = listening(broker)
        (opened,) = server._open
        server.loop.remove_reader(opened.socket)
        server._open = [dataclasses.replace(opened, socket=Exhausted(opened.socket))]
        server._listen(server._open[0])

    broker.call(exhaust)
    with RawClient(broker.port) as client:
        assert ErrorCode.NONE == client.ask(API_VERSIONS, 3).error_code
    assert "Too many open files" in caplog.text


def test_stopping_twice_is_stopping_once(broker):
    """Stopping a stopped broker has no effect, and it can be started again."""
    broker.stop()
    broker.stop()

    broker.start()
    with RawClient(broker.port) as client:
        assert ErrorCode.NONE == client.ask(API_VERSIONS, 3).error_code


def test_stopping_ends_long_polls(broker, client):
    """Waiting clients do not delay the stop."""
    client.ask(METADATA, 9)
    client.send(fetch(0, max_wait_ms=LONG_MS), 12)
    stopping = threading.Thread(target=broker.stop, daemon=True)
    stopping.start()

    # There is no response, which a poll would get at its end.
    assert client.is_closed()
    stopping.join()


def test_a_running_broker_cannot_be_started(broker):
    """Starting a running broker is an error."""
    with pytest.raises(KafkaError, match="is already running"):
        broker.start()


def test_a_broker_that_does_not_run_cannot_be_asked():
    """There is no thread to call before the start and after the stop."""
    with pytest.raises(KafkaError, match="is not running"):
        DevBroker().create_topic("t")


def test_a_taken_port_is_an_error(broker):
    """A broker that cannot listen raises the error to its caller."""
    with pytest.raises(OSError, match="in use"):
        DevBroker(port=broker.port).start()


def test_topics_can_be_created_while_clients_are_at_work(broker):
    """The test's thread can create topics with configs, and inspect them."""
    broker.create_topic("u", partitions=3, configs={"max.message.bytes": "99"})

    assert ["t", "u"] == broker.topic_names
    assert 99 == broker.call(lambda b: b.cluster.topic("u").config.max_message_bytes)


def test_a_topic_that_cannot_be_created_is_an_error_in_the_tests_thread(broker):
    """A refusal by the broker is raised to the caller."""
    with pytest.raises(RefusedError, match="already exists"):
        broker.create_topic("t")


def test_a_topic_that_cannot_be_created_at_the_start_keeps_the_broker_from_starting():
    """A broker does not start if one of its topics is missing."""
    with pytest.raises(RefusedError, match="invalid"):
        DevBroker(topics={"a b": 1}).start()


def test_it_listens_on_loopback_only(broker):
    """Other machines cannot reach the broker."""
    assert f"127.0.0.1:{broker.port}" == broker.bootstrap_servers
    with pytest.raises(OSError):  # noqa: PT011 - refused or unreachable, as the system likes
        socket.create_connection(("127.0.0.2", broker.port), timeout=5).close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_process_says_where_it_listens_and_ends_on_a_signal(number):
    """The process prints one line, serves until a signal, and exits with code 0."""
    with broker_process("--port", "0", "--topic", "t:3") as process:
        line = process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:")
        with RawClient(int(line.rpartition(":")[2])) as client:
            (topic,) = client.ask(MetadataRequest(topics=None), 9).topics
            client.send(fetch(0, max_wait_ms=LONG_MS), 12)
            process.send_signal(number)
            rest, errors = process.communicate(timeout=60)

    assert ("t", 3) == (topic.name, len(topic.partitions))
    assert (0, "", "") == (process.returncode, rest, errors)


@pytest.mark.slow
def test_the_process_does_what_its_options_say():
    """Options set brokers, topics with configs and faults, and log a line for each request."""
    topic = "t:3:cleanup.policy=compact,delete:max.message.bytes=999"
    faults = ["--fault", "metadata:drop-answer:1", "--fault", "produce:delay=0"]
    with broker_process(
        "--port", "0", "--brokers", "2", "--topic", topic, *faults, "--log-requests"
    ) as process:
        addresses = process.stdout.readline().removeprefix("listening on ").strip().split(",")
        ports = [int(address.rpartition(":")[2]) for address in addresses]
        with RawClient(ports[1]) as client:
            client.send(MetadataRequest(topics=None), 9)
            assert client.is_closed()
        with RawClient(ports[1]) as client:
            answer = client.ask(MetadataRequest(topics=None), 9)
            configs = client.ask(
                DescribeConfigsRequest(
                    resources=(
                        DescribeConfigsResource(
                            resource_type=2, resource_name="t", configuration_keys=None
                        ),
                    )
                ),
                4,
            )
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)

    assert ports == [broker.port for broker in answer.brokers]
    assert [[1, 2]] * 3 == [sorted(p.replica_nodes) for p in answer.topics[0].partitions]
    values = {config.name: config.value for config in configs.results[0].configs}
    assert ("compact,delete", "999") == (values["cleanup.policy"], values["max.message.bytes"])
    # The default of the process, unlike Kafka's.
    assert "-1" == values["retention.ms"]
    assert 0 == process.returncode
    lines = [line.partition(" broker ")[2] for line in errors.splitlines()]
    assert "2, connection 1: METADATA 9 from 'raw', correlation id 0" == lines[0]
    assert 3 == len(lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--brokers", "0", "must be at least 1, not 0"),
        ("--topic", "t:many", "'many' is not a number of partitions"),
        ("--topic", "t:1:compact", "'compact' must be SETTING=VALUE"),
        ("--topic", "t:1:no.such=1", "Unknown topic config name: no.such"),
        ("--fault", "produce:explode", "'explode' is not one of close"),
    ],
)
def test_the_process_refuses_options_that_make_no_sense(option, value, message):
    """The error names the wrong part, and nothing is started."""
    with broker_process("--port", "0", option, value) as process:
        output, errors = process.communicate(timeout=60)

    assert (True, "") == (process.returncode in {1, 2}, output)
    assert message in errors


@pytest.mark.slow
def test_the_process_says_why_it_cannot_start(broker):
    """A port in use causes one line on standard error and exit code 1."""
    with broker_process("--port", str(broker.port)) as process:
        output, errors = process.communicate(timeout=60)

    assert (1, "") == (process.returncode, output)
    assert errors.startswith("cannot start: ")


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["t:x", "t:"])
def test_the_process_checks_its_arguments(topic):
    """An invalid partition count is a usage error, and an empty one means one partition."""
    with broker_process("--port", "0", "--topic", topic) as process:
        if topic == "t:x":
            output, errors = process.communicate(timeout=60)
            assert (2, "", True) == (process.returncode, output, "'x' is not a number" in errors)
        else:
            assert process.stdout.readline()
            process.terminate()
            process.communicate(timeout=60)
            assert 0 == process.returncode
