"""Records as values, and the result of a poll."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord, ConsumerRecords
from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition
from tests.support.consumer.fetched import fetched
from tests.support.record.plain_batches import PlainRecord, plain_batch

EVIL = b"<script>alert(1)</script>"
ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
PAYMENTS_0 = TopicPartition("payments", 0)


def record(offset, place=ORDERS_0, **fields):
    return ConsumerRecord(*place, offset, **fields)


def polled():
    return ConsumerRecords(
        {
            ORDERS_1: [record(7, ORDERS_1), record(9, ORDERS_1)],
            PAYMENTS_0: [record(3, PAYMENTS_0)],
            ORDERS_0: [record(0)],
        },
        {ORDERS_1: OffsetAndMetadata(10, 2), PAYMENTS_0: OffsetAndMetadata(4)},
    )


def pickled(value):
    """Pickle a value, and load it again."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 -- our own bytes


# --- records


def test_a_record_has_defaults():
    """A record that a test creates needs only its place."""
    made = ConsumerRecord("orders", 0, 5)
    assert (None, None, -1, 0, (), None, -1, -1) == made[3:]
    assert ("orders", 0, 5) == (made.topic, made.partition, made.offset)


@pytest.mark.parametrize(
    ("number", "name"), [(0, "CreateTime"), (1, "LogAppendTime"), (-1, "NoTimestampType")]
)
def test_timestamp_types_have_the_names_of_java(number, name):
    """The names are those that Java shows."""
    assert name == record(0, timestamp_type=number).timestamp_type_name


def test_a_decoded_record_equals_a_created_one():
    """Records are values: equal, with equal hashes, and equal after pickling and copying."""
    answer = plain_batch([PlainRecord(key=b"k", value=b"vv", timestamp=5, headers=((b"h", b"1"),))])
    [decoded] = fetched(answer).take(1)
    made = ConsumerRecord("orders", 3, 0, b"k", b"vv", 5, 0, (("h", b"1"),), None, 1, 2)
    assert made == decoded
    assert hash(made) == hash(decoded)
    assert made._replace(offset=1) != decoded
    for each in (pickled(decoded), copy.deepcopy(decoded)):
        assert made == each
        assert ConsumerRecord is type(each)
        assert "h" == each.headers[0].key


def test_a_record_cannot_be_changed():
    """Neither its fields nor new attributes can be set."""
    with pytest.raises(AttributeError):
        record(0).value = b"other"
    with pytest.raises(AttributeError):
        record(0).other = 1


def test_a_record_with_an_unhashable_value_has_no_hash():
    """As with any tuple, what a deserializer returned decides."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(record(0, value={}))


def test_a_record_shows_its_fields():
    """The text creates an equal record, unless something in it is too long to show."""
    made = record(5, key=b"k", value="text", timestamp=1, headers=(("h", None),))
    assert (
        "ConsumerRecord(topic='orders', partition=0, offset=5, key=b'k', value='text', "
        "timestamp=1, timestamp_type=0, headers=(('h', None),), leader_epoch=None, "
        "serialized_key_size=-1, serialized_value_size=-1)"
    ) == repr(made)
    assert 600 > len(repr(record(0, value=bytes(10_000_000))))


def test_a_record_shows_itself_in_notebooks():
    """Its content is escaped, and its timestamp is a date with its type."""
    shown = record(
        5,
        key=EVIL,
        value=EVIL,
        timestamp=1_700_000_000_123,
        timestamp_type=1,
        headers=((EVIL.decode(), None), ("source", b"web")),
        serialized_value_size=25,
    )._repr_html_()
    assert "<script>" not in shown
    assert 3 == shown.count("&lt;script&gt;")
    assert "offset 5 of orders-0" in shown
    assert "2023-11-14 22:13:20.123+00:00 (LogAppendTime)" in shown
    assert "source: web" in shown
    assert ">none<" in shown
    assert ">25<" in shown
    plain = record(5, value=17)._repr_html_()
    assert "timestamp" not in plain
    assert "headers" not in plain
    assert ">17<" in plain


def test_a_record_shows_its_key_beside_its_value():
    """Each is in the row of its own name, as text, and so are their sizes."""
    made = record(5, key=b"a key", value=b"a value", serialized_key_size=5)
    shown = re.sub(r"<[^>]*>", " ", made._repr_html_())
    assert (
        "record at offset 5 of orders-0 key a key value a value "
        "key, in bytes 5 value, in bytes none"
    ) == " ".join(shown.split())


# --- the result of a poll


def test_records_are_found_by_partition_and_topic():
    """As in kafka-python it is a dict, with the methods of Java."""
    result = polled()
    assert [0] == [each.offset for each in result[ORDERS_0]]
    assert [7, 9] == [each.offset for each in result.records(ORDERS_1)]
    assert [7, 9] == [each.offset for each in result.records(("orders", 1))]
    assert [7, 9, 0] == [each.offset for each in result.records("orders")]
    assert [7, 9, 3, 0] == [each.offset for each in result.records()]
    assert [] == result.records("others")
    assert [] == result.records(TopicPartition("orders", 5))
    assert (4, 3, False) == (result.count, len(result), result.is_empty)
    assert {ORDERS_0, ORDERS_1, PAYMENTS_0} == result.partitions
    assert 10 == result.next_offsets[ORDERS_1].offset


def test_a_poll_may_return_nothing():
    """It is false, empty, and may have moved a position nevertheless."""
    assert (0, True, {}) == (ConsumerRecords().count, ConsumerRecords().is_empty, ConsumerRecords())
    assert not ConsumerRecords()
    skipped = ConsumerRecords({}, {ORDERS_0: OffsetAndMetadata(2)})
    assert skipped.is_empty
    assert {ORDERS_0: OffsetAndMetadata(2)} == skipped.next_offsets
    assert ConsumerRecords({ORDERS_0: []}).is_empty
    assert "<0 records in 0 partitions>" == repr(ConsumerRecords())
    assert "<0 records in 1 partition: orders-0 without records>" == repr(
        ConsumerRecords({ORDERS_0: []})
    )


def test_the_result_of_a_poll_is_pickled():
    """Its next offsets are kept."""
    result = pickled(polled())
    assert polled() == result
    assert polled().next_offsets == result.next_offsets


def test_the_result_of_a_poll_is_one_line():
    """It names some partitions with their offsets, not the records."""
    result = polled()
    assert (
        "<4 records in 3 partitions: orders-1 at offsets 7 to 9, payments-0 at offset 3, "
        "orders-0 at offset 0>"
    ) == repr(result)
    result[TopicPartition("orders", 2)] = [record(1)]
    assert repr(result).endswith("orders-0 at offset 0 and 1 more>")


def test_the_result_of_a_poll_shows_itself_in_notebooks():
    """There is a table of the partitions, with their next offsets, and one of the first records."""
    result = polled()
    result[ORDERS_0][0] = record(0, key=EVIL, value=EVIL)
    result[ORDERS_0] += [record(n, value=b"v%d" % n) for n in range(1, 100)]
    shown = result._repr_html_()
    assert "103 records in 3 partitions" in shown
    assert "<script>" not in shown
    assert 2 == shown.count("&lt;script&gt;")
    assert ">v5<" in shown
    assert ">v50<" not in shown
    assert "... and 83 more records" in shown
    assert "<td" in ConsumerRecords({ORDERS_0: []})._repr_html_()
