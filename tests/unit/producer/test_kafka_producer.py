"""The bulk path of the producer against the embedded broker, which is told to misbehave."""

from __future__ import annotations

import itertools
import os
import socket
import threading

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.faults import (
    AnswerError,
    CloseConnection,
    Delay,
    FaultContext,
    NeverAnswer,
)
from spark_kafka_sink.errors import (
    BrokerError,
    BufferExhaustedError,
    DeliveryError,
    DeliveryTimeoutError,
    InvalidPartitionError,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    ProducerClosedError,
    RecordTooLargeError,
)
from spark_kafka_sink.model import UNKNOWN_OFFSET, PartitionAcks, TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.decode import decode_records
from tests.support.producing import patiently, refusal_after_patience
from tests.support.real_kafka import wait_until
from tests.support.record_columns import columns

PARTITIONS = 3
#: Small batches, so that a few thousand rows make many requests.
SMALL_BATCHES = {"batch.size": 2_000, "compression.type": "none"}
FAST_RETRIES = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "reconnect.backoff.ms": 1}


@pytest.fixture
def broker():
    with DevBroker(topics={"t": PARTITIONS}) as broker:
        yield broker


def _producer(broker, **settings) -> KafkaProducer:
    given = {"bootstrap.servers": broker.bootstrap_servers, **FAST_RETRIES, **settings}
    return KafkaProducer(ProducerConfig.from_mapping(given), lingers=False)


def _values(broker, topic: str = "t", partitions: int = PARTITIONS) -> list[list[bytes | None]]:
    """Read what the broker's log has, partition by partition, in order."""
    return [
        [record.value for batch in broker.call(_batches(topic, p)) for record in _records(batch)]
        for p in range(partitions)
    ]


def _all_values(broker) -> list[bytes | None]:
    return list(itertools.chain(*_values(broker)))


def _batches(topic: str, partition: int):
    return lambda b: [
        bytes(batch)
        for batch in b.cluster.partition(TopicPartition(topic, partition)).log.batches()
    ]


def _records(batch: bytes):
    return decode_records(batch)


def _rows(count: int, start: int = 0) -> list[bytes]:
    return [b"%08d" % row for row in range(start, start + count)]


def _write_in_order(producer: KafkaProducer, rows: int = 20_000, step: int = 1_000) -> list[list]:
    """Write numbered rows round the partitions; give what each partition must then hold."""
    for start in range(0, rows, step):
        values = _rows(step, start)
        partitions = [row % PARTITIONS for row in range(start, start + step)]
        producer.append(columns(values, partitions=partitions), first_row=start)
    producer.flush()
    return [_rows(rows)[p::PARTITIONS] for p in range(PARTITIONS)]


def test_every_row_arrives_once_and_in_order(broker):
    """What is appended is in the log, row for row, and the acks say where."""
    with _producer(broker) as producer:
        expected = _write_in_order(producer)
        acks = producer.acks()
    assert expected == _values(broker)
    assert [(0, len(rows) - 1, len(rows)) for rows in expected] == [
        (acks[tp].first_offset, acks[tp].last_offset, acks[tp].records)
        for tp in sorted(acks, key=lambda tp: tp.partition)
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_arrives(broker, codec):
    """Each codec's batches are taken by the broker and read back the same."""
    with _producer(broker, **{"compression.type": codec}) as producer:
        expected = _write_in_order(producer, rows=3_000)
    assert expected == _values(broker)


@pytest.mark.parametrize(
    "fault",
    [
        AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS),
        AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, handled=True),
        AnswerError(ErrorCode.REQUEST_TIMED_OUT, handled=True),
        AnswerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        CloseConnection(),
        CloseConnection(handled=True),
        Delay(0.01),
    ],
    ids=str,
)
def test_a_fault_now_and_then_neither_loses_nor_duplicates_nor_reorders(broker, fault):
    """With five requests in flight and every fourth one failing, each row is there once."""

    def every_fourth(request: object, context: FaultContext):
        return fault if context.number % 4 == 0 else None

    hook = broker.on(ApiKey.PRODUCE, every_fourth)
    with _producer(broker, **SMALL_BATCHES) as producer:
        expected = _write_in_order(producer, rows=12_000)
    assert expected == _values(broker)
    assert hook.fired > 5


