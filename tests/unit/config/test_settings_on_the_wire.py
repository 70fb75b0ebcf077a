"""The effects of settings that brokers and callers see: each test changes one setting.

Times are only compared with each other, or with a lower bound: a busy machine may be late, but
never early.
"""

from __future__ import annotations

import itertools
import re
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, RecordTooLargeError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.faults.fault_proxy import FaultProxy
from tests.support.faults.fault_rules import Action, Fault, Side
from tests.support.kafka.real_kafka import wait_until
from tests.support.network.leaps import MILLISECONDS, leap_once
from tests.support.producer.producing import patiently
from tests.support.record.record_columns import columns

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.net.faults import FaultContext

PARTITIONS = 3
#: The smallest factor that the jitter of exponential backoff applies to a wait (KIP-580).
LEAST = 0.8
#: The largest such factor.
MOST = 1.2


@pytest.fixture
def broker():
    with DevBroker(topics={"t": PARTITIONS}) as broker:
        yield broker


def _producer(servers: str, **settings: object) -> KafkaProducer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return KafkaProducer(ProducerConfig.from_mapping({"bootstrap.servers": servers, **named}))


def _write(broker: DevBroker, values: list[bytes], partitions=None, keys=None, **settings) -> None:
    with _producer(broker.bootstrap_servers, **settings) as producer:
        producer.append(columns(values, partitions=partitions, keys=keys))


def _batches(broker: DevBroker, partition: int = 0) -> list[bytes]:
    tp = TopicPartition("t", partition)
    return broker.call(lambda b: [bytes(batch) for batch in b.cluster.partition(tp).log.batches()])


def _headers(broker: DevBroker, partition: int = 0) -> list:
    return [decode_header(batch) for batch in _batches(broker, partition)]


def _seen(broker: DevBroker, api_key: ApiKey) -> list[tuple[object, FaultContext]]:
    """Record all requests to an API from now on."""
    seen: list[tuple[object, FaultContext]] = []
    broker.on(api_key, lambda request, context: seen.append((request, context)))
    return seen


def _rows(count: int) -> list[bytes]:
    return [b"%08d" % row for row in range(count)]


# --- the content of a request


@pytest.mark.parametrize(("acks", "sent"), [("all", -1), ("1", 1)])
def test_a_produce_request_has_the_acks(broker, acks, sent):
    """A Produce request carries acks."""
    seen = _seen(broker, ApiKey.PRODUCE)
    _write(broker, [b"v"], acks=acks)
    assert [sent] == [request.acks for request, _ in seen]


@pytest.mark.parametrize("milliseconds", [7_000, 9_000])
def test_a_produce_request_has_the_request_timeout(broker, milliseconds):
    """A Produce request carries request.timeout.ms, which limits the wait for replicas."""
    seen = _seen(broker, ApiKey.PRODUCE)
    _write(broker, [b"v"], request_timeout_ms=milliseconds)
    assert [milliseconds] == [request.timeout_ms for request, _ in seen]


@pytest.mark.parametrize("name", ["spark-kafka-sink", "billing"])
def test_every_request_has_the_client_id(broker, name):
    """Every request carries client.id."""
    seen = [_seen(broker, key) for key in (ApiKey.METADATA, ApiKey.PRODUCE)]
    _write(broker, [b"v"], client_id=name)
    assert {name} == {context.header.client_id for _, context in itertools.chain(*seen)}


@pytest.mark.parametrize("wanted", [True, False])
def test_idempotent_batches_are_numbered(broker, wanted):
    """Batches carry a producer id and sequence numbers exactly if enable.idempotence is true."""
    _write(broker, [b"v"], [0], enable_idempotence=wanted)
    [header] = _headers(broker)
    assert (wanted, wanted) == (header.producer_id >= 0, header.base_sequence == 0)


# --- the content of a batch


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed_by_the_configured_codec(broker, codec):
    """The attributes of a batch contain the configured codec."""
    _write(broker, _rows(500), [0] * 500, compression_type=codec)
    assert [codec] == [header.compression.name.lower() for header in _headers(broker)]


@pytest.mark.parametrize(
    ("codec", "low", "high"), [("gzip", 1, 9), ("lz4", 1, 12), ("zstd", 1, 19)]
)
def test_a_higher_compression_level_shortens_batches(broker, codec, low, high):
    """A higher compression level yields a different and shorter batch."""
    text = [b"%d squared is %d" % (row, row * row) for row in range(2_000)]
    for level in (low, high):
        _write(
            broker,
            text,
            [0] * len(text),
            compression_type=codec,
            **{f"compression_{codec}_level": level},
        )
    at_low, at_high = _batches(broker)
    assert at_low[61:] != at_high[61:]
    assert len(at_low) > len(at_high)


