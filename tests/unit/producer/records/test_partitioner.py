"""Partitions of records that name none: scenarios of BuiltInPartitionerTest, and plug-ins."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.plugin_reference import PARTITIONERS, PluginReference
from spark_kafka_sink.errors import ConfigError, InvalidPartitionError
from spark_kafka_sink.producer.records.partitioner import (
    BuiltInPartitioner,
    FunctionPartitioner,
    NodeLatencies,
    Partitioner,
    RoundRobinPartitioner,
    TopicPartitions,
    partition_loads,
    place_rows,
    resolve_partitioner,
)
from spark_kafka_sink.record.columns import NULL_PARTITION
from spark_kafka_sink.record.key_hashes import (
    DEFAULT_KEY_RULE,
    NULL_IS_HASHED,
    KeyHash,
    KeyRule,
)
from tests.support.record.record_columns import columns

NO_NODE = -1


class _CountingRandom(random.Random):
    """A generator that counts up, so that every outcome is equally frequent."""

    def __init__(self) -> None:
        super().__init__(0)
        self._next = -1

    def randrange(self, stop):
        self._next += 1
        return self._next % stop


def chi_square(counts, expected) -> float:
    return sum((counts[key] - wanted) ** 2 / wanted for key, wanted in expected.items())


def draws(partitioner, available, number) -> Counter:
    """Choose repeatedly, starting each time from the previous choice, and count the choices."""
    chosen, current = Counter(), None
    for _ in range(number):
        current = partitioner.next_partition(available, current)
        chosen[current] += 1
    return chosen


# --- the built-in partitioner


def test_no_partition_is_chosen_twice_in_a_row():
    """Without load statistics no partition is chosen twice in a row unless it is the only one."""
    partitioner = BuiltInPartitioner(random.Random(1))
    current = partitioner.next_partition(range(3), None)
    for _ in range(100):
        chosen = partitioner.next_partition(range(3), current)
        assert chosen != current
        current = chosen
    assert {0} == set(draws(partitioner, [0], 10))


def test_partitions_without_a_leader_are_not_chosen():
    """Only available partitions are chosen, as in unavailablePartitionsTest."""
    partitioner = BuiltInPartitioner(random.Random(1))
    assert {0, 2} == set(draws(partitioner, [0, 2], 100))
    assert {1} == set(draws(partitioner, [1], 100))


def test_the_first_partition_is_random():
    """Producers do not all start with the same partition."""
    firsts = {
        BuiltInPartitioner(random.Random(s)).next_partition(range(9), None) for s in range(99)
    }
    assert set(range(9)) == firsts


def test_the_choice_is_uniform():
    """The frequencies of many choices are within the 99.9 % bound of chi-square."""
    partitioner = BuiltInPartitioner(random.Random(794))
    counts = draws(partitioner, range(10), 20_000)
    assert chi_square(counts, dict.fromkeys(range(10), 2_000)) < 27.88


def test_weights_are_reciprocal_to_queues():
    """Over whole cycles the frequencies equal the weights, as in adaptivePartitionsTest."""
    partitioner = BuiltInPartitioner(_CountingRandom())
    queue_sizes = [5, 0, 3, 0, 1]
    partitioner.update_load_stats(queue_sizes, range(5), 5)
    weights = [6 - size for size in queue_sizes]
    counts = draws(partitioner, range(5), 2 * sum(weights))
    assert [2 * weight for weight in weights] == [counts[p] for p in range(5)]


def test_weights_also_apply_to_the_current_partition():
    """The idle one of two partitions is preferred even if it was the previous choice."""
    partitioner = BuiltInPartitioner(random.Random(7))
    partitioner.update_load_stats([8, 0], [3, 5], 2)
    counts = draws(partitioner, [3, 5], 10_000)
    assert chi_square(counts, {3: 1_000, 5: 9_000}) < 10.83


@given(st.lists(st.integers(0, 50), min_size=2, max_size=20), st.randoms(use_true_random=False))
def test_every_partition_can_be_chosen_whatever_the_queues(queue_sizes, rng):
    """Weights are at least 1, and only the given partitions are chosen."""
    ids = [7 * place for place in range(len(queue_sizes))]
    partitioner = BuiltInPartitioner(_CountingRandom())
    # If one partition is left out, weights apply even if all queues are equal.
    partitioner.update_load_stats(queue_sizes, ids, len(ids) + 1)
    total = sum(max(queue_sizes) + 1 - size for size in queue_sizes)
    assert set(ids) == set(draws(partitioner, ids, total))
    assert BuiltInPartitioner(rng).next_partition(ids, None) in ids


@pytest.mark.parametrize(
    ("queue_sizes", "ids", "partition_count"),
    [([4, 4, 4], [0, 1, 2], 3), ([], [], 3), ([9], [0], 1)],
    ids=["all equal", "all left out", "one partition"],
)
def test_equal_weights_are_not_used(queue_sizes, ids, partition_count):
    """If the weights are equal or empty, the choice is uniform and never repeats itself."""
    partitioner = BuiltInPartitioner(random.Random(1))
    partitioner.update_load_stats([9, 0, 0], [0, 1, 2], 3)
    partitioner.update_load_stats(queue_sizes, ids, partition_count)
    current = None
    for _ in range(50):
        chosen = partitioner.next_partition(range(3), current)
        assert chosen != current
        current = chosen


def test_equal_queues_matter_if_a_partition_is_left_out():
    """A partition that is left out is not chosen, although it has a leader."""
    partitioner = BuiltInPartitioner(random.Random(1))
    partitioner.update_load_stats([1, 1], [0, 2], 3)
    assert {0, 2} == set(draws(partitioner, range(3), 100))
    partitioner.update_load_stats([1], [2], 3)
    assert {2} == set(draws(partitioner, range(3), 100))


def test_queues_that_are_equal_again_leave_no_weights():
    """If all queues are equal again, all partitions are chosen again."""
    partitioner = BuiltInPartitioner(random.Random(1))
    partitioner.update_load_stats([1], [2], 3)
    partitioner.update_load_stats([1, 1, 1], [0, 1, 2], 3)
    assert {0, 1, 2} == set(draws(partitioner, range(3), 100))


def test_stale_statistics_do_not_override_the_current_leaders():
    """A partition that has lost its leader in the meantime is not chosen."""
    partitioner = BuiltInPartitioner(random.Random(1))
    partitioner.update_load_stats([0, 9], [0, 1], 2)
    assert {1} == set(draws(partitioner, [1], 100))


def test_each_partition_requires_a_queue_size():
    """Lists of different lengths raise an error."""
    with pytest.raises(ValueError, match="2 queues for 3 partitions"):
        BuiltInPartitioner(random.Random(1)).update_load_stats([1, 2], [0, 1, 2], 3)


# --- partitions that are left out


def test_a_node_is_unavailable_if_not_drained_within_the_timeout():
    """A node's latency is the time from its last drain to the last time it had ready batches."""
    latencies = NodeLatencies(5.0)
    assert latencies.is_available(1)
    latencies.update(1, 100.0, can_drain=False)
    latencies.update(1, 105.0, can_drain=False)
    assert latencies.is_available(1)
    latencies.update(1, 105.1, can_drain=False)
    assert not latencies.is_available(1)
    assert latencies.is_available(2)
    latencies.update(1, 106.0, can_drain=True)
    assert latencies.is_available(1)


