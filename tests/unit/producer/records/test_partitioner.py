"""Partitions of records that name none: scenarios of BuiltInPartitionerTest, and plug-ins."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

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
    Turn,
    partition_loads,
    place_rows,
    resolve_partitioner,
    turn_bytes,
)
from spark_kafka_sink.record.columns import NULL_PARTITION
from spark_kafka_sink.record.key_hashes import (
    DEFAULT_KEY_RULE,
    NULL_IS_HASHED,
    KeyHash,
    KeyRule,
)
from tests.support.record.record_columns import columns

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_NODE = -1


def turns(
    partitioner: BuiltInPartitioner,
    available: Sequence[int],
    number: int,
    *,
    batch_size: int = 1_000,
    largest_batch: int = 1_000,
) -> list[Turn]:
    """Take this many turns, each of which uses its limit."""
    taken: list[Turn] = []
    current, used = None, 0
    for _ in range(number):
        turn = partitioner.next_turn(
            available,
            current,
            used=used,
            largest_batch=lambda: largest_batch,
            batch_size=batch_size,
        )
        current, used = turn
        taken.append(turn)
    return taken


def visited(partitioner: BuiltInPartitioner, available: Sequence[int], number: int) -> list[int]:
    return [turn.partition for turn in turns(partitioner, available, number)]


def weighted(
    queue_sizes: list[int], ids: Sequence[int], count: int, seed: int = 1
) -> BuiltInPartitioner:
    partitioner = BuiltInPartitioner(random.Random(seed))
    partitioner.update_load_stats(queue_sizes, ids, count)
    return partitioner


# --- the built-in partitioner: the length of a turn


@pytest.mark.parametrize(
    ("written", "largest_batch", "batch_size", "expected"),
    [
        (0, 0, 1_000_000, 16_384),
        (1_048_576, 1_000_000, 1_000_000, 16_384),
        (10_000_000, 1_000_000, 1_000_000, 156_250),
        (10_000_000, 30_000, 1_000_000, 60_000),
        (10_000_000, 100, 1_000_000, 16_384),
        (10**12, 10**7, 1_000_000, 1_000_000),
        (10**12, 10**7, 500, 500),
        (0, 0, 1, 1),
    ],
    ids=[
        "first",
        "small total",
        "grown",
        "lingering batches",
        "tiny batches",
        "full",
        "small batch.size",
        "no batching",
    ],
)
def test_turns_grow_with_what_was_written(written, largest_batch, batch_size, expected):
    """A turn grows from 16 KiB to batch.size, but not far beyond the batches that result."""
    assert expected == turn_bytes(written, largest_batch, batch_size)


@given(
    partitions=st.integers(1, 60),
    batches=st.floats(0, 400),
    record=st.integers(1, 2_000),
    batch_size=st.sampled_from([1_000_000, 16_384, 500]),
    seed=st.integers(0, 99),
)
def test_partitions_differ_by_one_turn_at_most(partitions, batches, record, batch_size, seed):
    """Wherever the records end, partitions differ by one turn: by 16 KiB, or a 64th of all."""
    partitioner = BuiltInPartitioner(random.Random(seed))
    received = [0] * partitions
    current, used, longest = None, 0, 0
    left = total = int(batches * batch_size)
    while left > 0:
        current, limit = partitioner.next_turn(
            range(partitions),
            current,
            used=used,
            largest_batch=lambda: batch_size,
            batch_size=batch_size,
        )
        longest = max(longest, limit)
        # A turn ends with the record that reaches the limit.
        used = min(-(-limit // record) * record, left)
        received[current] += used
        left -= used
    assert total == sum(received)
    assert longest <= min(max(16_384, total // 64), batch_size)
    assert max(received) - min(received) <= longest + record


@given(
    st.integers(1, 30),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
    st.sampled_from([1_000, 1_000_000]),
)
def test_a_round_visits_every_partition_once(partitions, rounds, rng, batch_size):
    """All partitions get a turn of the same length before one of them gets the next."""
    partitioner = BuiltInPartitioner(rng)
    taken = turns(partitioner, range(partitions), partitions * rounds, batch_size=batch_size)
    for start in range(0, len(taken), partitions):
        of_round = taken[start : start + partitions]
        assert list(range(partitions)) == sorted(turn.partition for turn in of_round)
        assert 1 == len({turn.limit for turn in of_round})


def test_rounds_have_different_orders():
    """The order is random, so that several producers do not burden the same broker in turn."""
    taken = visited(BuiltInPartitioner(random.Random(1)), range(5), 500)
    assert len({tuple(taken[start : start + 5]) for start in range(0, 500, 5)}) > 50


def test_a_lowered_batch_size_applies_within_a_round():
    """After a broker refused a batch as too large, no turn is longer than the smaller batches."""
    partitioner = BuiltInPartitioner(random.Random(1))
    first, second = (
        partitioner.next_turn(
            range(3), None, used=0, largest_batch=lambda: 0, batch_size=batch_size
        )
        for batch_size in (10_000, 600)
    )
    assert (10_000, 600) == (first.limit, second.limit)


def test_a_restart_shortens_the_turns_of_the_current_round():
    """After a restart turns are short at once, and the round goes on."""
    partitioner = BuiltInPartitioner(random.Random(1))
    taken = turns(partitioner, range(3), 301, batch_size=10**6, largest_batch=10**6)
    assert taken[-1].limit > 100_000
    partitioner.restart()
    later = turns(partitioner, range(3), 5, batch_size=10**6, largest_batch=10**6)
    assert [16_384] * 5 == [turn.limit for turn in later]
    assert {0, 1, 2} == {taken[-1].partition, later[0].partition, later[1].partition}


# --- the built-in partitioner: the choice


def test_no_partition_is_chosen_twice_in_a_row():
    """No partition is chosen twice in a row unless it is the only one."""
    taken = visited(BuiltInPartitioner(random.Random(1)), range(3), 100)
    assert all(before != after for before, after in pairwise(taken))
    assert {0} == set(visited(BuiltInPartitioner(random.Random(1)), [0], 10))


def test_partitions_without_a_leader_are_not_chosen():
    """Only available partitions are chosen, also in the middle of a round."""
    partitioner = BuiltInPartitioner(random.Random(1))
    assert {0, 2} == set(visited(partitioner, [0, 2], 99))
    assert {1} == set(visited(partitioner, [1], 100))
    assert {0, 1, 2} == set(visited(partitioner, range(3), 4))


def test_the_first_partition_is_random():
    """Producers do not all start with the same partition."""
    firsts = {visited(BuiltInPartitioner(random.Random(s)), range(9), 1)[0] for s in range(99)}
    assert set(range(9)) == firsts


def test_weights_are_reciprocal_to_queues():
    """The turns of a round are as long as the weights say, as in adaptivePartitionsTest."""
    queue_sizes = [5, 0, 3, 0, 1]
    partitioner = weighted(queue_sizes, range(5), 5)
    taken = dict(turns(partitioner, range(5), 5, batch_size=6_000))
    assert [1_000 * (6 - size) for size in queue_sizes] == [taken[p] for p in range(5)]


def test_weights_also_apply_if_there_are_only_two_partitions():
    """The idle one of two partitions receives more, although both are visited in turn."""
    taken = turns(weighted([8, 0], [3, 5], 2, seed=7), [3, 5], 10, batch_size=900)
    assert {(3, 100), (5, 900)} == set(taken)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=20), st.integers(1, 10))
def test_every_partition_is_chosen_whatever_the_queues(queue_sizes, batch_size):
    """The longest queue gets a turn as well, and only the given partitions do."""
    ids = [7 * place for place in range(len(queue_sizes))]
    # If one partition is left out, weights apply even if all queues are equal.
    partitioner = weighted(queue_sizes, ids, len(ids) + 1)
    taken = turns(partitioner, ids, len(ids), batch_size=batch_size)
    assert ids == sorted(turn.partition for turn in taken)
    assert all(1 <= turn.limit <= batch_size for turn in taken)


@pytest.mark.parametrize(
    ("queue_sizes", "ids", "partition_count"),
    [([4, 4, 4], [0, 1, 2], 3), ([], [], 3), ([9], [0], 1)],
    ids=["all equal", "all left out", "one partition"],
)
def test_equal_weights_are_not_used(queue_sizes, ids, partition_count):
    """If the weights are equal or empty, all partitions have turns of the same length."""
    partitioner = weighted([9, 0, 0], [0, 1, 2], 3)
    partitioner.update_load_stats(queue_sizes, ids, partition_count)
    taken = turns(partitioner, range(3), 3)
    assert [(0, 1_000), (1, 1_000), (2, 1_000)] == sorted(taken)


def test_equal_queues_matter_if_a_partition_is_left_out():
    """A partition that is left out is not chosen, although it has a leader."""
    partitioner = weighted([1, 1], [0, 2], 3)
    assert {0, 2} == set(visited(partitioner, range(3), 99))
    partitioner.update_load_stats([1], [2], 3)
    assert {2} == set(visited(partitioner, range(3), 100))


def test_queues_that_are_equal_again_leave_no_weights():
    """If all queues are equal again, all partitions are chosen again."""
    partitioner = weighted([1], [2], 3)
    partitioner.update_load_stats([1, 1, 1], [0, 1, 2], 3)
    assert {0, 1, 2} == set(visited(partitioner, range(3), 3))


def test_stale_statistics_do_not_override_the_current_leaders():
    """A partition that has lost its leader in the meantime is not chosen."""
    assert {1} == set(visited(weighted([0, 9], [0, 1], 2), [1], 100))
    assert {2} == set(visited(weighted([0, 9], [0, 1], 2), [2], 100))


def test_each_partition_requires_a_queue_size():
    """Lists of different lengths raise an error."""
    with pytest.raises(ValueError, match="2 queues for 3 partitions"):
        weighted([1, 2], [0, 1, 2], 3)


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
