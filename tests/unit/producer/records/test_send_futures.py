"""Callbacks of single sends, errors that their futures report, and errors that are raised."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError, NeverAnswer
from spark_kafka_sink.errors import (
    BrokerError,
    BufferExhaustedError,
    DeliveryError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    ProducerClosedError,
    RecordError,
    RecordTooLargeError,
    SerializationError,
)
from spark_kafka_sink.producer.record_staging import MAX_STAGED_BYTES
from spark_kafka_sink.producer.records.record_gatherer import CHUNK_RECORDS
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.faults.expected_faults import wait_until_injected
from tests.support.producer.producing import patiently, refusal_after_patience
from tests.support.producer.sending import (
    LONG_LINGER,
    PARTITIONS,
    TIMEOUT,
    sending_producer,
    values_of,
)
from tests.support.record.record_columns import columns

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.messages.produce import ProduceRequest


REFUSAL = AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _has_value(request: ProduceRequest, value: bytes) -> bool:
    return any(
        value in bytes(partition.records)
        for topic in request.topic_data
        for partition in topic.partition_data
    )


def _in_time(call):
    """Run a call that must not hang on another thread, and return its result or raise its error."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(TIMEOUT)


# --- callbacks


def test_callbacks_are_called_for_each_record_in_order(broker):
    """Each callback gets the metadata and no error, once, in the order of the offsets."""
    outcomes = []
    with sending_producer(broker, **{"batch.size": 1_000}) as producer:
        for number in range(1_500):
            producer.send(
                "one", b"%d" % number, on_delivery=lambda m, e: outcomes.append((m.offset, e))
            )
        producer.flush()
        assert [(number, None) for number in range(1_500)] == outcomes


def test_flush_returns_after_the_callbacks(broker):
    """After a flush the results of callbacks are complete, as in Java."""
    with sending_producer(broker, **LONG_LINGER) as producer:
        for _ in range(20):
            outcomes = []
            slow = threading.Event()
            producer.send("one", b"a", on_delivery=lambda *_, slow=slow: slow.wait(0.02))
            producer.send("one", b"b", on_delivery=lambda *_, outcomes=outcomes: outcomes.append(1))
            producer.flush()
            assert [1] == outcomes


def test_an_error_in_a_callback_is_logged_and_affects_no_record(broker, caplog):
    """The record of a failing callback and all others are delivered."""
    outcomes = []
    with sending_producer(broker) as producer:
        producer.send("one", b"a", on_delivery=lambda *_: 1 / 0)
        producer.send("one", b"b", on_delivery=lambda *_: outcomes.append("b"))
        producer.flush()
    assert ["b"] == outcomes
    assert [b"a", b"b"] == values_of(broker)
    assert "a delivery callback raised an exception" in caplog.text


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("way", ["on_delivery", "add_done_callback", "interceptor"])
def test_a_callback_cannot_end_the_producer(broker, caplog, error, way):
    """The error of a callback is logged, and later callbacks and records are not affected."""
    outcomes = []

    def end(*_: object) -> None:
        raise error

    class Ending:
        on_acknowledgement = staticmethod(end)

    settings = {"interceptor.classes": (Ending(),)} if way == "interceptor" else {}
    with sending_producer(broker, **LONG_LINGER, **settings) as producer:
        first = producer.send("one", b"a", on_delivery=end if way == "on_delivery" else None)
        if way == "add_done_callback":
            first.add_done_callback(end)
        producer.send("one", b"b", on_delivery=lambda *_: outcomes.append("b"))
        producer.flush()
        assert (0, ["b"]) == (first.result(0).offset, outcomes)
        later = producer.send("one", b"c")
        producer.flush()
        assert 2 == later.result(0).offset
    expected = (
        "an interceptor's on_acknowledgement failed"
        if settings
        else "a delivery callback raised an exception"
    )
    assert expected in caplog.text