def test_idle_time_does_not_count_as_latency():
    """Idle time does not count as latency."""
    latencies = NodeLatencies(5.0)
    latencies.update(1, 100.0, can_drain=True)
    latencies.update(1, 900.0, can_drain=True)
    assert latencies.is_available(1)


def test_without_a_timeout_every_node_is_available():
    """partitioner.availability.timeout.ms=0 leaves no partition out."""
    latencies = NodeLatencies(0.0)
    latencies.update(1, 0.0, can_drain=False)
    latencies.update(1, 1e9, can_drain=False)
    assert latencies.is_available(1)


def test_load_statistics_leave_out_unavailable_partitions():
    """Partitions without a leader and queued partitions of an unavailable node are left out."""
    latencies = NodeLatencies(1.0)
    latencies.update(7, 0.0, can_drain=True)
    latencies.update(7, 2.0, can_drain=False)
    loads = partition_loads([7, 8, NO_NODE, 7, 8], {0: 3, 1: 2, 2: 1, 3: 0}, latencies)
    assert ([2, 0, 0], [1, 3, 4], 5) == loads


def test_partitions_with_empty_queues_stay_available():
    """Partitions with empty queues are kept, so that a batch can show that their node is back."""
    latencies = NodeLatencies(1.0)
    latencies.update(7, 0.0, can_drain=True)
    latencies.update(7, 2.0, can_drain=False)
    assert [0, 1] == partition_loads([7, 8], {}, latencies).partition_ids
    assert [1] == partition_loads([7, 8], {0: 1}, latencies).partition_ids


