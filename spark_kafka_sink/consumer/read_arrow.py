"""Topics as Arrow data, without Spark: `read_arrow`, whose reads end before the process does.

Its arguments are checked before anything is connected. One of a wrong type is a TypeError, as in
the producer's calls; a wrong value, or a wrong setting of Kafka's consumer, is a ConfigError. Both
name the argument.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias
from weakref import WeakSet

import pyarrow as pa

from spark_kafka_sink.config.arguments import check_columns, check_items
from spark_kafka_sink.config.config_def import INT_MAX, LONG_MAX
from spark_kafka_sink.config.consumer_config import ConsumerConfig
from spark_kafka_sink.config.format_arguments import FormatArguments, refuse_options
from spark_kafka_sink.config.offset_specs import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Assign,
    Subscribe,
    accepted_numbers,
    check_same_partitions,
)
from spark_kafka_sink.consumer.consumer_client import ConsumerClient
from spark_kafka_sink.consumer.payload_columns import PayloadColumns, resolved_columns
from spark_kafka_sink.consumer.range_reader import (
    DEFAULT_POLL_TIMEOUT,
    DataLoss,
    PartitionRange,
    read_range,
)
from spark_kafka_sink.errors import ConfigError, IllegalStateError
from spark_kafka_sink.model import TopicPartition, is_topic_name
from spark_kafka_sink.record.arrow.schema import arrow_schema

if TYPE_CHECKING:
    from spark_kafka_sink.config.offset_specs import Selection

logger = logging.getLogger(__name__)

#: "earliest", "latest", a time, or an offset or a time for each partition.
Position: TypeAlias = "str | datetime | Mapping[TopicPartition | int, int | datetime]"
#: A position that was checked: an offset or a time for all partitions, or for each of some.
_CheckedPosition: TypeAlias = "int | datetime | dict[TopicPartition, int | datetime]"

#: The numbers that stand for offsets, for a start as well as for an end.
_STAND_INS: Final = (EARLIEST_OFFSET, LATEST_OFFSET)
_NAMED: Final = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}
_POSITION: Final = (
    '"earliest", "latest", a datetime, or a mapping of partitions to offsets or datetimes'
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
#: Seconds for a thread that has just received a batch, to ask for the next one and fail. Nothing
#: shows whether there is such a thread; it needs microseconds.
_LAST_CALLS: Final = 0.05
#: Seconds between two looks at a batch that is being read, and how often to look: no answer of a
#: broker is waited for, so it takes as long as the decoding of an answer.
_LOOK_AGAIN: Final = 0.1
_MOST_LOOKS: Final = 100


def consumer_config(
    servers: Any, settings: Any, by_keyword: Mapping[str, object]
) -> ConsumerConfig:
    """Return the configuration of the consumer; the keywords have underscores for dots."""
    expected = "a str of host:port, or several of them"
    if not isinstance(servers, str):
        check_items("bootstrap_servers", servers, expected, str)
        servers = ",".join(servers)
    refuse_options(by_keyword)
    given: dict[str, object] = {"bootstrap.servers": servers}
    if settings is None:
        settings = {}
    elif not isinstance(settings, Mapping):
        raise ConfigError(
            f"settings must be a mapping of names to values, not {type(settings).__name__}"
        )
    for more in (settings, {name.replace("_", "."): value for name, value in by_keyword.items()}):
        for name in more:
            if name in given:
                raise ConfigError(f"{name} is given twice: remove one of them")
        given |= more
    return ConsumerConfig.from_mapping(given)


def selections(topic: Any) -> list[Selection]:
    """Return one selection for all topics, and one for all single partitions."""
    expected = "the name of a topic or a TopicPartition, or several of them"
    items = [topic] if isinstance(topic, str | TopicPartition) else topic
    check_items("topic", items, expected, str, TopicPartition)
    if not items:
        raise ConfigError(f"topic is empty: it must be {expected}")
    seen = set()
    for item in items:
        if isinstance(item, TopicPartition):
            _check_partition("topic", item)
        else:
            _check_topic("topic", item)
        if item in seen:
            raise ConfigError(f"topic names {item} twice: remove one of them")
        seen.add(item)
    topics = tuple(item for item in items if isinstance(item, str))
    partitions = tuple(sorted(item for item in items if isinstance(item, TopicPartition)))
    selected: list[Selection] = []
    if topics:
        selected.append(Subscribe(topics))
    if partitions:
        selected.append(Assign(partitions))
    return selected


def _checked_position(
    name: str, position: Any, selected: Collection[Selection]
) -> _CheckedPosition:
    """Return the start or the end of the read, by its name, with partitions as keys."""
    if isinstance(position, datetime):
        return _checked_time(name, position)
    if isinstance(position, str):
        if position not in _NAMED:
            raise ConfigError(f"{name} must be {_POSITION}, not {position!r}")
        return _NAMED[position]
    _check_type(name, position, _POSITION, Mapping)
    topics = _topics(selected)
    checked: dict[TopicPartition, int | datetime] = {}
    for key, value in position.items():
        partition = _checked_key(name, key, topics)
        if partition in checked:
            raise ConfigError(f"{name} names {partition} twice: remove one of them")
        checked[partition] = _checked_value(f"{name} of {partition}", value)
    return checked


def _check_flag(name: str, flag: Any) -> None:
    """Raise TypeError unless the argument is a bool: a text such as "false" would mean true."""
    _check_type(name, flag, "a bool", bool)


def _check_poll_timeout(poll_timeout: Any) -> None:
    """Raise TypeError or ConfigError unless it is a number of seconds greater than 0."""
    _check_type("poll_timeout", poll_timeout, "a number of seconds", int, float)
    if not poll_timeout > 0:
        raise ConfigError(f"poll_timeout must be greater than 0 seconds, not {poll_timeout}")


def _check_type(name: str, value: Any, expected: str, *types: type) -> None:
    """Raise TypeError unless a value has one of some types; a bool is not a number."""
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError(f"{name} must be {expected}, not {type(value).__name__}")


def _check_topic(name: str, topic: Any) -> None:
    _check_type(f"{name}: the name of a topic", topic, "a str", str)
    if not is_topic_name(topic):
        raise ConfigError(
            f"{name}: {topic!r} is not a valid topic name: use up to 249 letters, digits, '.', "
            "'_' and '-'"
        )


def _check_partition(name: str, topic_partition: TopicPartition) -> None:
    _check_topic(name, topic_partition.topic)
    number = topic_partition.partition
    _check_type(f"{name}: the number of a partition", number, "an int", int)
    if not 0 <= number <= INT_MAX:
        raise ConfigError(f"{name}: the number of a partition must be 0 or more, not {number}")


def _topics(selected: Collection[Selection]) -> set[str]:
    topics: set[str] = set()
    for selection in selected:
        if isinstance(selection, Subscribe):
            topics.update(selection.topics)
        elif isinstance(selection, Assign):
            topics.update(partition.topic for partition in selection.partitions)
    return topics


def _checked_key(name: str, key: Any, topics: set[str]) -> TopicPartition:
    expected = "a TopicPartition, or the number of a partition"
    _check_type(f"a key of {name}", key, expected, TopicPartition, int)
    if isinstance(key, int) and len(topics) > 1:
        raise ConfigError(
            f"{name} must have TopicPartitions as keys, since several topics are read"
        )
    partition: TopicPartition = TopicPartition(min(topics), key) if isinstance(key, int) else key
    _check_partition(name, partition)
    return partition


def _checked_value(name: str, value: Any) -> int | datetime:
    if isinstance(value, datetime):
        return _checked_time(name, value)
    _check_type(name, value, f"{accepted_numbers(_STAND_INS)}, or a datetime", int)
    offset: int = value
    if not EARLIEST_OFFSET <= offset <= LONG_MAX:
        raise ConfigError(f"{name} must be {accepted_numbers(_STAND_INS)}, not {offset}")
    return offset


def _checked_time(name: str, time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ConfigError(
            f"{name} must have a time zone, such as datetime(2026, 1, 1, tzinfo=timezone.utc)"
        )
    return time


class OpenRead:
    """An iterator over the batches of one read; any thread may ask for the next one."""

    def __init__(
        self, config: ConsumerConfig, read: Callable[[ConsumerClient], Iterator[pa.RecordBatch]]
    ) -> None:
        """Connect to nothing yet; `read` is given a client, and must close it."""
        self._config = config
        self._read = read
        self._client: ConsumerClient | None = None
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._process_id = os.getpid()
        self._is_ended = False
        #: Held while a batch is being read.
        self._reading = threading.Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        """Read the next batch; raise IllegalStateError once the process ends."""
        with self._reading:
            if self._is_ended:
                raise IllegalStateError("nothing can be read any more: the process is ending")
            if self._batches is None:
                # A client of its own: a result that is never iterated must leave no connection
                # behind.
                self._client = ConsumerClient(self._config)
                self._batches = self._read(self._client)
            try:
                return next(self._batches)
            except BaseException:
                # This was the last one, and the client is closed.
                self._client = None
                raise

    def end(self) -> bool:
        """Interrupt the batch that is being read, and allow no other.

        Returns whether the read had begun, and was not at its end.
        """
        if self._process_id != os.getpid():
            # The connections belong to the process that this one was forked from.
            return False
        self._is_ended = True
        was_open = False
        for _ in range(_MOST_LOOKS):
            client = self._client
            if client is not None:
                was_open = True
                client.close()
            if self._reading.acquire(timeout=_LOOK_AGAIN):
                self._reading.release()
                break
        return was_open


class OpenReads:
    """The reads of a process that are not deleted yet; they are ended before the process is.

    Libraries read ahead on threads of their own: after a LIMIT, or a Ctrl-C, DuckDB leaves a thread
    of pyarrow behind that asks for some more batches. A thread that calls Python while the
    interpreter is finalized crashes the process, or never ends, and then the process does not end
    either. So all reads are ended before: a batch that is being read is given up, and no other can
    be read.
    """

    def __init__(self) -> None:
        self._reads: WeakSet[OpenRead] = WeakSet()

    def add(self, read: OpenRead) -> OpenRead:
        """Return the read, which will be ended with the others."""
        self._reads.add(read)
        return read

    def end(self) -> None:
        """End all reads; from then on, none of their threads is in Python, or will be."""
        were_open = [read.end() for read in list(self._reads)]
        if any(were_open):
            threading.Event().wait(_LAST_CALLS)


#: The reads of this process.
open_reads: Final = OpenReads()
atexit.register(open_reads.end)


def read_arrow(
    bootstrap_servers: str | Sequence[str],
    topic: str | TopicPartition | Sequence[str | TopicPartition],
    *,
    start: Position = "earliest",
    end: Position = "latest",
    columns: Sequence[str] | None = None,
    include_headers: bool = False,
    fail_on_data_loss: bool = True,
    poll_timeout: float = DEFAULT_POLL_TIMEOUT,
    key_format: str | None = None,
    value_format: str | None = None,
    key_schema: str | None = None,
    value_schema: str | None = None,
    schema_registry: Mapping[str, object] | None = None,
    format_options: Mapping[str, object] | None = None,
    settings: Mapping[str, object] | None = None,
    **client_settings: object,
) -> pa.RecordBatchReader:
    """Read topics into Arrow, for pyarrow, pandas, Polars or DuckDB.

    `bootstrap_servers` are addresses (host:port), separated by commas or as a list.

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     metadata = producer.send("orders", b"a book", key=b"alice").result(timeout=30)
    >>> reader = read_arrow("localhost:9092", "orders", columns=["offset", "key", "value"])
    >>> reader.read_all().to_pylist()
    [{'offset': 0, 'key': b'alice', 'value': b'a book'}]

    `topic` is the name of a topic, or a `TopicPartition`, or several of these. One partition is
    read after the other, each in the order of its offsets.

    `start` and `end` are "earliest", "latest", a `datetime` with a time zone (the first record at
    or after it), or a mapping that has an offset or a `datetime` for each partition; its keys are
    `TopicPartition`s, or the partitions' numbers if there is one topic. The offset of `end` is not
    read any more. All of them are resolved by this call: records that are written afterwards are
    not read. The records themselves are read while the result is iterated. Its connections are
    closed at its end, or when it is deleted: its `close` does not close them.

    `columns` selects among `key`, `value`, `topic`, `partition`, `offset`, `timestamp`,
    `timestampType` and `headers`; without it, there are all of them, `headers` only with
    `include_headers`.

    With `value_format="avro"` the column `value` has the type of a schema, and so has `key` with
    `key_format`. `value_schema` (or `key_schema`) is "latest", "version:7", "id:42" or the text of
    a schema; `schema_registry` has the settings of the Schema Registry (`{"url": ...}`), and
    `format_options` all other options of formats by the names that they have in Spark, such as
    `{"valueSubject": "orders", "onDecodeError": "null"}`. The latest schema is looked up once, by
    this call.

    Records that were deleted in the meantime are an error; with `fail_on_data_loss=False` they are
    skipped, with a warning in the log. Without progress for `poll_timeout` seconds the read fails;
    `math.inf` is no limit.

    Settings of Kafka's consumer are passed by keyword, with underscores for dots
    (`isolation_level="read_committed"`), or in `settings` by their own names.

    Raises TypeError for an argument of a wrong type, ConfigError for a wrong value, SchemaError for
    an unknown column or a schema that cannot be read, SchemaRegistryError, BrokerError for a topic
    that does not exist, and NetworkError or KafkaTimeoutError if no broker answers within
    default.api.timeout.ms, or within 3 seconds if nothing listens at any address. Iterating the
    result raises DataLossError, CorruptRecordError, BrokerError, KafkaTimeoutError and, for a
    malformed payload, PayloadError.
    """
    config = consumer_config(bootstrap_servers, settings, client_settings)
    selected = selections(topic)
    first, last = (
        _checked_position(name, position, selected)
        for name, position in (("start", start), ("end", end))
    )
    check_columns(columns)
    arguments = FormatArguments(
        key_format, value_format, key_schema, value_schema, schema_registry, format_options
    )
    _check_flag("include_headers", include_headers)
    _check_flag("fail_on_data_loss", fail_on_data_loss)
    _check_poll_timeout(poll_timeout)
    payloads = _payload_columns(arguments, columns, selected, include_headers=include_headers)
    schema = (
        arrow_schema(columns, include_headers=include_headers)
        if payloads is None
        else payloads.schema
    )
    with ConsumerClient(config) as client:
        ranges = _ranges(client, selected, first, last)
    read = partial(
        _read,
        ranges=ranges,
        schema=schema,
        payloads=payloads,
        fail_on_data_loss=fail_on_data_loss,
        poll_timeout=poll_timeout,
    )
    return pa.RecordBatchReader.from_batches(schema, open_reads.add(OpenRead(config, read)))


def _payload_columns(
    arguments: FormatArguments,
    columns: Sequence[str] | None,
    selected: Collection[Selection],
    *,
    include_headers: bool,
) -> PayloadColumns | None:
    """Return the typed columns of a read; None if keys and values are bytes."""
    if not arguments.are_given:
        return None
    topics = sorted(_topics(selected))
    return resolved_columns(arguments.of_read(), columns, topics, include_headers=include_headers)


def _ranges(
    client: ConsumerClient,
    selected: Sequence[Selection],
    start: _CheckedPosition,
    end: _CheckedPosition,
) -> list[PartitionRange]:
    timeout = client.config.default_api_timeout_ms / 1000
    partitions = sorted(
        {
            partition
            for selection in selected
            for partition in client.list_partitions(selection, timeout=timeout, fails_early=True)
        }
    )
    starts = _offsets(client, "start", start, partitions)
    ends = _offsets(client, "end", end, partitions)
    ids = client.partition_ids(partitions)
    for partition in partitions:
        if starts[partition] > ends[partition]:
            raise ConfigError(
                f"{partition}: start is offset {starts[partition]}, which is after the end, offset "
                f"{ends[partition]}"
            )
    return [
        PartitionRange(
            *partition,
            starts[partition],
            ends[partition],
            ids[partition].topic_id,
            ids[partition].leader_epoch,
        )
        for partition in partitions
    ]


def _offsets(
    client: ConsumerClient,
    name: str,
    position: _CheckedPosition,
    partitions: Sequence[TopicPartition],
) -> dict[TopicPartition, int]:
    timeout = client.config.default_api_timeout_ms / 1000
    if isinstance(position, dict):
        check_same_partitions(name, position, partitions, _STAND_INS)
        positions = position
    else:
        positions = dict.fromkeys(partitions, position)
    times = {
        partition: _milliseconds(value)
        for partition, value in positions.items()
        if isinstance(value, datetime)
    }
    offsets = {partition: value for partition, value in positions.items() if isinstance(value, int)}
    if times:
        found_offsets = client.offsets_for_times(times, timeout=timeout)
        # No record is so late: there is nothing to read from there on.
        offsets |= {
            partition: LATEST_OFFSET if offset is None else offset
            for partition, offset in found_offsets.items()
        }
    latest = [partition for partition, offset in offsets.items() if offset == LATEST_OFFSET]
    earliest = [partition for partition, offset in offsets.items() if offset == EARLIEST_OFFSET]
    return {
        **offsets,
        **client.latest_offsets(latest, timeout=timeout),
        **client.earliest_offsets(earliest, timeout=timeout),
    }


def _milliseconds(time: datetime) -> int:
    # Negative timestamps have other meanings in Kafka, such as the latest offset.
    return max(-((_EPOCH - time) // _MILLISECOND), 0)


def _read(
    client: ConsumerClient,
    *,
    ranges: Sequence[PartitionRange],
    schema: pa.Schema,
    payloads: PayloadColumns | None,
    fail_on_data_loss: bool,
    poll_timeout: float,
) -> Iterator[pa.RecordBatch]:
    with client:
        for partition_range in ranges:
            batches = read_range(
                client,
                partition_range,
                schema if payloads is None else payloads.raw_schema,
                fail_on_data_loss=fail_on_data_loss,
                on_data_loss=_warn,
                poll_timeout=poll_timeout,
            )
            if payloads is None:
                yield from batches
                continue
            for batch in batches:
                yield from payloads.batches(batch, partition_range.topic_partition)


def _warn(loss: DataLoss) -> None:
    logger.warning("%s", loss)
