"""The choice of a partition for records that do not name one.

`resolve_partitioner` returns one of two kinds:

- A `KeyRule`: the kernel places records with a key by its hash. Records without a key go to one
  partition for a *turn* of some bytes, then to another, in rounds that visit every partition once.
  Turns are short at first, so that few records reach all partitions, and grow to a full batch
  (`turn_bytes`). `BuiltInPartitioner` keeps the rounds, and shortens the turns of partitions with
  long queues (KIP-794). No Python code runs per record.
- A `Partitioner`: it is called for every record, with or without a key, and `place_rows` writes its
  results into the columns. Round-robin is one; users may supply others.

Nothing here reads a clock or waits. Nothing is thread-safe except `BuiltInPartitioner`, whose load
statistics may be replaced by another thread.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from spark_kafka_sink.config.plug_ins import PlugIns, check_signature
from spark_kafka_sink.display import counted
from spark_kafka_sink.errors import ConfigError, InvalidPartitionError
from spark_kafka_sink.network.metadata import MetadataSnapshot
from spark_kafka_sink.record.columns import NULL_PARTITION
from spark_kafka_sink.record.key_hashes import DEFAULT_KEY_RULE, KEY_RULES, KeyRule

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from spark_kafka_sink.config.plugin_reference import PluginReference
    from spark_kafka_sink.record.columns import BytesColumn, Int32Array, Int64Array, RecordColumns

    #: Topic, key, value, number of partitions, partitions with a leader -> partition.
    PartitionFunction: TypeAlias = Callable[
        [str, bytes | None, bytes | None, int, Sequence[int]], int
    ]

_MAX_INT32: Final = 0x7FFFFFFF
#: The arguments of partitioner functions, and of methods with Java's signature.
_FUNCTION_PARAMETERS: Final = "(topic, key, value, partition_count, available)"
_JAVA_STYLE_PARAMETERS: Final = "(topic, key, key_bytes, value, value_bytes, cluster)"
#: The first turns are as long as a batch of Java's client: shorter ones would make small batches.
FIRST_TURN_BYTES: Final = 16_384
#: A later turn is this part of all bytes so far. Then a partition of three has at most 3 % more
#: than the mean, one of fifty 75 %, and 64 MB are written before a turn is a full batch of 1 MB.
#: With half as many turns shares differ twice as much, and batches are as large.
TURNS: Final = 64
#: Where batches end early, by linger.ms, longer turns would make no larger ones.
BATCHES_PER_TURN: Final = 2


# --- the built-in partitioner: in rounds, uniform or by load


def turn_bytes(written: int, largest_batch: int, batch_size: int) -> int:
    """Return how many bytes each partition of a round receives before the next one's turn.

    `written` is what all partitions have received so far, `largest_batch` the size of the topic's
    largest batch, open or just closed, and `batch_size` the size of a full one.
    """
    grown = min(written // TURNS, largest_batch * BATCHES_PER_TURN)
    return min(max(grown, FIRST_TURN_BYTES), batch_size)


class Turn(NamedTuple):
    """A partition, and the bytes that it is to receive before the next turn."""

    partition: int
    limit: int


class BuiltInPartitioner:
    """The rounds of one topic's partitions (Kafka's class of the same name chooses at random).

    A round visits every available partition once, in random order and for turns of the same size.
    So whenever the producer stops, no two partitions differ by more than one turn, if records are
    of similar size: the last record of a turn may exceed it. Each producer
    begins with another partition, as otherwise all tasks of a job would begin with the same one.
    """

    def __init__(self, rng: random.Random) -> None:
        """Create the partitioner; `rng` makes its random choices."""
        self._rng = rng
        #: By partition; empty if all are equal.
        self._weights: dict[int, int] = {}
        #: The partitions that the round has yet to visit, the next one last.
        self._remaining: list[int] = []
        self._turn_bytes = FIRST_TURN_BYTES
        self._written = 0

    def next_turn(
        self,
        available: Sequence[int],
        current: int | None,
        *,
        used: int,
        largest_batch: Callable[[], int],
        batch_size: int,
    ) -> Turn:
        """Choose one of `available`: the partitions with a leader, or all if none has one.

        `current` is the partition before, which has received `used` bytes in its turn; None if
        there was none. It is chosen again only if there is no other. The other arguments are those
        of `turn_bytes`; `largest_batch` is called once per round. A partition with more than the
        shortest queue gets a shorter turn.
        """
        self._written += used
        weights = self._weights
        # The statistics may be older than the current metadata.
        served = [p for p in available if p in weights] if weights else available
        served = served or available
        while True:
            if not self._remaining:
                self._remaining = self._shuffled(served, current)
                self._turn_bytes = turn_bytes(self._written, largest_batch(), batch_size)
            partition = self._remaining.pop()
            if partition in served:
                break
        # A topic's batch size is lowered when a broker refuses a batch as too large.
        limit = min(self._turn_bytes, batch_size)
        if partition in weights:
            limit = max(limit * weights[partition] // max(weights.values()), 1)
        return Turn(partition, limit)

    def _shuffled(self, partitions: Sequence[int], current: int | None) -> list[int]:
        order = list(partitions)
        self._rng.shuffle(order)
        if order[-1] == current:
            order[0], order[-1] = order[-1], order[0]
        return order

    def restart(self) -> None:
        """Begin again with short turns, as if nothing had been written."""
        self._written = 0
        self._turn_bytes = FIRST_TURN_BYTES

    def update_load_stats(
        self, queue_sizes: Sequence[int], partition_ids: Sequence[int], partition_count: int
    ) -> None:
        """Weight partitions by their queues: the longest gets 1, and each batch fewer adds 1.

        `partition_ids` are the partitions that may be chosen, `queue_sizes` their numbers of
        batches, including unfinished ones. `partition_count` is the number of the topic's
        partitions, including those without a leader and those excluded by `NodeLatencies`. If all
        queues are equal and no partition is excluded, all turns are equal.
        """
        if len(queue_sizes) != len(partition_ids):
            raise ValueError(f"{len(queue_sizes)} queues for {len(partition_ids)} partitions")
        self._weights = {}
        if not partition_ids:
            return
        longest = max(queue_sizes)
        if len(partition_ids) == partition_count and min(queue_sizes) == longest:
            return
        self._weights = {
            partition: longest + 1 - size
            for partition, size in zip(partition_ids, queue_sizes, strict=True)
        }


class _NodeLatency(NamedTuple):
    #: When the node last had batches to send, in seconds.
    ready_at: float
    #: When batches could last be sent to it, in seconds.
    drained_at: float


class NodeLatencies:
    """The time for which each broker could not be sent the batches that were ready for it.

    They are compared with partitioner.availability.timeout.ms, like Kafka's NodeLatencyStats in its
    accumulator.
    """

    def __init__(self, availability_timeout: float) -> None:
        """Create the table; the timeout is in seconds, and 0 makes every node available."""
        self._availability_timeout = availability_timeout
        self._nodes: dict[int, _NodeLatency] = {}

    def update(self, node_id: int, now: float, *, can_drain: bool) -> None:
        """Record that a node has batches to send, and whether any can be sent now."""
        if self._availability_timeout <= 0:
            return
        known = self._nodes.get(node_id)
        drained_at = now if can_drain or known is None else known.drained_at
        self._nodes[node_id] = _NodeLatency(now, drained_at)

    def is_available(self, node_id: int) -> bool:
        """Return whether batches could be sent to the node within the timeout."""
        known = self._nodes.get(node_id)
        return known is None or known.ready_at - known.drained_at <= self._availability_timeout


def led_partitions(leaders: Sequence[int]) -> list[int]:
    """Return the partitions that have a leader; `leaders` as in `partition_loads`."""
    return [partition for partition, leader in enumerate(leaders) if leader >= 0]


def nearby_partitions(
    partitions: Sequence[int], leaders: Sequence[int], racks: Mapping[int, str], rack: str
) -> Sequence[int]:
    """Return the partitions whose leader is in a rack; all if there are none (KIP-1123).

    `leaders` holds the node id of each partition's leader, `racks` the racks of nodes.
    """
    return [each for each in partitions if racks.get(leaders[each]) == rack] or partitions


class PartitionLoads(NamedTuple):
    """The arguments of `BuiltInPartitioner.update_load_stats`, in order."""

    queue_sizes: list[int]
    partition_ids: list[int]
    partition_count: int


#: Of a topic without batches in its queues.
NO_LOADS: Final = PartitionLoads([], [], 0)


def partition_loads(
    leaders: Sequence[int], queue_sizes: Mapping[int, int], latencies: NodeLatencies
) -> PartitionLoads:
    """Return the partitions of a topic that may be chosen, and their loads.

    `leaders` holds the node id of each partition's leader, negative for none; `queue_sizes` the
    number of batches of each partition that has any. Partitions without a leader are excluded, and
    those with batches for a node that is not available. A partition with an empty queue is included
    whatever its node: nothing is ready for that node any more, so only a new batch can show that it
    is back.
    """
    partition_ids = [
        partition
        for partition in led_partitions(leaders)
        if not queue_sizes.get(partition) or latencies.is_available(leaders[partition])
    ]
    sizes = [queue_sizes.get(partition, 0) for partition in partition_ids]
    return PartitionLoads(sizes, partition_ids, len(leaders))


# --- plug-ins, called for every record


class TopicPartitions(NamedTuple):
    """The state of a topic, as passed to a partitioner.

    `partition_count` is the number of partitions of `topic`.

    >>> TopicPartitions("orders", 3, available=[0, 2]).partition_count
    3
    """

    topic: str
    partition_count: int
    #: The partitions that have a leader now, in ascending order; may be empty.
    available: Sequence[int]
    #: The producer's metadata of the cluster: nodes, topics, leaders.
    cluster: MetadataSnapshot = MetadataSnapshot()


@runtime_checkable
class Partitioner(Protocol):
    """A plug-in that places every record without a partition, whole columns at a time.

    >>> import numpy as np
    >>> class FirstAvailable:
    ...     def partition_rows(self, topic, columns, rows):
    ...         return np.full(len(rows), topic.available[0], np.int32)
    >>> settings = {"bootstrap.servers": "localhost:9092", "partitioner.class": FirstAvailable}
    >>> with KafkaProducer(settings) as producer:
    ...     producer.send("orders", b"a book").result(timeout=30).partition
    0
    """

    @abstractmethod
    def partition_rows(
        self, topic: TopicPartitions, columns: RecordColumns, rows: Int64Array
    ) -> Int32Array:
        """Return an int32 array: the partition of each of `rows`, all of the same topic.

        `rows` are indexes into `columns`, ascending, and not necessarily all of them. `columns.key`
        and `columns.value` have Arrow's layout of large_binary: `pyarrow.Array.from_buffers(
        pyarrow.large_binary(), columns.num_rows, [None, py_buffer(offsets), py_buffer(data)])`
        views one without a copy. A row is null where `validity`, unless that is empty, has a 0 at
        bit `validity_offset + row`. An exception fails these records, and no others.
        """


@runtime_checkable
class JavaLikePartitioner(Protocol):
    """A plug-in that places every record without a partition, with Java's signature.

    `key` and `value` are the arguments of `send`, `key_bytes` and `value_bytes` their serialized
    forms; `cluster` is the producer's metadata of all topics that it uses.

    >>> class ByLength:
    ...     def partition(self, topic, key, key_bytes, value, value_bytes, cluster):
    ...         return len(value) % cluster.partition_count(topic)
    >>> settings = {"bootstrap.servers": "localhost:9092", "partitioner.class": ByLength}
    >>> with KafkaProducer(settings) as producer:
    ...     producer.send("orders", b"a book").result(timeout=30).partition
    0
    """

    @abstractmethod
    def partition(  # noqa: PLR0917  as Java's
        self,
        topic: str,
        key: object,
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,
        cluster: MetadataSnapshot,
    ) -> int:
        """Return the partition of a record; key and value are passed as sent and as serialized."""


class RoundRobinPartitioner:
    """A partitioner that cycles through the partitions with a leader, ignoring keys.

    It behaves like Java's class of the same name: each topic starts with the first partition, and
    if no partition has a leader, all are used. Java calls its partitioner twice for a record that
    begins a batch, and so skips every other partition (KAFKA-9965); here it is called once per
    record.
    """

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}

    def partition_rows(
        self,
        topic: TopicPartitions,
        columns: RecordColumns,  # noqa: ARG002  as the protocol has it
        rows: Int64Array,
    ) -> Int32Array:
        """Return partitions that continue the topic's cycle."""
        counter = self._counters.get(topic.topic, 0)
        # A Java int with its sign bit cleared.
        self._counters[topic.topic] = (counter + rows.size) & _MAX_INT32
        turns = (counter + np.arange(rows.size)) & _MAX_INT32
        served = topic.available if len(topic.available) else range(topic.partition_count)
        choices: Int32Array = np.array(served, np.int32)
        chosen: Int32Array = choices[turns % choices.size]
        return chosen


class FunctionPartitioner:
    """A partitioner that calls a Python function for each record."""

    def __init__(self, function: PartitionFunction) -> None:
        """Call `function(topic, key, value, partition_count, available)`; key and value are bytes.

        `available` lists the partitions that have a leader; the function returns a partition
        number.
        """
        self._function = function

    def __str__(self) -> str:
        return getattr(self._function, "__qualname__", type(self._function).__qualname__)

    def partition(self, topic: TopicPartitions, key: bytes | None, value: bytes | None) -> int:
        """Return the partition of one record, without checking that it exists.

        Raises InvalidPartitionError if the function raises, or does not return a number.
        """
        try:
            chosen = self._function(topic.topic, key, value, topic.partition_count, topic.available)
            # numpy would accept "3" and 3.7 as numbers, too.
            number = index(chosen)
            # Raises OverflowError beyond 32 bits, where numpy 1 would truncate.
            number.to_bytes(4, "big", signed=True)
        except Exception as error:
            raise _failed(str(self), topic.topic, error) from error
        return number

    def partition_rows(
        self, topic: TopicPartitions, columns: RecordColumns, rows: Int64Array
    ) -> Int32Array:
        """Return the partitions of `rows`, calling the function for each.

        Raises InvalidPartitionError if the function raises, or does not return a 32-bit number.
        """
        return _partition_each(self.partition, topic, columns, rows)


class MethodPartitioner:
    """A partitioner that calls an object like Java's client: `partition` with six arguments."""

    def __init__(self, plug_in: JavaLikePartitioner) -> None:
        """Call `plug_in.partition(topic, key, key_bytes, value, value_bytes, cluster)`."""
        self._method = plug_in.partition
        self._name = type(plug_in).__qualname__

    def __str__(self) -> str:
        return self._name

    def partition(  # noqa: PLR0917  as Java's
        self,
        topic: str,
        key: object,
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,
        cluster: MetadataSnapshot,
    ) -> int:
        """Return the partition of one record, without checking that it exists.

        Raises InvalidPartitionError if the object raises, or does not return a number.
        """
        try:
            number = index(self._method(topic, key, key_bytes, value, value_bytes, cluster))
            number.to_bytes(4, "big", signed=True)
        except Exception as error:
            raise _failed(self._name, topic, error) from error
        return number

    def partition_rows(
        self, topic: TopicPartitions, columns: RecordColumns, rows: Int64Array
    ) -> Int32Array:
        """Return the partitions of `rows`, calling the object for each; columns hold only bytes.

        Raises InvalidPartitionError if the object raises, or does not return a 32-bit number.
        """
        return _partition_each(self._partition, topic, columns, rows)

    def _partition(self, topic: TopicPartitions, key: bytes | None, value: bytes | None) -> int:
        return self.partition(topic.topic, key, key, value, value, topic.cluster)


def _failed(name: str, topic: str, error: Exception) -> InvalidPartitionError:
    return InvalidPartitionError(
        f"the partitioner {name} failed with {type(error).__name__}: {error}",
        row=None,
        topic=topic,
        advice="Make it return a partition number for every record",
    )


def _partition_each(
    partition: Callable[[TopicPartitions, bytes | None, bytes | None], int],
    topic: TopicPartitions,
    columns: RecordColumns,
    rows: Int64Array,
) -> Int32Array:
    chosen = np.empty(rows.size, np.int32)
    for number, row in enumerate(rows.tolist()):
        key, value = _bytes_at(columns.key, row), _bytes_at(columns.value, row)
        try:
            chosen[number] = partition(topic, key, value)
        except InvalidPartitionError as error:
            raise error.about_row(row) from error.__cause__
    return chosen


def _bytes_at(column: BytesColumn, row: int) -> bytes | None:
    if column.validity.size:
        bit = column.validity_offset + row
        if not column.validity[bit >> 3] >> (bit & 7) & 1:
            return None
    start, end = column.offsets[row : row + 2].tolist()
    return column.data[start:end].tobytes()


def place_rows(
    partitioner: Partitioner,
    columns: RecordColumns,
    topics: Sequence[TopicPartitions],
    *,
    first_row: int = 0,
) -> RecordColumns:
    """Set the partition of every row that has a topic but no partition.

    `topics` has an entry for each of `columns.topics`; `first_row` is the number of the first row,
    for errors. Raises InvalidPartitionError when the partitioner fails, or returns a partition that
    the topic does not have; no row is placed then.
    """
    unplaced = np.flatnonzero(
        (columns.partition == NULL_PARTITION) & (columns.topic_index >= 0)
    ).astype(np.int64)
    if not unplaced.size:
        return columns
    partition = columns.partition.copy()
    topic_of_row = columns.topic_index[unplaced]
    in_order = np.argsort(topic_of_row, kind="stable")
    ends = np.cumsum(np.bincount(topic_of_row, minlength=len(topics)))
    for topic, rows in zip(topics, np.split(unplaced[in_order], ends[:-1]), strict=True):
        if rows.size:
            partition[rows] = _chosen(partitioner, topic, columns, rows, first_row)
    return replace(columns, partition=partition)


def _chosen(
    partitioner: Partitioner,
    topic: TopicPartitions,
    columns: RecordColumns,
    rows: Int64Array,
    first_row: int,
) -> Int32Array:
    """Call the partitioner and validate its result."""
    try:
        chosen = np.asarray(partitioner.partition_rows(topic, columns, rows))
    except InvalidPartitionError as error:
        # A partitioner counts rows from the start of its columns.
        raise error.about_row(first_row + (error.row or 0)) from error.__cause__
    except Exception as error:
        raise _refused(
            partitioner, topic, first_row + int(rows[0]), f"{type(error).__name__}: {error}"
        ) from error
    if chosen.shape != rows.shape or chosen.dtype.kind not in "iu":
        raise _refused(
            partitioner,
            topic,
            first_row + int(rows[0]),
            f"it returned {chosen.dtype}{list(chosen.shape)} for {rows.size} rows",
        )
    invalid = np.flatnonzero((chosen < 0) | (chosen >= topic.partition_count))
    if invalid.size:
        row = int(invalid[0])
        raise InvalidPartitionError(
            f"the partitioner {_name(partitioner)} chose this partition, but the topic "
            f"has {counted(topic.partition_count, 'partition')}, numbered from 0",
            row=first_row + int(rows[row]),
            topic=topic.topic,
            partition=int(chosen[row]),
            advice="Correct the partitioner",
        )
    return chosen.astype(np.int32, copy=False)


def _refused(
    partitioner: Partitioner, topic: TopicPartitions, row: int, problem: str
) -> InvalidPartitionError:
    return InvalidPartitionError(
        f"the partitioner {_name(partitioner)} failed: {problem}",
        row=row,
        topic=topic.topic,
        advice="Make it return an int32 array with a partition number for every row",
    )


def _name(partitioner: Partitioner) -> str:
    if isinstance(partitioner, FunctionPartitioner | MethodPartitioner):
        return str(partitioner)
    return type(partitioner).__qualname__


def resolve_partitioner(
    reference: PluginReference | None, plug_ins: PlugIns | None = None
) -> KeyRule | Partitioner:
    """Create the partitioner that `partitioner.class` names; None is the default.

    A plug-in is a class (called without arguments) or an object with `partition_rows`, or a
    function as `FunctionPartitioner` calls it, or an object with Java's `partition`, tried in this
    order. Raises ConfigError for anything else, and for one with other parameters.
    """
    if reference is None or reference.built_in == "default":
        return DEFAULT_KEY_RULE
    if reference.built_in == "round_robin":
        return RoundRobinPartitioner()
    if reference.built_in is not None:
        return KEY_RULES[reference.built_in]
    target = (plug_ins or PlugIns()).load(reference, "partitioner.class")
    setting = "partitioner.class"
    if isinstance(target, Partitioner):
        name = f"{setting}: partition_rows of {reference}"
        check_signature(target.partition_rows, "(topic, columns, rows)", name)
        return target
    if callable(target):
        check_signature(target, _FUNCTION_PARAMETERS, f"{setting}: {reference}")
        return FunctionPartitioner(target)
    if isinstance(target, JavaLikePartitioner):
        check_signature(
            target.partition, _JAVA_STYLE_PARAMETERS, f"{setting}: partition of {reference}"
        )
        return MethodPartitioner(target)
    raise ConfigError(
        f"{setting}: {reference} is not a partitioner: pass a function {_FUNCTION_PARAMETERS} -> "
        f"partition, or an object with a method partition_rows or partition{_JAVA_STYLE_PARAMETERS}"
    )