def test_callbacks_run_on_the_network_thread_with_a_done_future(broker):
    """Callbacks run in record order, and one added to a done future runs in the calling thread."""
    outcomes = []
    with sending_producer(broker, **LONG_LINGER) as producer:
        futures = [producer.send("one", b"%d" % number) for number in range(3)]
        for future in futures:
            future.add_done_callback(
                lambda f: outcomes.append(
                    (f.done(), f.result(0).offset, threading.current_thread())
                )
            )
        producer.flush()
        [network_thread] = {thread for _, _, thread in outcomes}
        assert [(True, 0), (True, 1), (True, 2)] == [(done, offset) for done, offset, _ in outcomes]
        assert "kafka-producer-network-thread" in network_thread.name
        futures[1].add_done_callback(lambda f: outcomes.append(threading.current_thread()))
        assert threading.current_thread() is outcomes[-1]


def test_a_callback_can_send(broker):
    """Each record of a chain is sent when the one before it is acknowledged."""
    done = threading.Event()
    with sending_producer(broker, **{"linger.ms": 0}) as producer:

        def send(number: int) -> None:
            if number == 20:
                done.set()
            else:
                producer.send("one", b"%d" % number, on_delivery=lambda m, e: send(number + 1))

        send(0)
        assert done.wait(TIMEOUT)
    assert [b"%d" % number for number in range(20)] == values_of(broker)


def test_a_callback_can_send_more_than_a_chunk(broker):
    """A callback may send several chunks, which are written without waiting."""
    count = 3 * CHUNK_RECORDS
    futures = []
    with sending_producer(broker) as producer:

        def send_many(metadata: object, error: object) -> None:
            futures.extend(producer.send("one", b"%d" % n) for n in range(count))

        producer.send("one", b"first", on_delivery=send_many)
        _in_time(producer.flush)
        _in_time(lambda: [future.result(TIMEOUT) for future in futures])
    assert [b"first", *(b"%d" % n for n in range(count))] == values_of(broker)


@pytest.mark.parametrize(
    "wait",
    [
        lambda producer: producer.flush(),
        lambda producer: producer.close(),
        lambda producer: producer.partitions_for("t"),
        lambda producer: producer.append(columns([b"v"])),
        lambda producer: producer.send_arrow(pa.table({"value": [b"v"]}), topic="t"),
        lambda producer: producer.send("one", b"v").result(),
    ],
    ids=["flush", "close", "partitions_for", "append", "send_arrow", "result"],
)
def test_waiting_on_the_network_thread_raises_an_error(broker, wait):
    """On the network thread a call that would wait forever raises an error."""
    raised = []
    with sending_producer(broker) as producer:

        def use(metadata: object, error: object) -> None:
            with pytest.raises(
                ProducerClosedError, match="make this call on another thread"
            ) as caught:
                wait(producer)
            raised.append(caught.value)

        producer.send("one", b"v", on_delivery=use).result(TIMEOUT)
        producer.flush()
    assert 1 == len(raised)


def test_the_network_thread_can_send_only_to_known_topics(broker):
    """The network thread must not wait for metadata, so the record's future fails."""
    futures = []
    with sending_producer(broker) as producer:
        producer.send(
            "one", b"v", on_delivery=lambda *_: futures.append(producer.send("t", b"w"))
        ).result(TIMEOUT)
        producer.flush()
    with pytest.raises(KafkaTimeoutError, match="topic 't' is not available yet"):
        futures[0].result(0)


# --- errors of futures, and errors that are raised


def test_a_topic_without_metadata_fails_its_record():
    """A topic without metadata fails the future as in Java, and callbacks receive the error."""
    futures, outcomes = [], []

    def send() -> None:
        future = producer.send("absent", b"v", on_delivery=lambda *end: outcomes.append(end))
        assert future.done()
        futures.append(future)
        future.result()

    with DevBroker(auto_create_topics=False) as broker:
        with sending_producer(broker, **{"max.block.ms": 300}) as producer:
            expected = r"'absent'.*UNKNOWN_TOPIC_OR_PARTITION"
            refusal_after_patience(send, expected, KafkaTimeoutError)
        assert [(None, future.exception()) for future in futures] == outcomes


