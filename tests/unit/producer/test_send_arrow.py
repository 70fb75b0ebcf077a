"""Tables of every layout in pyarrow, through the producer to the embedded broker."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.errors import (
    BrokerError,
    DeliveryError,
    InvalidPartitionError,
    InvalidTopicError,
    RecordError,
    RecordTooLargeError,
    SchemaError,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.producer.records.partitioner import BuiltInPartitioner
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.sending import records_of, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT = 120
PLACE = TopicPartition("t", 0)
ROWS = [b"a", None, b"", b"longer than what a view holds inline", b"b"]


@pytest.fixture
def broker() -> Iterator[DevBroker]:
    with DevBroker(topics={"t": 1, "u": 2}) as broker:
        yield broker


@pytest.fixture
def producer(broker: DevBroker) -> Iterator[KafkaProducer]:
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        yield producer


class _Opaque(pa.ExtensionType):
    """An unregistered extension type over any storage."""

    def __init__(self, storage: pa.DataType) -> None:
        super().__init__(storage, "test.opaque")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> _Opaque:
        return cls(storage)


def _plain() -> pa.Array:
    return pa.array(ROWS, pa.binary())


LAYOUTS = {
    "binary": _plain,
    "large binary": lambda: pa.array(ROWS, pa.large_binary()),
    "binary view": lambda: pa.array(ROWS, pa.binary_view()),
    "string": lambda: pa.array([r and r.decode() for r in ROWS], pa.string()),
    "large string": lambda: pa.array([r and r.decode() for r in ROWS], pa.large_string()),
    "string view": lambda: pa.array([r and r.decode() for r in ROWS], pa.string_view()),
    "dictionary": lambda: _plain().dictionary_encode(),
    "chunked": lambda: pa.chunked_array([ROWS[:1], ROWS[1:4], [], ROWS[4:]], pa.binary()),
    "sliced": lambda: pa.array([b"x", *ROWS, b"y"], pa.binary()).slice(1, len(ROWS)),
    "sliced dictionary": lambda: (
        pa.array([b"x", *ROWS, b"y"], pa.binary()).dictionary_encode().slice(1, len(ROWS))
    ),
    "extension": lambda: pa.ExtensionArray.from_storage(_Opaque(pa.binary()), _plain()),
    "chunked extension": lambda: pa.chunked_array(
        [pa.ExtensionArray.from_storage(_Opaque(pa.binary()), _plain())]
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_column_of_any_layout_arrives(broker, producer, layout):
    """Bytes and text arrive unchanged from every Arrow layout."""
    table = pa.table({"value": LAYOUTS[layout](), "key": LAYOUTS[layout]()})
    acks = producer.send_arrow(table, topic="t").result(TIMEOUT)
    assert ROWS == values_of(broker, "t")
    assert ROWS == [record.key for record in records_of(broker, "t")]
    assert (0, 4, 5) == (acks[PLACE].first_offset, acks[PLACE].last_offset, acks[PLACE].records)


def test_a_view_beyond_its_buffer_sends_nothing(broker, producer):
    """Memory outside of a column's buffers never becomes a record; the error names the row."""
    inline, beyond = struct.pack("<i12s", 2, b"ok"), struct.pack("<i4sii", 4000, b"xxxx", 0, 16)
    buffers = [None, pa.py_buffer(inline + beyond), pa.py_buffer(b"x" * 32)]
    table = pa.table({"value": pa.Array.from_buffers(pa.binary_view(), 2, buffers)})
    with pytest.raises(RecordError, match=r"^row 1, topic 't': column 'value' refers to data"):
        producer.send_arrow(table, topic="t")
    producer.flush()
    assert [] == values_of(broker, "t")