def test_an_answer_that_never_comes_costs_the_connection_and_no_row(broker):
    """After request.timeout.ms the connection is given up, and the batches go again elsewhere."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer(handled=True), times=1)
    with _producer(broker, **{"request.timeout.ms": 1_000}) as producer:
        expected = _write_in_order(producer, rows=3_000)
    assert expected == _values(broker)
    assert 1 == hook.fired


def test_a_producer_id_that_is_refused_for_now_is_asked_for_again(broker):
    """COORDINATOR_LOAD_IN_PROGRESS, as a broker answers right after its start, is retried."""
    broker.on(ApiKey.INIT_PRODUCER_ID, AnswerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), times=3)
    with _producer(broker) as producer:
        expected = _write_in_order(producer, rows=30, step=10)
    assert expected == _values(broker)


def test_a_producer_id_that_is_refused_for_good_fails_the_write(broker):
    """A missing right to write idempotently is told with its name and what to do."""
    broker.on(ApiKey.INIT_PRODUCER_ID, AnswerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    producer = _producer(broker)
    producer.append(columns([b"v"]))
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        producer.flush()
    producer.close(0)


def test_a_refusal_names_rows_partition_cause_and_advice(broker):
    """A batch that is refused for good fails the write with all that is known about it."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    producer = _producer(broker)
    producer.append(columns([b"v"] * 10, partitions=[1] * 10), first_row=70)
    with pytest.raises(
        DeliveryError,
        match=r"10 records for t-1, among input rows 70 to 79 were not delivered: .*"
        r"TOPIC_AUTHORIZATION_FAILED.* Grant this user WRITE",
    ):
        producer.flush()
    with pytest.raises(DeliveryError, match="t-1"):
        producer.append(columns([b"v"]))
    producer.close(0)


def test_a_batch_that_is_not_acknowledged_in_time_fails_the_write(broker):
    """delivery.timeout.ms ends the retries; the error tells the attempts and the last cause."""
    hook = broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS))
    producer = _producer(broker)
    producer.append(columns([b"v"], partitions=[2]))
    with pytest.raises(KafkaTimeoutError):
        producer.flush(0)
    # The second request shows that the answer to the first was read.
    wait_until(lambda: hook.fired > 1, seconds=60, what="a retry")
    clock = producer._core._sender._clock
    producer._core._sender._clock = lambda: clock() + 120
    producer._core._thread.call_soon(producer._core._wakeup)
    with pytest.raises(DeliveryError, match=r"t-2.*delivery.timeout.ms.*NOT_ENOUGH_REPLICAS") as e:
        producer.flush()
    assert isinstance(e.value.__cause__, DeliveryTimeoutError)
    producer.close(0)


def test_no_more_retries_than_allowed(broker):
    """With `retries` used up the last answer is the error."""
    hook = broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS))
    producer = _producer(broker, retries=2)
    producer.append(columns([b"v"]))
    with pytest.raises(DeliveryError, match="NOT_ENOUGH_REPLICAS"):
        producer.flush()
    assert 3 == hook.fired
    producer.close(0)


