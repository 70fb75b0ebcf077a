"""Hash codes and orders of Java; the expected values are those that Java prints."""

from __future__ import annotations

import pytest

from spark_kafka_sink.consumer.assignors.java_order import (
    HashOrderedPartitions,
    hash_ordered,
    partition_hash,
    text_hash,
    text_order,
)
from spark_kafka_sink.model import TopicPartition


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", 2**31),
        ("größe", 98762257),
        ("\U0001f5dd", 1772864),
    ],
)
def test_strings_have_the_hash_codes_of_java(text, expected):
    """The hash code of a string is that of its UTF-16 code units."""
    assert expected == text_hash(text)


def test_partitions_have_the_hash_codes_of_java():
    """The hash code of a partition is made of its number and its topic."""
    assert 31 * (31 + 3) + 97 == partition_hash(TopicPartition("a", 3))


def test_strings_are_compared_by_code_units():
    """A character outside the basic plane comes before the last ones in it, as in Java."""
    assert ["\ud7ff", "\U0001f5dd", "\ue000"] == sorted(
        ["\ue000", "\ud7ff", "\U0001f5dd"], key=text_order
    )


def test_a_table_iterates_by_bucket():
    """Keys come in the order of their buckets, those of one bucket in the order of insertion."""
    # "Aa" and "BB" have the same hash code.
    assert ["a", "b", "c"] == hash_ordered(["c", "a", "b", "a"])
    assert ["BB", "Aa"] == hash_ordered(["BB", "Aa"])
    assert ["Aa", "BB"] == hash_ordered(["Aa", "BB"])


@pytest.mark.parametrize(("count", "expected"), [(12, "p"), (13, "a")])
def test_a_table_grows_beyond_three_quarters(count, expected):
    """The thirteenth key doubles the sixteen buckets, which changes the order."""
    # "p" is in bucket 0 of 16, and in bucket 16 of 32.
    texts = [chr(ord("a") + index) for index in range(count - 1)] + ["p"]
    assert expected == hash_ordered(texts)[0]


def test_a_set_of_partitions_never_shrinks():
    """The first partition follows from the largest size that the set has had."""
    partitions = HashOrderedPartitions()
    for number in range(13):
        partitions.add(TopicPartition("a", number))
    large = partitions.first()
    for number in range(13):
        if number not in {large.partition, 4}:
            partitions.remove(TopicPartition("a", number))
    fresh = HashOrderedPartitions()
    for number in sorted({large.partition, 4}):
        fresh.add(TopicPartition("a", number))
    assert 2 == len(partitions) == len(fresh)
    assert large == partitions.first()