# --- plug-ins


def topics(*names: str, count: int = 4, available=None) -> list[TopicPartitions]:
    return [
        TopicPartitions(n, count, range(count) if available is None else available) for n in names
    ]


def test_round_robin_uses_partitions_in_turn():
    """Keys are ignored, the next call continues, and every topic has its own turns."""
    partitioner = RoundRobinPartitioner()
    first = place_rows(partitioner, columns([b"v"] * 3, keys=[b"k"] * 3), topics("t"))
    assert [0, 1, 2] == first.partition.tolist()
    mixed = columns([b"v"] * 4, topics=["u", "t", "u", "t"])
    assert [0, 3, 1, 0] == place_rows(partitioner, mixed, topics("u", "t")).partition.tolist()


def test_round_robin_skips_partitions_without_a_leader():
    """Partitions without a leader are used only if no partition has one."""
    made = columns([b"v"] * 3)
    served = place_rows(RoundRobinPartitioner(), made, topics("t", available=[1, 3]))
    assert [1, 3, 1] == served.partition.tolist()
    served = place_rows(RoundRobinPartitioner(), made, topics("t", count=2, available=[]))
    assert [0, 1, 0] == served.partition.tolist()


def test_round_robin_wraps_like_a_java_int():
    """The sign of the counter is masked, so that 0 follows 2**31 - 1."""
    partitioner = RoundRobinPartitioner()
    partitioner._counters["t"] = 2**31 - 2
    served = place_rows(partitioner, columns([b"v"] * 4), topics("t", count=100))
    assert [(2**31 - 2) % 100, (2**31 - 1) % 100, 0, 1] == served.partition.tolist()
    served = place_rows(partitioner, columns([b"v"]), topics("t", count=100))
    assert [2] == served.partition.tolist()


def test_a_function_sees_each_record():
    """The function gets the topic, key, value, partition count and partitions with a leader."""
    seen = []

    def choose(*arguments):
        seen.append(arguments)
        return len(seen)

    made = columns(
        [b"a", None, b"c", b""],
        keys=[None, b"k", b"", b"l"],
        topics=["t", "u", "t", "t"],
        partitions=[None, None, 0, None],
    )
    placed = place_rows(FunctionPartitioner(choose), made, topics("t", "u"))
    assert [
        ("t", None, b"a", 4, range(4)),
        ("t", b"l", b"", 4, range(4)),
        ("u", b"k", None, 4, range(4)),
    ] == seen
    assert [1, 3, 0, 2] == placed.partition.tolist()


def test_columns_without_nulls_have_no_bitmap():
    """A column without a validity bitmap has no nulls."""
    made = columns([b"v"], keys=[b"k"])
    made = type(made)(
        num_rows=1,
        key=made.key._replace(validity=np.zeros(0, np.uint8)),
        value=made.value,
        topics=made.topics,
        topic_index=made.topic_index,
        partition=made.partition,
        timestamp=made.timestamp,
    )
    choose = FunctionPartitioner(lambda topic, key, value, count, available: key[0] % count)
    assert [ord("k") % 4] == place_rows(choose, made, topics("t")).partition.tolist()


