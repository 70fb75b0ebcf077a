from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.record.arrow.record_columns import record_columns
from spark_kafka_sink.record.kernel import key_sample
from spark_kafka_sink.record.kernel.kernel import assign_slots
from spark_kafka_sink.record.kernel.kernel_hashes import murmur2
from spark_kafka_sink.record.kernel.key_sample import MOST_KEYS, KeySample
from spark_kafka_sink.record.key_hashes import KEY_RULES


def sample_of(keys, topics="t", partitions=None, size=1000, **options):
    """Return the hashes of a sample of rows that arrive in batches of a size."""
    sample = KeySample()
    for first in range(0, len(keys), size):
        part = slice(first, first + size)
        columns = {
            "key": pa.array(keys[part], pa.binary()),
            "value": pa.array([b"v"] * len(keys[part])),
        }
        if not isinstance(topics, str):
            columns["topic"] = pa.array(topics[part], pa.string())
        if partitions is not None:
            columns["partition"] = pa.array(partitions[part], pa.int32())
        topic = topics if isinstance(topics, str) else None
        assign(record_columns(pa.record_batch(columns), topic=topic), sample, **options)
    return sample.hashes()


def assign(columns, sample, **options):
    first_slots = np.arange(len(columns.topics), dtype=np.int32)
    counts = np.full(len(columns.topics), 5, np.int32)
    return assign_slots(columns, first_slots, counts, key_sample=sample, **options)


def numbered(count, first=0):
    return [b"key-%d" % number for number in range(first, first + count)]


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=100))
def test_few_keys_are_all_sampled(keys):
    """Each counts once, unless those with the same number in Kafka's hash are taken for one."""
    assert len({murmur2(key) & 0x7FFFFFFF for key in keys}) == len(sample_of(keys))


@pytest.mark.parametrize("length", range(1, 20))
def test_each_byte_of_a_key_counts(length):
    """Keys that differ in one byte are different keys."""
    keys = [b"k" * length]
    keys += [b"k" * place + b"\xf1" + b"k" * (length - place - 1) for place in range(length)]
    keys += [b"k" * (length + 1)]
    assert len(keys) == len(sample_of(keys))


def test_the_sample_of_many_keys_is_small():
    """It has at least half of the most, however many there are, and in order."""
    for count in (200, 3000, 50_000):
        hashes = sample_of(numbered(count))
        assert MOST_KEYS / 4 < len(hashes) <= MOST_KEYS
        assert sorted(set(hashes)) == list(hashes)


def test_the_sample_does_not_depend_on_the_order_of_the_rows_or_on_batches():
    """Only the set of keys counts: so samples can be compared."""
    keys = numbered(5000)
    first = sample_of(keys)
    assert first == sample_of(keys[::-1], size=77)
    assert first == sample_of(keys + keys)


def test_samples_have_the_lowest_hashes_of_the_keys_in_common():
    """A sample of more keys has fewer of those that both have, and the other one has these too."""
    shared = numbered(3000)
    one = sample_of(shared + numbered(3000, 10_000))
    other = sample_of(shared + numbered(40_000, 100_000))
    common = set(one) & set(other)
    assert common == set(other) & set(sample_of(shared))
    assert 0 < len(common)


def test_samples_of_different_keys_have_nothing_in_common():
    """There is no false alarm: 40 samples of keys that no two of them share."""
    samples = [sample_of(numbered(2000, 2000 * task)) for task in range(40)]
    hashes = [each for sample in samples for each in sample]
    assert len(set(hashes)) == len(hashes)


def test_rows_without_a_key_are_not_sampled():
    """A null or empty key is none."""
    assert () == sample_of([None, b"", None])
    assert sample_of([b"a"]) == sample_of([None, b"a", b""])


def test_slices_of_a_batch_are_sampled_as_its_rows():
    """Arrow's offsets into buffers, also of nulls, are followed."""
    keys = [None, *numbered(20), None, b"", *numbered(20, 100)]
    batch = pa.record_batch({"key": pa.array(keys, pa.binary()), "value": [b"v"] * len(keys)})
    sample = KeySample()
    assign(record_columns(batch.slice(11, 17), topic="t"), sample)
    assert sample_of(keys[11:28]) == sample.hashes()


def test_a_key_in_two_topics_is_two_keys():
    """The order of records is defined within a topic only."""
    assert 2 == len(sample_of([b"a", b"a"], ["t", "u"]))
    assert sample_of([b"a"], "t") == sample_of([b"a"], ["t"])


def test_keys_that_choose_no_partition_are_not_sampled():
    """A row may name its partition, and keys may be ignored."""
    assert sample_of([b"b"]) == sample_of([b"a", b"b"], partitions=[0, None])
    assert () == sample_of([b"a"], ignore_keys=True)


@pytest.mark.parametrize("rule", KEY_RULES.values(), ids=KEY_RULES)
def test_each_rule_for_keys_samples_the_same_way(rule):
    """Large samples are as large, and those of two tasks are comparable."""
    samples = [set(sample_of(numbered(4000, first), key_rule=rule)) for first in (0, 2000, 4000)]
    assert [True] * 3 == [MOST_KEYS / 4 < len(sample) <= MOST_KEYS for sample in samples]
    assert [True, True, False] == [
        bool(one & other) for one, other in itertools.pairwise((*samples, samples[0]))
    ]


def test_a_sample_does_not_change_where_rows_go():
    """The partitions are those without it, and nothing is written to what stands for none."""
    columns = record_columns(
        pa.record_batch({"key": numbered(3000), "value": [b"v"] * 3000}), topic="t"
    )
    with_sample = assign(columns, KeySample()).row_slots.tolist()
    assert assign(columns, None).row_slots.tolist() == with_sample
    assert [0] == key_sample.NO_SAMPLE.tolist()