@pytest.mark.parametrize("size", [1_000, 4_000])
def test_no_batch_is_larger_than_batch_size(broker, size):
    """Uncompressed batches are filled up to batch.size, and no further."""
    _write(broker, _rows(1_000), [0] * 1_000, batch_size=size, compression_type="none")
    sizes = [len(batch) for batch in _batches(broker)]
    assert size - 50 < max(sizes) <= size


@pytest.mark.parametrize(("ignored", "used"), [(False, PARTITIONS), (True, 1)])
def test_keys_can_be_ignored(broker, ignored, used):
    """With partitioner.ignore.keys, a batch of rows with different keys goes to one partition."""
    keys = [b"%d" % row for row in range(100)]
    _write(broker, _rows(100), keys=keys, partitioner_ignore_keys=ignored)
    assert used == sum(1 for partition in range(PARTITIONS) if _batches(broker, partition))


def test_a_record_must_fit_into_a_request(broker):
    """A record larger than max.request.size is rejected, and a smaller one is written."""
    _write(broker, [bytes(2_000)], [0], max_request_size=3_000)
    with pytest.raises(RecordTooLargeError, match=r"max\.request\.size"):
        _write(broker, [bytes(2_000)], [0], max_request_size=1_000)
    assert 1 == len(_batches(broker))


# --- requests in flight


@pytest.mark.parametrize("allowed", [1, 3])
def test_no_more_requests_are_in_flight_than_allowed(broker, allowed):
    """Without responses, exactly the allowed number of requests is sent on a connection."""
    hang = Fault(side=Side.ANSWER, action=Action.HANG)
    with FaultProxy([hang]) as proxy:
        proxy.connect_to(broker.bootstrap_servers)
        host, _, port = proxy.address.rpartition(":")
        broker.call(lambda b: b.advertise(host, int(port), listener="PLAINTEXT"))
        seen = _seen(broker, ApiKey.PRODUCE)
        producer = _producer(
            proxy.address,
            enable_idempotence=False,
            max_in_flight_requests_per_connection=allowed,
            batch_size=500,
            compression_type="none",
        )
        producer.append(columns(_rows(1_000), partitions=[0] * 1_000))
        wait_until(lambda: len(seen) >= allowed, seconds=60, what="the allowed requests")
        # More than that would be sent at once.
        with pytest.raises(KafkaTimeoutError):
            producer.flush(0.5)
        assert allowed == len(seen)
        producer.close(0)


# --- timeouts and backoffs


def _gaps(broker: DevBroker, errors: int, **settings: object) -> list[float]:
    """Respond to Produce with the given number of errors; return the seconds between attempts."""
    seen = _seen(broker, ApiKey.PRODUCE)
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS), times=errors)
    _write(broker, [b"v"], [0], **settings)
    return [b.now - a.now for (_, a), (_, b) in itertools.pairwise(seen)]


def test_a_retry_waits_for_its_backoff(broker):
    """A retry waits for retry.backoff.ms after an error."""
    long = _gaps(broker, 3, retry_backoff_ms=200, retry_backoff_max_ms=200)
    short = _gaps(broker, 6, retry_backoff_ms=1, retry_backoff_max_ms=1)
    assert min(long) >= 0.2 * LEAST
    # At least one of these retries is not delayed by anything other than its backoff.
    assert min(short) < 0.2 * LEAST


def test_the_backoff_grows_up_to_its_maximum(broker):
    """Each retry waits twice as long as the one before, up to retry.backoff.max.ms."""
    growing = _gaps(broker, 4, retry_backoff_ms=50, retry_backoff_max_ms=5_000)
    bounded = _gaps(broker, 6, retry_backoff_ms=50, retry_backoff_max_ms=50)
    assert growing[3] >= 0.4 * LEAST
    # At least one of these retries is not delayed by anything other than its backoff.
    assert min(bounded[3:]) < 0.4 * LEAST