def test_rows_with_a_partition_are_not_passed_to_the_partitioner():
    """If no row needs a partition, the columns are returned as they are, even with a null topic."""
    made = columns([b"v"] * 2, partitions=[3, None], topics=["t", None])
    assert made is place_rows(_Returning([]), made, topics("t"))
    assert [3, NULL_PARTITION] == made.partition.tolist()


def test_the_given_columns_are_not_modified():
    """Columns are shared, so the chosen partitions are set in a copy."""
    made = columns([b"v"] * 2)
    place_rows(RoundRobinPartitioner(), made, topics("t"))
    assert [NULL_PARTITION] * 2 == made.partition.tolist()


class _Returning:
    """A partitioner that returns a given answer, or raises it."""

    def __init__(self, answer: object = 0) -> None:
        self.answer = answer

    def partition_rows(self, topic, columns, rows):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class _ByLengthOfKey:
    """A partitioner of whole columns that uses the lengths of the keys."""

    def partition_rows(self, topic, columns, rows):
        key = columns.key
        keys = pa.Array.from_buffers(
            pa.large_binary(),
            columns.num_rows,
            [None, pa.py_buffer(key.offsets), pa.py_buffer(key.data)],
        )
        lengths = pc.binary_length(keys).to_numpy()
        return (lengths[rows] % topic.partition_count).astype(np.int32)


def test_a_plug_in_can_partition_whole_columns():
    """A plug-in can view the keys as an Arrow array without a copy and return one array."""
    keys = [b"a", b"bb", b"ccc", b"", b"ddddd"]
    made = columns([b"v"] * 5, keys=keys, partitions=[None, None, 1, None, None])
    placed = place_rows(resolve_partitioner(reference(_ByLengthOfKey)), made, topics("t"))
    assert [1, 2, 1, 0, 1] == placed.partition.tolist()


@pytest.mark.parametrize("answer", [[0, 4], [0, -1], np.array([1, 2**40])])
def test_a_partition_that_does_not_exist_is_rejected(answer):
    """The error names the record, the partition and the partitioner."""
    made = columns([b"v"] * 3, partitions=[0, None, None])
    with pytest.raises(
        InvalidPartitionError, match=r"_Returning chose this partition, .* has 4"
    ) as raised:
        place_rows(_Returning(answer), made, topics("t"), first_row=10)
    assert (12, "t", int(answer[1])) == (
        raised.value.row,
        raised.value.topic,
        raised.value.partition,
    )


def test_the_error_for_an_invalid_partition_names_the_function():
    """The error names the function, so that users can tell which partitioner to correct."""
    choose = FunctionPartitioner(lambda *_: 4)
    with pytest.raises(InvalidPartitionError, match="lambda> chose this"):
        place_rows(choose, columns([b"v"]), topics("t"))


@pytest.mark.parametrize("answer", [[0], [0.0, 1.0], [[0, 1]], None, ["0", "1"], [True, False]])
def test_a_result_of_the_wrong_shape_is_rejected(answer):
    """The result must have one integer for every row."""
    with pytest.raises(InvalidPartitionError, match="_Returning failed: it returned"):
        place_rows(_Returning(answer), columns([b"v"] * 2), topics("t"))


def test_a_partitioner_that_raises_fails_only_its_records():
    """The exception is the cause of a RecordError, so the producer continues."""
    cause = RuntimeError("no idea")
    with pytest.raises(InvalidPartitionError, match="RuntimeError: no idea") as raised:
        place_rows(_Returning(cause), columns([b"v"]), topics("t"), first_row=5)
    assert (5, cause) == (raised.value.row, raised.value.__cause__)