def test_a_missing_partition_fails_its_record(broker):
    """A partition may be added within max.block.ms, after which the error names it."""
    with sending_producer(broker, **{"max.block.ms": 200}) as producer:
        patiently(lambda: producer.partitions_for("t"))
        producer.send("t", b"v").result(TIMEOUT)
        refusal_after_patience(
            lambda: producer.send("t", b"v", partition=3).result(0),
            "t-3 does not exist",
            KafkaTimeoutError,
        )


def test_an_invalid_topic_fails_its_record(broker):
    """A topic name that no topic can have fails the future at once."""
    with (
        sending_producer(broker) as producer,
        pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"),
    ):
        producer.send("no/such", b"v").result(0)


def test_a_topic_name_that_cannot_be_sent_is_rejected(broker):
    """A name that is too long or has no UTF-8 raises an error, and the producer continues."""
    with sending_producer(broker) as producer:
        for call in (
            lambda: producer.send("a" * 40_000, b"v"),
            lambda: producer.partitions_for("a" * 40_000),
            lambda: producer.send_arrow(pa.table({"value": [b"v"]}), topic="a" * 40_000),
            lambda: producer.send_arrow(pa.table({"value": [b"v"], "topic": ["a" * 40_000]})),
        ):
            with pytest.raises((ValueError, RecordError), match="topic has 40000 bytes"):
                call()
        with pytest.raises(ValueError, match="surrogates not allowed"):
            producer.send("\ud800", b"v")
        with pytest.raises(ValueError, match="surrogates not allowed"):
            producer.send_arrow(pa.table({"value": [b"v"]}), topic="\ud800")
        with pytest.raises(TypeError, match="the topic must be a str"):
            producer.send_arrow(pa.table({"value": [b"v"]}), topic=5)
        producer.send("one", b"v").result(TIMEOUT)


def test_unreachable_brokers_fail_the_record(broker):
    """The error for unreachable brokers names the addresses and the cause."""
    broker.stop()
    producer = sending_producer(broker, **{"max.block.ms": 200})
    refusal_after_patience(
        lambda: producer.send("t", b"v").result(0), r"bootstrap\.servers", NetworkError
    )
    producer.close(0)
    broker.start()


def test_an_oversized_record_fails_alone(broker):
    """The future of an oversized record fails at once, and other records are sent."""
    with sending_producer(broker, **{"max.request.size": 100_000}) as producer:
        future = producer.send("one", bytes(200_000))
        assert isinstance(future.exception(0), RecordTooLargeError)
        producer.send("one", b"v").result(TIMEOUT)
    assert [b"v"] == values_of(broker)


def test_a_small_limit_applies_to_staged_records(broker):
    """The limit applies even to records small enough to be staged without a check."""
    with sending_producer(broker, **{"max.request.size": 1_000}) as producer:
        producer.send("one", b"a").result(TIMEOUT)
        refused = producer.send("one", bytes(2_000))
        after = producer.send("one", b"b")
        producer.flush()
        assert isinstance(refused.exception(0), RecordTooLargeError)
        assert 1 == after.result(0).offset
    assert [b"a", b"b"] == values_of(broker)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": None}, TypeError),
        ({"topic": ""}, ValueError),
        ({"topic": "t", "partition": -1}, ValueError),
        ({"topic": "t", "partition": "1"}, TypeError),
        ({"topic": "t", "timestamp": -1}, ValueError),
        ({"topic": "t", "headers": [("h", "v")]}, TypeError),
        ({"topic": "t", "value": 5}, SerializationError),
        ({"topic": "t", "key": 5}, SerializationError),
    ],
    ids=str,
)
def test_an_invalid_record_raises_an_error(broker, arguments, error):
    """Invalid arguments raise an error in `send`, and nothing is sent."""
    with sending_producer(broker) as producer:
        producer.send("t", b"v").result(TIMEOUT)
        with pytest.raises(error):
            producer.send(**{"value": b"v", **arguments})
    assert 1 == sum(len(values_of(broker, "t", p)) for p in range(PARTITIONS))