def test_an_unexplained_gap_in_the_sequence_fails_the_write(broker):
    """A broker that has lost acknowledged records is not written to as if nothing had happened."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    producer = _producer(broker)
    producer.append(columns([b"v"]))
    with pytest.raises(DeliveryError, match="has lost records that it had acknowledged"):
        producer.flush()
    producer.close(0)


def test_a_batch_too_large_for_the_topic_is_split(broker):
    """MESSAGE_TOO_LARGE halves batches until they fit, in order, and is remembered."""
    broker.create_topic("small", partitions=1, configs={"max.message.bytes": "5000"})
    hook = broker.on(ApiKey.PRODUCE, lambda request, context: None)
    with _producer(broker, **{"compression.type": "lz4"}) as producer:
        rows = [os.urandom(100) for _ in range(2_000)]
        for start in range(0, 2_000, 100):
            producer.append(columns(rows[start : start + 100], topic="small"))
        producer.flush()
    assert [rows] == _values(broker, "small", 1)
    assert hook.seen < 200


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_single_record_too_large_for_the_topic_fails_the_write(broker, codec):
    """What cannot be split is told with the setting that would have to be raised."""
    broker.create_topic("small", partitions=1, configs={"max.message.bytes": "5000"})
    producer = _producer(broker, **{"compression.type": codec})
    producer.append(columns([os.urandom(6_000)], topic="small"))
    with pytest.raises(DeliveryError, match=r"MESSAGE_TOO_LARGE.*max.message.bytes: raise it"):
        producer.flush()
    producer.close(0)


def test_without_acks_no_offsets_are_invented(broker):
    """With acks=0 the rows arrive, and the acks say that their offsets are unknown."""
    with _producer(broker, acks=0) as producer:
        producer.append(columns(_rows(10), partitions=[0] * 10))
        producer.flush()
        acks = producer.acks()
        size = acks[TopicPartition("t", 0)].bytes
        assert {
            TopicPartition("t", 0): PartitionAcks(
                first_offset=UNKNOWN_OFFSET, last_offset=UNKNOWN_OFFSET, records=10, bytes=size
            )
        } == acks
    deadline = threading.Event()
    for _ in range(1_000):
        if _values(broker)[0]:
            break
        deadline.wait(0.05)
    assert _rows(10) == _values(broker)[0]


def test_the_acks_tell_when_the_topic_replaces_timestamps():
    """A LogAppendTime topic shows in the acks."""
    with DevBroker(topics={"t": 1}, log_append_time=True) as broker, _producer(broker) as producer:
        producer.append(columns([b"v"]))
        producer.flush()
        assert producer.acks()[TopicPartition("t", 0)].log_append_time


def test_a_retry_does_not_pass_for_replaced_timestamps(broker):
    """A broker answers a duplicate with a time as well, which is the batch's own."""
    hook = broker.on(ApiKey.PRODUCE, CloseConnection(handled=True), times=1)
    with _producer(broker) as producer:
        producer.append(columns([b"v"], partitions=[0]))
        producer.flush()
        assert not producer.acks()[TopicPartition("t", 0)].log_append_time
    assert 1 == hook.fired


def test_rows_without_a_key_fill_one_partition_before_the_next(broker):
    """Keyless rows stick to a partition for about a batch, and get to all of them in the end."""
    with _producer(broker, **SMALL_BATCHES) as producer:
        for start in range(0, 10_000, 1_000):
            producer.append(columns(_rows(1_000, start)))
        producer.flush()
    values = _values(broker)
    assert _rows(10_000) == sorted(itertools.chain(*values))
    assert all(values)
    runs = sum(int(a) + 1 != int(b) for rows in values for a, b in itertools.pairwise(rows))
    assert runs < 10_000 // 50


def test_rows_go_to_the_topics_that_they_name(broker):
    """A topic per row is written to each of them, through one producer."""
    broker.create_topic("u", partitions=1)
    topics = ["t" if row % 3 else "u" for row in range(3_000)]
    with _producer(broker) as producer:
        producer.append(columns(_rows(3_000), topics=topics))
        producer.flush()
    assert [_rows(3_000)[::3]] == _values(broker, "u", 1)
    assert 2_000 == sum(map(len, _values(broker)))


