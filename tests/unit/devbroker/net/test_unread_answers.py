"""The budget of responses that clients have not read, by itself and over real sockets."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.handlers.registry import HANDLERS
from spark_kafka_sink.devbroker.net.dispatcher import UnreadAnswers
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.kafka.real_kafka import wait_until
from tests.support.network.raw_client import RawClient
from tests.support.record.plain_batches import PlainRecord, plain_batch

API_VERSIONS = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
MEBIBYTE = 1 << 20

LIMIT = 100
STALLED = 10.0


class Client:
    """A connection whose client reads what the test says."""

    def __init__(self):
        self.unread_bytes = 0
        self.aborted = 0

    def abort(self):
        """Count the call."""
        self.aborted += 1


@pytest.fixture
def unread():
    return UnreadAnswers(LIMIT, STALLED)


def filled(unread, *sizes):
    """Return clients to each of which a response is sent, one second after the other."""
    clients = [Client() for _ in sizes]
    for second, (client, size) in enumerate(zip(clients, sizes, strict=True)):
        client.unread_bytes = size
        assert not unread.update(client, float(second))
    return clients


def test_there_is_room_up_to_the_limit(unread):
    """The bytes of all connections count together."""
    first, second = filled(unread, 60, 40)
    assert 100 == unread.bytes
    assert unread.has_room(1.0)

    second.unread_bytes = 41
    unread.update(second, 2.0)

    assert unread.is_full
    assert not unread.has_room(2.0)
    assert [0, 0] == [first.aborted, second.aborted]


def test_reading_makes_room(unread):
    """Only the update that makes room says so."""
    first, _ = filled(unread, 60, 60)
    first.unread_bytes = 50
    assert not unread.update(first, 2.0)
    first.unread_bytes = 40
    assert unread.update(first, 3.0)
    first.unread_bytes = 0
    assert not unread.update(first, 4.0)
    assert 60 == unread.bytes


def test_a_closed_connection_makes_room(unread):
    """The responses of a connection that has ended no longer count."""
    first, second = filled(unread, 60, 60)
    assert unread.remove(first)
    assert not unread.remove(first)
    assert not unread.remove(second)
    assert 0 == unread.bytes


def test_clients_that_stall_are_disconnected(unread):
    """All clients that have read nothing for too long go as soon as there is no room."""
    first, second, third, fourth = filled(unread, 40, 40, 60, 60)
    assert not unread.has_room(STALLED - 0.1)

    assert not unread.has_room(STALLED + 1.0)

    assert [1, 1, 0, 0] == [each.aborted for each in (first, second, third, fourth)]
    assert 120 == unread.bytes
    assert unread.has_room(STALLED + 2.0)
    assert [1, 1, 1, 0] == [each.aborted for each in (first, second, third, fourth)]
    assert 60 == unread.bytes


def test_no_client_is_disconnected_while_there_is_room(unread):
    """A client may read as slowly as it likes if the others have room."""
    (only,) = filled(unread, 100)
    assert unread.has_room(1000.0)
    assert 0 == only.aborted


def test_a_client_that_reads_has_time_again(unread):
    """Progress counts although the connection has not reported it."""
    first, second = filled(unread, 60, 60)
    first.unread_bytes = 59

    assert not unread.has_room(STALLED)

    assert [0, 0] == [first.aborted, second.aborted]
    assert unread.has_room(STALLED + 1.0)
    assert [0, 1] == [first.aborted, second.aborted]


def test_more_to_read_is_no_progress(unread):
    """A client that gets further responses and reads none has stalled since the first one."""
    first, second = filled(unread, 60, 60)
    first.unread_bytes = 70
    unread.update(first, STALLED - 1)

    assert unread.has_room(STALLED)

    assert [1, 0] == [first.aborted, second.aborted]
    assert 60 == unread.bytes


class LogReads:
    """Counts fetches that are answered, and those that wait for room."""

    def __init__(self, monkeypatch):
        self.answers = 0
        self.waits_for_room = 0
        self.most_unread = 0
        has_room, update = UnreadAnswers.has_room, UnreadAnswers.update
        fetch = HANDLERS[ApiKey.FETCH]

        def count_waits(unread, now):
            found = has_room(unread, now)
            self.waits_for_room += not found
            return found

        def measure(unread, reader, now):
            made_room = update(unread, reader, now)
            self.most_unread = max(self.most_unread, unread.bytes)
            return made_room

        def count(context, request):
            self.answers += 1
            return fetch.handle(context, request)

        monkeypatch.setattr(UnreadAnswers, "has_room", count_waits)
        monkeypatch.setattr(UnreadAnswers, "update", measure)
        monkeypatch.setitem(HANDLERS, ApiKey.FETCH, replace(fetch, handle=count))


def fetch_of(size, **fields):
    """Return a request for this many bytes of a topic."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=size)
    return FetchRequest(
        max_bytes=size,
        session_epoch=-1,
        topics=(FetchTopic(topic="events", partitions=(partition,)),),
        **{"max_wait_ms": 0, "min_bytes": 1, **fields},
    )