def test_records_that_get_no_memory_fail(broker):
    """If brokers do not respond, records fail with BufferExhaustedError, and none stays pending."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer())
    sizes = {
        "buffer.memory": 20_000,
        "max.request.size": 10_000,
        "batch.size": 2_000,
        "compression.type": "none",
    }
    outcomes = []
    producer = sending_producer(broker, **sizes, **{"max.block.ms": 100}, **LONG_LINGER)
    patiently(lambda: producer.partitions_for("one"))
    producer.send("one", b"unanswered")
    producer._core.gatherer.close_batches()
    wait_until_injected(hook)
    futures = [
        producer.send("one", bytes(100), on_delivery=lambda m, e: outcomes.append(e))
        for _ in range(CHUNK_RECORDS)
    ]
    failed = [future for future in futures if future.done()]
    assert failed
    assert {BufferExhaustedError} == {type(future.exception(0)) for future in failed}
    producer.close(0)
    assert all(future.done() for future in futures)
    assert len(futures) == len(outcomes)


def test_a_rejected_batch_does_not_affect_the_others(broker):
    """A refused topic does not affect other topics, with idempotence as well."""
    broker.create_topic("refused", partitions=1)
    broker.on(
        ApiKey.PRODUCE,
        lambda request, context: REFUSAL if _has_value(request, b"refuse me") else None,
        expect=True,
    )
    outcomes = []
    with sending_producer(broker, **{"linger.ms": 0, "compression.type": "none"}) as producer:
        before = producer.send("one", b"a")
        before.result(TIMEOUT)
        wrong = producer.send(
            "refused", b"refuse me", on_delivery=lambda m, e: outcomes.append((m, e))
        )
        with pytest.raises(DeliveryError, match=r"refused-0.*TOPIC_AUTHORIZATION_FAILED"):
            wrong.result(TIMEOUT)
        after = producer.send("one", b"b")
        producer.flush()
        assert 1 == after.result(0).offset
        assert [(None, wrong.exception())] == outcomes
    assert [b"a", b"b"] == values_of(broker)


def test_a_lost_record_fails_only_its_future(broker):
    """The error is reported by the future, so flush and close do not raise it again."""
    broker.on(ApiKey.PRODUCE, REFUSAL, times=1)
    with sending_producer(broker, **LONG_LINGER) as producer:
        lost = producer.send("one", b"a")
        producer.flush()
        assert isinstance(lost.exception(0), DeliveryError)
        producer.send("one", b"b")
        producer.flush()
    assert [b"b"] == values_of(broker)


def test_lost_rows_of_append_fail_every_later_call(broker):
    """Rows have no future, so every later call raises the error."""
    broker.on(ApiKey.PRODUCE, REFUSAL, times=1)
    producer = sending_producer(broker, **LONG_LINGER)
    producer.append(columns([b"a"], topic="one"))
    with pytest.raises(DeliveryError):
        producer.flush()
    for use in (
        producer.flush,
        lambda: producer.append(columns([b"b"], topic="one")),
        lambda: producer.send("one", b"b"),
        lambda: producer.send_arrow(pa.table({"value": [b"b"]}), topic="one"),
        producer.close,
    ):
        with pytest.raises(DeliveryError, match="one-0"):
            use()


def test_rows_in_a_batch_that_fails_with_records_are_reported(broker, monkeypatch):
    """In a batch of records and rows, the records fail, and the next calls raise for the rows."""

    def fail(records: object) -> bytes:
        raise MemoryError

    producer = sending_producer(broker, **LONG_LINGER, **{"compression.type": "lz4"})
    producer.append(columns([b"row"], topic="one"))
    future = producer.send("one", b"record")
    with monkeypatch.context() as broken:
        broken.setattr(producer._core._compression._compressor, "compress", fail)
        for _ in range(CHUNK_RECORDS):
            producer.send("one", os.urandom(MAX_STAGED_BYTES))
    for use in (lambda: future.result(0), producer.flush, producer.close):
        with pytest.raises(KafkaError, match="in the middle of a batch"):
            use()