def test_a_bad_row_is_named(broker):
    """A row that can never be sent is told by number, with the rows before it counted."""
    producer = _producer(broker)
    with pytest.raises(InvalidTopicError, match=r"row 101: the topic is null"):
        producer.append(columns([b"a", b"b"], topics=["t", None]), first_row=100)
    with pytest.raises(InvalidPartitionError, match=r"row 101, topic 't', partition 3: .* has 3"):
        producer.append(columns([b"a", b"b"], partitions=[0, 3]), first_row=100)
    with pytest.raises(InvalidPartitionError, match="row 0, topic 't', partition -1"):
        producer.append(columns([b"a"], partitions=[-1]))
    with pytest.raises(RecordTooLargeError, match=r"row 101, topic 't', partition 2: .*2000\d\d\d"):
        producer.append(columns([b"a", bytes(2_000_000)], partitions=[1, 2]), first_row=100)
    with pytest.raises(RecordTooLargeError, match=r"row 0, topic 't', partition \d: .*2000\d\d\d"):
        producer.append(columns([bytes(2_000_000)], keys=[b"k"]))
    producer.close(0)


def test_a_record_of_the_largest_size_arrives(broker):
    """One record may take all of max.request.size."""
    value = os.urandom(1_048_576 - 100)
    with DevBroker(topics={"t": 1}, max_message_bytes=2_000_000) as large:
        with _producer(large) as producer:
            producer.append(columns([value]))
            producer.flush()
        assert [[value]] == _values(large, partitions=1)


def test_an_unknown_topic_is_waited_for_and_then_told():
    """A topic that does not exist and is not created fails after max.block.ms, with its name."""
    with DevBroker(auto_create_topics=False) as broker:
        producer = _producer(broker, **{"max.block.ms": 500})
        error = refusal_after_patience(
            lambda: producer.append(columns([b"v"], topic="absent")),
            r"'absent'.*UNKNOWN_TOPIC_OR_PARTITION",
        )
        assert isinstance(error, KafkaTimeoutError)
        producer.close(0)


def test_a_missing_topic_is_created_when_the_broker_does_so():
    """A topic that the broker creates on being asked for is written to."""
    with DevBroker() as broker:
        with _producer(broker) as producer:
            producer.append(columns([b"v"], topic="new"))
            producer.flush()
        assert [[b"v"]] == _values(broker, "new", 1)


def test_a_topic_name_that_kafka_refuses_is_told_at_once(broker):
    """A name that no topic can have fails without waiting for max.block.ms."""
    producer = _producer(broker)
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        producer.append(columns([b"v"], topic="no/such"))
    producer.close(0)


def test_unreachable_brokers_are_told_with_their_addresses(unused_port):
    """Where nobody answers, the error names the addresses and the cause."""
    address = f"127.0.0.1:{unused_port}"
    config = ProducerConfig.from_mapping({"bootstrap.servers": address, "max.block.ms": 200})
    producer = KafkaProducer(config)
    error = refusal_after_patience(
        lambda: producer.append(columns([b"v"])),
        rf"through {address} \(bootstrap.servers\).*refused",
    )
    assert isinstance(error, NetworkError)
    producer.close(0)


def test_a_dead_bootstrap_address_does_not_matter_beside_a_live_one(broker, unused_port):
    """Of several bootstrap addresses one that answers is enough."""
    servers = f"127.0.0.1:{unused_port},{broker.bootstrap_servers}"
    with _producer(broker, **{"bootstrap.servers": servers}) as producer:
        producer.append(columns([b"v"]))
        producer.flush()
    assert [b"v"] == _all_values(broker)


