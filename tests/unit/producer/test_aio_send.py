"""Single records and tables of the asyncio producer, and the calls around them."""

from __future__ import annotations

import asyncio
import pickle
import threading

import pyarrow as pa
import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker.net.faults import AnswerError, NeverAnswer
from spark_kafka_sink.errors import (
    BrokerError,
    BufferExhaustedError,
    ConfigError,
    DeliveryError,
    IllegalStateError,
    InvalidPartitionError,
    KafkaTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    SchemaError,
    SerializationError,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.aio_kafka_producer import AIOKafkaProducer
from spark_kafka_sink.producer.records.interceptors import ProducerInterceptor
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.on_loop import aio_producer, on_loop, until_injected
from tests.support.producer.sending import LONG_LINGER, records_of, values_of


@pytest.mark.parametrize("linger_ms", [0, 5])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_send_returns_where_its_record_is(broker, linger_ms, codec):
    """Each send returns the metadata of its own record, in the order of the calls."""

    async def main() -> list[tuple[str, int, int, int, int]]:
        settings = {"linger.ms": linger_ms, "compression.type": codec}
        async with aio_producer(broker, **settings) as producer:
            return [
                (m.topic, m.partition, m.offset, m.serialized_key_size, m.serialized_value_size)
                for m in [await producer.send("one", b"%d" % n, b"key") for n in range(4)]
            ]

    assert [("one", 0, offset, 3, 1) for offset in range(4)] == on_loop(main)
    assert [b"0", b"1", b"2", b"3"] == values_of(broker)


def test_a_record_has_all_that_it_was_sent_with(broker):
    """Key, headers, partition and timestamp arrive, serialized as KafkaProducer does."""

    async def main() -> None:
        settings = {"key.serializer": "string", "value.serializer": "json"}
        async with aio_producer(broker, **settings) as producer:
            metadata = await producer.send(
                "t", {"n": 1}, "k", [("h", b"1")], partition=2, timestamp=1_700_000_000_000
            )
            assert (2, 0, 1_700_000_000_000) == (
                metadata.partition,
                metadata.offset,
                metadata.timestamp,
            )

    on_loop(main)
    [record] = records_of(broker, "t", 2)
    assert (b"k", b'{"n":1}', [("h", b"1")]) == (
        record.key,
        record.value.replace(b" ", b""),
        [(name, value) for name, value in record.headers],
    )


@pytest.mark.parametrize("linger_ms", [0, 5])
def test_many_records_are_sent_without_waiting(broker, linger_ms):
    """`send_nowait` returns futures of the loop, in whatever number."""

    async def main() -> None:
        async with aio_producer(broker, **{"linger.ms": linger_ms}) as producer:
            await producer.partitions_for("one")
            futures = [producer.send_nowait("one", b"%d" % n) for n in range(5_000)]
            assert all(isinstance(future, asyncio.Future) for future in futures)
            done = await asyncio.gather(*futures)
            assert list(range(5_000)) == [metadata.offset for metadata in done]

    on_loop(main)
    assert [b"%d" % n for n in range(5_000)] == values_of(broker)


@pytest.mark.parametrize("size", [400, 2_000, 100_000])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_records_of_every_size_are_sent_at_the_same_time(broker, size, codec):
    """Tasks that send at once get their own metadata, also of batches that a worker compresses."""

    async def main() -> None:
        settings = {"compression.type": codec, "buffer.memory": 1_048_576, "linger.ms": 0}
        async with aio_producer(broker, **settings) as producer:
            sends = [producer.send("one", b"%05d" % n * (size // 5)) for n in range(60)]
            done = await asyncio.gather(*sends)
            values = values_of(broker)
            for n, metadata in enumerate(done):
                assert b"%05d" % n == values[metadata.offset][:5]

    on_loop(main)


def test_a_send_nowait_needs_a_topic_that_is_known(broker):
    """It never waits, so the future of a record for another topic fails, and says what to do."""

    async def main() -> None:
        async with aio_producer(broker) as producer:
            with pytest.raises(KafkaTimeoutError, match="Await partitions_for"):
                await producer.send_nowait("one", b"v")
            await producer.partitions_for("one")
            assert 0 == (await producer.send_nowait("one", b"v")).offset

    on_loop(main)


def test_a_send_waits_for_memory_and_send_nowait_does_not(broker):
    """While buffer.memory is full, sends wait for acknowledgements, and others fail at once."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer(), times=1)
    value = bytes(100_000)

    async def main() -> None:
        settings = {
            "buffer.memory": 200_000,
            "compression.type": "none",
            "request.timeout.ms": 500,
            "linger.ms": 0,
        }
        async with aio_producer(broker, **settings) as producer:
            await producer.partitions_for("one")
            sends = [asyncio.create_task(producer.send("one", value)) for _ in range(20)]
            await until_injected(hook)
            outcomes = [producer.send_nowait("one", value) for _ in range(20)]
            refused = [o for o in outcomes if o.done() and o.exception() is not None]
            assert refused
            assert {BufferExhaustedError} == {type(o.exception()) for o in refused}
            await asyncio.gather(*sends, *(o for o in outcomes if o not in refused))
            assert 40 - len(refused) == len(values_of(broker))

    on_loop(main)


def test_a_send_waits_no_longer_than_max_block_ms(broker):
    """A send for which no memory becomes free fails with the settings to look at."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer())

    async def main() -> None:
        settings = {"buffer.memory": 200_000, "compression.type": "none", "linger.ms": 0}
        producer = aio_producer(broker, **settings)
        await producer.partitions_for("one")
        producer._core._max_block = 0.05
        sends = [asyncio.create_task(producer.send("one", bytes(100_000))) for _ in range(20)]
        await until_injected(hook)
        done, _ = await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(BufferExhaustedError, match=r"max.block.ms.*buffer.memory"):
            await done.pop()
        await producer.close(0)
        assert all(isinstance(send.exception(), Exception) for send in (*done, *sends))

    on_loop(main)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (("", b"v"), ValueError, "topic must not be empty"),
        ((1, b"v"), TypeError, "topic must be a str"),
        (("one", "text"), SerializationError, "bytes"),
        (("one", b"v", None, None, -7), ValueError, "partition must be a number"),
        (("one", b"v", None, [("h", 1)]), TypeError, "header"),
        (("one", b"v", None, None, None, -1), ValueError, "timestamp"),
        (("one", bytes(2_000_000)), RecordTooLargeError, "max.request.size"),
    ],
)
def test_bad_records_are_refused_as_by_kafka_producer(broker, arguments, error, match):
    """The errors of a record are those of KafkaProducer, from both ways to send."""

    async def main() -> None:
        async with aio_producer(broker) as producer:
            assert 0 == (await producer.send("one", b"first")).offset
            with pytest.raises(error, match=match):
                await producer.send(*arguments)
            with pytest.raises(error, match=match):
                await producer.send_nowait(*arguments)
            assert 1 == (await producer.send("one", b"last")).offset

    on_loop(main)


def test_the_error_of_a_broker_is_that_of_the_send(broker):
    """A record that its broker refuses fails its send alone."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), times=1)

    async def main() -> None:
        async with aio_producer(broker, **{"linger.ms": 0}) as producer:
            with pytest.raises(DeliveryError, match="TOPIC_AUTHORIZATION_FAILED"):
                await producer.send("one", b"refused")
            assert 0 == (await producer.send("one", b"taken")).offset

    on_loop(main)


def test_callbacks_and_interceptors_are_called_on_the_loop(broker):
    """Functions see each outcome once, on the loop's thread, before a flush returns."""
    seen: list[object] = []

    class Watcher(ProducerInterceptor):
        def on_acknowledgement(self, metadata, error):
            seen.append(("interceptor", error is None, threading.current_thread().name))

    def on_delivery(metadata, error):
        seen.append(("callback", error is None, threading.current_thread().name))
        raise RuntimeError("is logged")

    async def main() -> None:
        async with aio_producer(broker, **{"interceptor.classes": [Watcher()]}) as producer:
            await producer.partitions_for("one")
            producer.send_nowait("one", b"v", on_delivery=on_delivery)
            producer.send_nowait("unknown", b"v", on_delivery=on_delivery)
            await producer.flush()
            thread = threading.current_thread().name
            assert {
                ("callback", True, thread),
                ("interceptor", True, thread),
                ("callback", False, thread),
                ("interceptor", False, thread),
            } == set(seen)
            assert 4 == len(seen)

    on_loop(main)


def test_a_coroutine_cannot_be_a_callback(broker):
    """A coroutine function would never be awaited."""

    async def on_delivery(metadata, error):
        """Do nothing."""

    async def main() -> None:
        async with aio_producer(broker) as producer:
            with pytest.raises(TypeError, match="not a coroutine function"):
                await producer.send("one", b"v", on_delivery=on_delivery)

    on_loop(main)


def test_a_partitioner_may_send(broker):
    """A record that a user's function sends while others are written is written afterwards."""
    sent = []

    async def main() -> None:
        def partition(topic, key, value, partition_count, available):
            if value == b"first" and not sent:
                sent.append(producer.send_nowait("t", b"second"))
            return 0

        settings = {"partitioner.class": partition, "linger.ms": 0}
        async with aio_producer(broker, **settings) as producer:
            assert 1 == (await producer.send("t", b"first")).offset
            assert 0 == (await sent[0]).offset

    on_loop(main)


# --- tables


@pytest.mark.parametrize("memory", [300_000, 33_554_432])
def test_a_table_is_sent_in_slices(broker, memory, monkeypatch):
    """All rows arrive in order however little memory there is, and other tasks run meanwhile."""
    monkeypatch.setattr("spark_kafka_sink.producer.aio_kafka_producer.SLICE_BYTES", 100_000)
    rows = 20_000
    table = pa.table({"value": [b"%08d" % n * 10 for n in range(rows)]})

    async def main() -> None:
        settings = {"buffer.memory": memory, "compression.type": "none"}
        async with aio_producer(broker, **settings) as producer:
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            acks = await producer.send_table(table, topic="one")
            counting.cancel()
            assert rows == acks[TopicPartition("one", 0)].records
            assert turns > 10

    on_loop(main)
    assert [b"%08d" % n * 10 for n in range(rows)] == values_of(broker)


def test_a_table_of_typed_values_is_encoded(broker):
    """A format is applied to the column, as by send_arrow."""
    schema = '{"type": "record", "name": "Page", "fields": [{"name": "n", "type": "long"}]}'

    async def main() -> None:
        async with aio_producer(broker) as producer:
            acks = await producer.send_table(
                pa.table({"value": [{"n": 1}, {"n": 2}]}),
                topic="one",
                value_format="avro",
                value_schema=schema,
                format_options={"valueFraming": "none"},
            )
            assert 2 == acks[TopicPartition("one", 0)].records

    on_loop(main)
    assert [b"\x02", b"\x04"] == values_of(broker)


def test_bad_tables_are_refused_with_their_rows(broker):
    """Errors number the rows of the table, whatever slice they are in."""

    async def main() -> None:
        async with aio_producer(broker, **{"max.block.ms": 20_000}) as producer:
            with pytest.raises(SchemaError, match="value"):
                await producer.send_table(pa.table({"other": [1]}), topic="one")
            table = pa.table({"value": ["v"] * 10, "partition": pa.array([0] * 9 + [5])})
            with pytest.raises(InvalidPartitionError, match="row 9"):
                await producer.send_table(table, topic="one")
            with pytest.raises(BrokerError):
                await producer.send_table(pa.table({"value": ["v"]}), topic="not a topic!")

    on_loop(main)


def test_a_table_fails_with_the_error_of_its_broker(broker):
    """The error of a batch is raised when all batches have ended."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), times=1)

    async def main() -> None:
        async with aio_producer(broker) as producer:
            with pytest.raises(DeliveryError, match="TOPIC_AUTHORIZATION_FAILED"):
                await producer.send_table(pa.table({"value": ["v"]}), topic="one")

    on_loop(main)


# --- the other calls


def test_a_flush_sends_what_lingers(broker):
    """Records that would linger are acknowledged when flush returns."""

    async def main() -> None:
        async with aio_producer(broker, **LONG_LINGER) as producer:
            await producer.partitions_for("one")
            futures = [producer.send_nowait("one", b"%d" % n) for n in range(10)]
            assert not any(future.done() for future in futures)
            await producer.flush()
            assert [True] * 10 == [future.done() for future in futures]

    on_loop(main)


def test_a_flush_may_time_out(broker):
    """The error says how long it waited; the records are still on their way."""
    broker.on(ApiKey.PRODUCE, NeverAnswer(), times=1)

    async def main() -> None:
        producer = aio_producer(broker)
        await producer.partitions_for("one")
        future = producer.send_nowait("one", b"v")
        with pytest.raises(KafkaTimeoutError, match=r"within 0\.05 s"):
            await producer.flush(0.05)
        with pytest.raises(ValueError, match="0 seconds or more"):
            await producer.flush(-1)
        await producer.close(0)
        with pytest.raises(ProducerClosedError):
            await future

    on_loop(main)


def test_partitions_metrics_and_acknowledgements_are_those_of_kafka_producer(broker):
    """What can be asked has the names and values that KafkaProducer gives it."""

    async def main() -> None:
        async with aio_producer(broker) as producer:
            partitions = await producer.partitions_for("t")
            assert [0, 1, 2] == [partition.partition for partition in partitions]
            await producer.send("one", b"v")
            metrics = {name.name: metric.value() for name, metric in producer.metrics().items()}
            assert 1 == metrics["record-send-total"]
            assert 0 == producer.metrics_snapshot().record_error_total
            assert 1 == producer.acks()[TopicPartition("one", 0)].records
            assert ("open", False) == (repr(producer).split()[-1][:-1], producer.has_ended)
        assert ("closed", True) == (repr(producer).split()[-1][:-1], producer.has_ended)

    on_loop(main)


def test_a_topic_that_is_refused_is_an_error(broker):
    """An invalid name is refused by the broker, and nothing waits for max.block.ms."""

    async def main() -> None:
        async with aio_producer(broker) as producer:
            with pytest.raises(BrokerError, match="INVALID_TOPIC"):
                await producer.partitions_for("not a topic!")
            with pytest.raises(BrokerError, match="INVALID_TOPIC"):
                await producer.send("not a topic!", b"v")

    on_loop(main)


def test_a_producer_needs_a_running_loop(broker):
    """Without a loop the constructor fails, and says where to create the producer."""
    with pytest.raises(IllegalStateError, match="no event loop is running"):
        AIOKafkaProducer({"bootstrap.servers": broker.bootstrap_servers})


def test_invalid_settings_leave_nothing_behind():
    """A constructor that fails closes what it has started."""

    async def main() -> None:
        before = asyncio.all_tasks()
        with pytest.raises(ConfigError):
            AIOKafkaProducer({"bootstrap.servers": "127.0.0.1:9", "acks": "some"})
        config = ProducerConfig.from_mapping(
            {"bootstrap.servers": "127.0.0.1:9", "key.serializer": "no.such:serializer"}
        )
        with pytest.raises(ConfigError):
            AIOKafkaProducer(config)
        assert before == asyncio.all_tasks()

    on_loop(main)


def test_it_cannot_be_pickled(broker):
    """The error says what to do instead."""

    async def main() -> None:
        async with aio_producer(broker) as producer:
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(producer)

    on_loop(main)


def test_a_lone_record_is_sent_in_the_call_itself(broker):
    """With linger.ms=0 its request is on its way before another task runs."""

    async def main() -> None:
        async with aio_producer(broker, **{"linger.ms": 0, "compression.type": "none"}) as producer:
            await producer.send("one", b"first")
            first = producer.send_nowait("one", b"lone")
            core = producer._core
            assert (1, None) == (core._client.requests_in_flight, core._sender._next_turn)
            second = producer.send_nowait("one", b"next")
            assert 2 == core._client.requests_in_flight
            assert [1, 2] == [(await future).offset for future in (first, second)]

    on_loop(main)
