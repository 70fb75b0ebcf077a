"""The checks of partitions, offsets and groups that callers pass to clients."""

from __future__ import annotations

import pytest

from spark_kafka_sink.config.arguments import check_group, offsets_of, partition_of
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

TP = TopicPartition("t", 0)


def test_offsets_may_be_numbers():
    """A number is an offset without an epoch and without metadata; the result is a copy."""
    given = {TP: 7, ("u", 1): OffsetAndMetadata(8, 2, "note")}
    found = offsets_of(given)
    assert {TP: OffsetAndMetadata(7), ("u", 1): OffsetAndMetadata(8, 2, "note")} == found
    assert [True, True] == [isinstance(each, TopicPartition) for each in found]
    given.clear()
    assert 2 == len(found)


@pytest.mark.parametrize(
    ("offsets", "error", "message"),
    [
        ([TP], TypeError, "are a mapping"),
        (None, TypeError, "are a mapping"),
        ({"t": 1}, TypeError, "is a TopicPartition"),
        ({("", 0): 1}, ValueError, "name of a topic must not be blank"),
        ({(7, 0): 1}, TypeError, "name of a topic"),
        ({("\ud800", 0): 1}, ValueError, "UTF-8"),
        ({("x" * 2**15, 0): 1}, ValueError, "has 32768 bytes; Kafka's limit is 32767"),
        ({("t", "0"): 1}, TypeError, "is a number"),
        ({("t", True): 1}, TypeError, "is a number"),
        ({("t", -1): 1}, ValueError, "negative"),
        ({("t", 2**31): 1}, ValueError, "32 bits"),
        ({TP: "1"}, TypeError, "an offset is a number"),
        ({TP: None}, TypeError, "an offset is a number"),
        ({TP: 1.0}, TypeError, "an offset is a number"),
        ({TP: True}, TypeError, "an offset is a number"),
        ({TP: (1, -1, "")}, TypeError, "an offset is a number"),
        ({TP: -1}, ValueError, "negative"),
        ({TP: 2**63}, ValueError, "64 bits"),
        ({TP: OffsetAndMetadata(1, None)}, TypeError, "leader epoch is a number"),
        ({TP: OffsetAndMetadata(1, 2**31)}, ValueError, "32 bits"),
        ({TP: OffsetAndMetadata(1, 0, b"")}, TypeError, "metadata of an offset"),
        ({TP: OffsetAndMetadata(1, 0, "\udfff")}, ValueError, "UTF-8"),
    ],
)
def test_invalid_offsets_are_refused(offsets, error, message):
    """The error names what is wrong."""
    with pytest.raises(error, match=message):
        offsets_of(offsets)


@pytest.mark.parametrize(
    "offset", [0, 2**63 - 1, OffsetAndMetadata(0, 2**31 - 1), OffsetAndMetadata(0, -1, None)]
)
def test_the_limits_themselves_are_valid(offset):
    """The highest numbers can be sent, and metadata may be missing."""
    highest = TopicPartition("t", 2**31 - 1)
    assert [highest] == list(offsets_of({highest: offset}))
    assert highest == partition_of(highest)


@pytest.mark.parametrize(
    ("group", "error", "message"),
    [
        (None, TypeError, "is a ConsumerGroupMetadata"),
        ("readers", TypeError, "is a ConsumerGroupMetadata"),
        (ConsumerGroupMetadata(None), TypeError, "group_id"),
        (ConsumerGroupMetadata(b"readers"), TypeError, "group_id"),
        (ConsumerGroupMetadata("\ud800"), ValueError, "UTF-8"),
        (ConsumerGroupMetadata("readers", "1"), TypeError, "generation_id"),
        (ConsumerGroupMetadata("readers", True), TypeError, "generation_id"),
        (ConsumerGroupMetadata("readers", 2**31, "m"), ValueError, "32 bits"),
        (ConsumerGroupMetadata("readers", 1), ValueError, "no member_id"),
        (ConsumerGroupMetadata("readers", 1, None), TypeError, "member_id"),
        (ConsumerGroupMetadata("readers", 1, "m", 7), TypeError, "group_instance_id"),
    ],
)
def test_invalid_groups_are_refused(group, error, message):
    """The error names the field."""
    with pytest.raises(error, match=message):
        check_group(group)


@pytest.mark.parametrize(
    "group",
    [
        ConsumerGroupMetadata("readers"),
        ConsumerGroupMetadata("readers", 0),
        ConsumerGroupMetadata("readers", 2**31 - 1, "m", "i"),
    ],
)
def test_valid_groups_pass(group):
    """A group needs no member, but a generation needs one."""
    assert check_group(group) is None