def test_a_peer_that_does_not_speak_kafka_is_told_as_such():
    """Bytes that are no answer end the attempt with what was wrong about them."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(1_000)

        peer = threading.Thread(target=answer, daemon=True)
        peer.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        producer = KafkaProducer(
            ProducerConfig.from_mapping(
                {
                    "bootstrap.servers": address,
                    "max.block.ms": 500,
                    "reconnect.backoff.ms": 60_000,
                    "reconnect.backoff.max.ms": 60_000,
                }
            )
        )
        error = refusal_after_patience(
            lambda: producer.append(columns([b"v"])), "a frame of 1213486160 bytes"
        )
        assert isinstance(error, NetworkError)
        producer.close(0)
        peer.join()


def test_memory_that_does_not_come_free_fails_the_write(broker):
    """When brokers do not acknowledge, a writer is held back and then told so."""
    broker.on(ApiKey.PRODUCE, NeverAnswer())
    sizes = {"buffer.memory": 100_000, "max.request.size": 50_000, "max.block.ms": 200}
    producer = _producer(broker, **sizes, **SMALL_BATCHES)
    patiently(lambda: producer.partitions_for("t"))
    with pytest.raises(BufferExhaustedError, match=r"row \d+, t-\d.*buffer.memory"):
        producer.append(columns(_rows(100_000)))
    producer.close(0)


def test_buffer_memory_is_never_exceeded_by_more_than_a_batch(broker):
    """However many partitions are open, blocks and waiting batches stay within buffer.memory."""
    broker.create_topic("wide", partitions=1_000)
    sizes = {"buffer.memory": 1_000_000, "max.request.size": 100_000, "compression.type": "none"}
    lowest = 1_000_000
    with _producer(broker, **sizes) as producer:
        pool = producer._core.gatherer._builder._pool
        for start in range(0, 20_000, 1_000):
            rows = range(start, start + 1_000)
            producer.append(
                columns(
                    _rows(1_000, start), partitions=[r * 7919 % 1_000 for r in rows], topic="wide"
                )
            )
            lowest = min(lowest, pool.available_bytes)
        producer.flush()
        assert 1_000_000 == pool.available_bytes
    assert lowest >= 0
    assert 20_000 == sum(map(len, _values(broker, "wide", 1_000)))


def test_a_slow_consumer_of_memory_is_released_by_acknowledgements(broker):
    """A writer that waits for memory goes on when brokers answer, and loses nothing."""
    broker.on(ApiKey.PRODUCE, Delay(0.002))
    sizes = {"buffer.memory": 100_000, "max.request.size": 50_000}
    with _producer(broker, **sizes, **SMALL_BATCHES) as producer:
        expected = _write_in_order(producer)
    assert expected == _values(broker)


def test_a_broker_that_restarts_in_mid_write_is_found_again(broker):
    """Connections that are lost are made anew, and what was in flight goes again."""
    with _producer(broker, **SMALL_BATCHES) as producer:
        half = _rows(10_000)
        producer.append(columns(half, partitions=[0] * 10_000))
        broker.stop()
        broker.start()
        producer.append(columns(_rows(10_000, 10_000), partitions=[0] * 10_000), first_row=10_000)
        producer.flush()
    assert _rows(20_000) == _values(broker)[0]


def test_a_closed_producer_says_so(broker):
    """Every use after close is an error of its own, and closing twice is none."""
    producer = _producer(broker)
    producer.close()
    producer.close()
    with pytest.raises(ProducerClosedError, match="is closed"):
        producer.append(columns([b"v"]))
    with pytest.raises(ProducerClosedError, match="is closed"):
        producer.flush()


def test_closing_leaves_no_thread_and_no_connection(broker):
    """After close the network thread has ended and the sockets are closed."""
    with _producer(broker) as producer:
        producer.append(columns([b"v"]))
    assert producer._core._thread._thread not in threading.enumerate()
    assert producer._core._thread._loop.is_closed()


def test_closing_sends_what_is_gathered(broker):
    """A graceful close flushes first."""
    producer = _producer(broker)
    producer.append(columns([b"v"]))
    producer.close()
    assert [b"v"] == _all_values(broker)


def test_a_block_that_fails_is_left_with_its_own_error(broker):
    """The context manager gives up what is gathered rather than hide the error that ended it."""
    broker.on(ApiKey.PRODUCE, NeverAnswer())
    with pytest.raises(ZeroDivisionError), _producer(broker) as producer:  # noqa: PT012
        producer.append(columns([b"v"]))
        raise ZeroDivisionError
    assert not producer._core._thread.is_alive


def test_a_producer_is_not_used_after_a_fork(broker):
    """A child process gets a clear error instead of a hang."""
    producer = _producer(broker)
    producer._process_id += 1
    with pytest.raises(ProducerClosedError, match="make one after the fork"):
        producer.append(columns([b"v"]))
    with pytest.raises(ProducerClosedError, match="make one after the fork"):
        producer.check_may_wait()
    producer._process_id -= 1
    producer.close()


def test_an_unexpected_failure_of_the_network_thread_reaches_the_writer(broker):
    """A mistake on the network thread wakes who waits for acknowledgements, with that mistake."""
    producer = _producer(broker)
    producer.append(columns([b"v"]))
    producer._core._sender.run_once = lambda now: 1 / 0
    with pytest.raises(Exception, match="the producer's network thread failed: ZeroDivisionError"):
        producer.flush()
    producer.close(0)
    assert not producer._core._thread.is_alive


def test_a_new_topic_after_the_network_thread_has_ended_raises_what_ended_it(broker):
    """Who needs metadata from a thread that is gone hears of its error, and does not wait."""
    producer = _producer(broker)
    producer.append(columns([b"v"]))
    producer._core._sender.run_once = lambda now: 1 / 0
    with pytest.raises(KafkaError, match="ZeroDivisionError"):
        producer.flush()
    producer._core._thread.join(10)
    with pytest.raises(KafkaError, match="ZeroDivisionError"):
        producer.append(columns([b"v"], topic="another"))
    with pytest.raises(KafkaError, match="ZeroDivisionError"):
        producer._core.await_partition("another")
    producer.close(0)


def test_rows_for_an_open_batch_are_refused_after_a_failure_too(broker):
    """The first append after a failure raises it, though the row would still find room."""
    appended = threading.Event()

    def refuse(*_: object) -> AnswerError:
        appended.wait(60)
        return AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    hook = broker.on(ApiKey.PRODUCE, refuse)
    producer = _producer(broker, **SMALL_BATCHES)
    producer.append(columns([b"v", *_rows(500)], partitions=[2] + [1] * 500))
    appended.set()
    for result in producer._core.accumulator.unsettled():
        assert result.wait(0, timeout=10)
    assert hook.fired > 0
    with pytest.raises(DeliveryError, match="t-1"):
        producer.append(columns([b"v"], partitions=[2]))
    producer.close(0)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, MemoryError])
def test_a_batch_that_was_broken_off_is_never_passed_over(broker, monkeypatch, interrupt):
    """An interrupt while a batch is closed ends the producer: a later flush must not succeed."""

    def compress(payload: object) -> bytes:
        raise interrupt

    producer = _producer(broker)
    producer.append(columns(_rows(10)))
    with monkeypatch.context() as broken:
        broken.setattr(producer._core._compression._compressor, "compress", compress)
        with pytest.raises(interrupt):
            producer.flush()
    for use in (producer.flush, lambda: producer.append(columns([b"v"])), producer.close):
        with pytest.raises(KafkaError, match=f"in the middle of a batch.*{interrupt.__name__}"):
            use()
    assert not producer._core._thread.is_alive


def test_a_row_that_is_refused_costs_no_other_row(broker):
    """After a RecordError the rows before it, and those of later appends, are written."""
    with _producer(broker) as producer:
        with pytest.raises(RecordTooLargeError):
            producer.append(columns([b"a", bytes(2_000_000), b"b"], partitions=[0] * 3))
        producer.append(columns([b"c"], partitions=[0]))
    assert [b"a", b"c"] == _values(broker)[0]


def test_acks_can_be_taken_away(broker):
    """Who takes the acknowledgements gets those since the last time, and each once."""
    broker.create_topic("taken", partitions=1)
    settings = {"bootstrap.servers": broker.bootstrap_servers}
    with KafkaProducer(settings) as producer:
        taken = []
        for value in (b"one", b"two"):
            producer.send("taken", value).result(timeout=30)
            taken.append(producer.take_acks()[TopicPartition("taken", 0)])
        assert [(0, 0, 1), (1, 1, 1)] == [
            (acks.first_offset, acks.last_offset, acks.records) for acks in taken
        ]
        assert {} == producer.take_acks() == producer.acks()