@pytest.mark.parametrize("bad", [None, "0", 0.0, 2**31])
def test_a_function_that_returns_no_number_is_rejected(bad):
    """The error names the record and the function."""
    answers = iter([0, bad])
    choose = FunctionPartitioner(lambda *_: next(answers))
    with pytest.raises(InvalidPartitionError, match="lambda> failed with") as raised:
        place_rows(choose, columns([b"v"] * 2), topics("t"), first_row=101)
    assert (102, "t") == (raised.value.row, raised.value.topic)
    assert raised.value.__cause__ is not None


# --- from the configuration


def reference(value: object) -> PluginReference:
    return PARTITIONERS.read(value)


@pytest.mark.parametrize("name", PARTITIONERS.names)
def test_every_built_in_name_is_known(name):
    """Every name that the configuration accepts resolves to a partitioner."""
    made = resolve_partitioner(reference(name))
    assert isinstance(made, KeyRule | Partitioner)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("default", DEFAULT_KEY_RULE),
        ("murmur2_random", DEFAULT_KEY_RULE),
        ("crc32", KeyRule(KeyHash.CRC32, 1)),
        ("consistent_random", KeyRule(KeyHash.CRC32, 1)),
        ("fnv1a", KeyRule(KeyHash.FNV1A, 0)),
        ("fnv1a_random", KeyRule(KeyHash.FNV1A, 0)),
        ("murmur2_consistent", KeyRule(KeyHash.MURMUR2, NULL_IS_HASHED)),
        ("consistent", KeyRule(KeyHash.CRC32, NULL_IS_HASHED)),
        ("fnv1a_consistent", KeyRule(KeyHash.FNV1A, NULL_IS_HASHED)),
        ("org.apache.kafka.clients.producer.internals.DefaultPartitioner", DEFAULT_KEY_RULE),
    ],
)
def test_names_of_hashes_resolve_to_rules(name, rule):
    """Built-in hashes resolve to rules, which the kernel applies without calling Python."""
    assert rule == resolve_partitioner(reference(name))


def test_each_producer_has_its_own_round_robin():
    """Every producer has its own turns."""
    name = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
    made = [resolve_partitioner(reference(name)) for _ in range(2)]
    assert [RoundRobinPartitioner] * 2 == [type(each) for each in made]
    assert made[0] is not made[1]


def test_no_reference_is_the_default():
    """A producer without partitioner.class places records as Java's does."""
    assert DEFAULT_KEY_RULE == resolve_partitioner(None)


def test_a_plug_in_can_be_an_object_a_class_or_a_function():
    """Objects with partition_rows are used directly, classes instantiated, callables wrapped."""
    plug_in = _Returning([0])
    assert plug_in is resolve_partitioner(reference(plug_in))
    assert isinstance(resolve_partitioner(reference(_Returning)), _Returning)
    made = resolve_partitioner(reference(lambda *_: 3))
    assert [3] == place_rows(made, columns([b"v"]), topics("t")).partition.tolist()


def test_plug_ins_can_be_imported():
    """A plug-in is named as `package.module:attribute`."""
    path = "spark_kafka_sink.producer.records.partitioner:RoundRobinPartitioner"
    assert isinstance(resolve_partitioner(reference(path)), RoundRobinPartitioner)


def test_an_object_that_is_not_a_partitioner_is_rejected():
    """The error says what a partitioner needs."""
    with pytest.raises(
        ConfigError, match=r"partitioner\.class: .*object is not a partitioner: pass a"
    ):
        resolve_partitioner(PluginReference(target=object()))


def test_a_class_that_cannot_be_instantiated_is_rejected():
    """The error names the setting and the class, and has the exception as its cause."""

    class WithArguments:
        def __init__(self, needed) -> None:
            self.needed = needed

    with pytest.raises(
        ConfigError, match=r"partitioner\.class: .*WithArguments could not be created"
    ) as raised:
        resolve_partitioner(reference(WithArguments))
    assert isinstance(raised.value.__cause__, TypeError)