def test_bytes_of_fixed_size_arrive(broker, producer):
    """Fixed-size binary, which has no offsets, arrives as well."""
    values = [b"abc", None, b"def"]
    table = pa.table({"value": pa.array(values, pa.binary(3))})
    producer.send_arrow(table, topic="t").result(TIMEOUT)
    assert values == values_of(broker, "t")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": pa.array([1])}, r"column 'value' has type int64"),
        ({"value": pa.array([b"v"]), "key": pa.array([1.5])}, r"column 'key' has type double"),
        ({"value": pa.array([["v"]])}, r"column 'value' has type list"),
        ({"value": pa.array([{"a": 1}])}, r"column 'value' has type struct"),
        (
            {"value": pa.ExtensionArray.from_storage(_Opaque(pa.int64()), pa.array([1]))},
            r"column 'value' has type int64",
        ),
        ({"value": pa.array([b"v"]), "topic": pa.array([5])}, r"column 'topic' has type int64"),
        ({"value": pa.array([b"v"]), "partition": pa.array(["0"])}, r"column 'partition'"),
        ({"value": pa.array([b"v"]), "headers": pa.array(["h"])}, r"column 'headers'"),
        ({"key": pa.array([b"v"])}, r"no column 'value'"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_the_error_for_an_unsupported_column_names_it(broker, producer, columns, message):
    """The error names the column and its type, and nothing is sent."""
    with pytest.raises(SchemaError, match=message):
        producer.send_arrow(pa.table(columns), topic=None if "topic" in columns else "t")
    producer.flush()
    assert [] == values_of(broker, "t")


@pytest.mark.parametrize("data", [[b"v"], {"value": [b"v"]}, None, b"v"], ids=repr)
def test_an_object_that_is_not_a_table_is_rejected(producer, data):
    """The error says what is needed, and how to get it."""
    with pytest.raises(SchemaError, match=r"expected an Arrow table or record batch"):
        producer.send_arrow(data, topic="t")


class _Stream:
    """A type outside pyarrow that exports Arrow data (the PyCapsule interface)."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "form",
    [lambda t: t, lambda t: t.to_batches()[0], _Stream],
    ids=["table", "record batch", "stream"],
)
def test_tables_batches_and_streams_are_accepted(broker, producer, form):
    """Every form of Arrow rows is accepted."""
    producer.send_arrow(form(pa.table({"value": ROWS})), topic="t").result(TIMEOUT)
    assert ROWS == values_of(broker, "t")


def test_an_empty_table_is_done_at_once(producer):
    """Without rows there is nothing to wait for, and the topic is not looked up."""
    future = producer.send_arrow(pa.table({"value": pa.array([], pa.binary())}), topic="no/such")
    assert future.done()
    assert {} == future.result(0)


def test_every_column_is_sent(broker, producer):
    """Topic, partition, timestamp and headers come from their columns, row by row."""
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table(
        {
            "value": [b"a", b"b", b"c"],
            "topic": ["t", "u", "u"],
            "partition": pa.array([None, 1, 0], pa.int32()),
            "timestamp": pa.array([1, 2, 3], pa.timestamp("ms")),
            "headers": pa.array([[("h", b"x")], None, []], header),
        }
    )
    acks = producer.send_arrow(table).result(TIMEOUT)
    assert {PLACE, TopicPartition("u", 0), TopicPartition("u", 1)} == set(acks)
    [first] = records_of(broker, "t")
    assert (b"a", 1, [("h", b"x")]) == (
        first.value,
        first.timestamp,
        [(each.key, each.value) for each in first.headers],
    )
    assert [[b"c"], [b"b"]] == [values_of(broker, "u", p) for p in range(2)]


def test_a_topic_argument_takes_precedence_over_the_column(broker, producer):
    """If a topic is given, the topic column is ignored."""
    table = pa.table({"value": [b"a"], "topic": ["u"]})
    producer.send_arrow(table, topic="t").result(TIMEOUT)
    assert [b"a"] == values_of(broker, "t")


def test_a_large_table_is_acknowledged_per_partition(broker, producer):
    """Several batches of a partition are reported as one range of offsets."""
    table = pa.table({"value": [b"%032d" % n for n in range(100_000)]})
    acks = producer.send_arrow(table, topic="u").result(TIMEOUT)
    assert 100_000 == sum(each.records for each in acks.values())
    for place, each in acks.items():
        assert each.records == len(values_of(broker, "u", place.partition))
        assert (0, each.records - 1) == (each.first_offset, each.last_offset)


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"value": [b"a", bytes(2_000_000)]}, RecordTooLargeError, "row 1, topic 't'"),
        ({"value": [b"a", b"b"], "partition": [0, 5]}, InvalidPartitionError, "row 1.* 5"),
        ({"value": [b"a", b"b"], "partition": [0, -1]}, InvalidPartitionError, "row 1.* -1"),
    ],
    ids=["too large", "no such partition", "negative"],
)
def test_the_error_names_a_row_that_cannot_be_sent(producer, columns, error, message):
    """The error has the row's number in the table."""
    with pytest.raises(error, match=message):
        producer.send_arrow(pa.table(columns), topic="t")


def test_rows_are_counted_across_the_chunks_of_a_table(broker, producer):
    """The error counts rows across chunks, and the rows before it are sent."""
    values = pa.chunked_array([[b"a", b"b"], [b"c", bytes(2_000_000)]])
    with pytest.raises(RecordTooLargeError, match="row 3"):
        producer.send_arrow(pa.table({"value": values}), topic="t")
    producer.flush()
    assert [b"a", b"b", b"c"] == values_of(broker, "t")


def test_the_error_names_a_row_without_a_topic(producer):
    """A row without a topic cannot be sent, and the error has its number."""
    with pytest.raises(InvalidTopicError, match="row 1: the topic is null"):
        producer.send_arrow(pa.table({"value": [b"a", b"b"], "topic": ["t", None]}))


def test_the_error_names_a_row_with_a_null_header_key(producer):
    """A header needs a key, and the error has the row's number."""
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table({"value": [b"a"], "headers": pa.array([[(None, b"x")]], header)})
    with pytest.raises(RecordError, match="row 0"):
        producer.send_arrow(table, topic="t")


def test_an_invalid_topic_raises_an_error(producer):
    """A refused topic is raised, because there is no future yet to report it."""
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        producer.send_arrow(pa.table({"value": [b"a"]}), topic="no/such")


def test_a_lost_table_fails_only_its_future(broker, producer):
    """A lost table fails only its own future, and later tables are sent."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), times=1)
    lost = producer.send_arrow(pa.table({"value": [b"a", b"b"]}), topic="t")
    with pytest.raises(DeliveryError, match="TOPIC_AUTHORIZATION_FAILED"):
        lost.result(TIMEOUT)
    producer.send_arrow(pa.table({"value": [b"c"]}), topic="t").result(TIMEOUT)
    producer.flush()
    assert [b"c"] == values_of(broker, "t")


def test_each_turn_of_rows_without_a_key_follows_on_the_one_before(broker, monkeypatch):
    """The partitioner is told which partition had the last turn; a new topic has had none."""
    turns = []
    next_turn = BuiltInPartitioner.next_turn

    def record(self, available, current, **given):
        turn = next_turn(self, available, current, **given)
        turns.append((current, turn[0]))
        return turn

    monkeypatch.setattr(BuiltInPartitioner, "next_turn", record)
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.send_arrow(pa.table({"value": ["x" * 100] * 5_000}), topic="u")
    assert len(turns) > 2
    assert [None, *(partition for _, partition in turns[:-1])] == [before for before, _ in turns]