def fill(broker, batches):
    """Write this many batches of a MiB."""
    broker.create_topic("events")
    records = plain_batch([PlainRecord(value=bytes(MEBIBYTE - 4096))])
    with RawClient(broker.port) as client:
        for _ in range(batches):
            data = TopicProduceData(
                name="events", partition_data=(PartitionProduceData(index=0, records=(records,)),)
            )
            request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=(data,))
            [topic] = client.ask(request, 9).responses
            assert ErrorCode.NONE == topic.partition_responses[0].error_code


@contextlib.contextmanager
def unread_answers(tmp_path, monkeypatch, *, stalled_seconds):
    """Start a broker with twelve clients that ask for 20 MiB each, and do not read it."""
    monkeypatch.setattr(UnreadAnswers.__init__, "__defaults__", (stalled_seconds,))
    with (
        DevBroker(data_dir=tmp_path, queued_max_response_bytes=40 * MEBIBYTE) as broker,
        contextlib.ExitStack() as stack,
    ):
        fill(broker, 20)
        clients = [stack.enter_context(RawClient(broker.port)) for _ in range(12)]
        for client in clients:
            client.send(fetch_of(20 * MEBIBYTE), 12)
        yield broker, clients


def test_large_answers_wait_until_others_are_read(tmp_path, monkeypatch):
    """Clients that read nothing take a limited memory; small answers do not wait."""
    read = LogReads(monkeypatch)
    with unread_answers(tmp_path, monkeypatch, stalled_seconds=1e9) as (broker, clients):
        wait_until(lambda: read.waits_for_room > 0, seconds=120, what="a fetch without room")
        with RawClient(broker.port) as other:
            assert ErrorCode.NONE == other.ask(API_VERSIONS, 4).error_code
        assert len(clients) > read.answers
        assert read.most_unread < 70 * MEBIBYTE

        with ThreadPoolExecutor(len(clients)) as pool:
            for frame in pool.map(RawClient.receive_frame, clients):
                assert len(frame) > 18 * MEBIBYTE

        assert len(clients) == read.answers
        assert read.most_unread < 70 * MEBIBYTE


def test_the_records_of_a_log_in_memory_do_not_count(monkeypatch):
    """Answers with buffers of a log in memory take no memory of their own, and do not wait."""
    read = LogReads(monkeypatch)
    with (
        DevBroker(queued_max_response_bytes=40 * MEBIBYTE) as broker,
        contextlib.ExitStack() as stack,
    ):
        fill(broker, 20)
        clients = [stack.enter_context(RawClient(broker.port)) for _ in range(6)]
        for client in clients:
            client.send(fetch_of(20 * MEBIBYTE), 12)
        for client in clients:
            assert len(client.receive_frame()) > 18 * MEBIBYTE
    assert (6, 0) == (read.answers, read.waits_for_room)
    assert read.most_unread <= 40 * MEBIBYTE


def test_clients_that_never_read_are_disconnected_if_others_wait(tmp_path, monkeypatch):
    """Nobody waits for ever for the room of clients that have stalled."""
    with (
        unread_answers(tmp_path, monkeypatch, stalled_seconds=0.0) as (broker, _),
        RawClient(broker.port) as other,
    ):
        assert ErrorCode.NONE == other.ask(fetch_of(MEBIBYTE), 12).error_code