def _gaps_of_attempts(count: int, **settings: object) -> list[float]:
    """Return the seconds between the connections to a broker that closes each of them.

    The first attempts to connect are counted, however long they take.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        times: list[float] = []

        def hang_up() -> None:
            while True:
                connection, _ = server.accept()
                # The producer cannot notice the end before this time.
                now = time.monotonic()
                connection.close()
                if stopping.is_set():
                    return
                times.append(now)

        stopping = threading.Event()
        peer = threading.Thread(target=hang_up, daemon=True)
        peer.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        try:
            producer = _producer(address, max_block_ms=MILLISECONDS, **settings)
            leap_once(producer, lambda: len(times) > count)
            with pytest.raises(KafkaError):
                producer.append(columns([b"v"]))
            producer.close(0)
        finally:
            stopping.set()
            socket.create_connection(server.getsockname()).close()
            peer.join()
    return [b - a for a, b in itertools.pairwise(times[: count + 1])]


@pytest.fixture
def no_listener_probe(monkeypatch):
    """Disable the connections that probe a listener, so that only connection attempts are seen."""

    async def look(*_: object) -> bool:
        return False

    monkeypatch.setattr("spark_kafka_sink.network.connection.dialer.answers_in_tls", look)


@pytest.mark.usefixtures("no_listener_probe")
def test_reconnecting_waits_for_the_backoff():
    """Attempts to connect are separated by reconnect.backoff.ms."""
    slow = _gaps_of_attempts(4, reconnect_backoff_ms=250, reconnect_backoff_max_ms=250)
    fast = _gaps_of_attempts(8, reconnect_backoff_ms=10, reconnect_backoff_max_ms=10)
    assert min(slow) >= 0.25 * LEAST
    # At least one of these attempts is not delayed by anything other than its backoff.
    assert min(fast) < 0.25 * LEAST


@pytest.mark.usefixtures("no_listener_probe")
def test_the_reconnect_backoff_grows_up_to_its_maximum():
    """Each attempt waits twice as long as the one before, up to reconnect.backoff.max.ms."""
    growing = _gaps_of_attempts(5, reconnect_backoff_ms=20, reconnect_backoff_max_ms=5_000)
    bounded = _gaps_of_attempts(12, reconnect_backoff_ms=20, reconnect_backoff_max_ms=20)
    assert growing[4] >= 0.32 * LEAST
    assert min(bounded[4:]) < 0.32 * LEAST


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"setup_timeout_ms": 200, "setup_timeout_max_ms": 9_000}, 0.2),
        ({"setup_timeout_ms": 400, "setup_timeout_max_ms": 9_000}, 0.4),
        ({"setup_timeout_ms": 9_000, "setup_timeout_max_ms": 400}, 0.4),
    ],
)
def test_a_silent_peer_times_out(settings, seconds):
    """A connection must be ready within the setup timeout, which its maximum limits."""
    named = {f"socket_connection_{name}": value for name, value in settings.items()}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        producer = _producer(address, max_block_ms=MILLISECONDS, **named)
        network = producer._core._client
        leap_once(producer, lambda: network.last_error is not None)
        with pytest.raises(KafkaError) as caught:
            producer.append(columns([b"v"]))
        producer.close(0)
    within = re.search(r"within ([0-9.]+) s \(socket\.connection\.setup", str(caught.value))
    assert within is not None
    # The message rounds to a tenth of a second.
    assert seconds * LEAST - 0.05 <= float(within[1]) <= seconds * MOST + 0.05


def test_max_block_ms_limits_the_wait_for_a_topic():
    """max.block.ms limits the wait for a topic's metadata."""
    with DevBroker(topics={"t": 1}, auto_create_topics=False) as broker:
        for milliseconds in (50, 400):
            producer = _producer(broker.bootstrap_servers, max_block_ms=milliseconds)
            # Without a connection, the error would be a NetworkError.
            patiently(partial(producer.partitions_for, "t"))
            begun = time.monotonic()
            with pytest.raises(KafkaTimeoutError, match=r"s \(max\.block\.ms\)"):
                producer.append(columns([b"v"], topic="absent"))
            waited = time.monotonic() - begun
            producer.close(0)
            # The default is 60 s.
            assert milliseconds / 1000 <= waited < 45


def test_old_metadata_is_refreshed(broker):
    """With a short metadata.max.age.ms, metadata is refreshed repeatedly without a trigger."""
    often = threading.Event()
    broker.on(ApiKey.METADATA, lambda _, context: often.set() if context.number > 5 else None)
    _write(broker, [b"v"])
    assert not often.is_set()
    with _producer(broker.bootstrap_servers, metadata_max_age_ms=50) as producer:
        producer.append(columns([b"v"]))
        assert often.wait(60)


# --- the sockets


@pytest.mark.parametrize(
    ("setting", "option"),
    [("send_buffer_bytes", socket.SO_SNDBUF), ("receive_buffer_bytes", socket.SO_RCVBUF)],
)
@pytest.mark.parametrize("size", [50_000, -1])
def test_sockets_get_the_configured_buffer_sizes(broker, monkeypatch, setting, option, size):
    """Each socket gets the configured buffer size, and -1 leaves it unchanged."""
    # Other threads use sockets, too: only this producer's thread counts.
    thread_name = "kafka-producer-network-thread | buffers"
    sizes = []
    set_option = socket.socket.setsockopt

    def take_down(self, level, name, *value):
        by = threading.current_thread().name
        if (by, level, name) == (thread_name, socket.SOL_SOCKET, option):
            sizes.extend(value)
        return set_option(self, level, name, *value)

    monkeypatch.setattr(socket.socket, "setsockopt", take_down)
    _write(broker, [b"v"], client_id="buffers", **{setting: size})
    assert ({size} if size > 0 else set()) == set(sizes)
