"""Topics as Arrow data, without Spark: `read_arrow`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from spark_kafka_sink.config.consumer_config import ConsumerConfig
from spark_kafka_sink.config.source.offset_specs import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Assign,
    Subscribe,
    check_same_partitions,
)
from spark_kafka_sink.consumer.consumer_client import ConsumerClient
from spark_kafka_sink.consumer.range_reader import (
    DEFAULT_POLL_TIMEOUT,
    DataLoss,
    PartitionRange,
    read_range,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.record.reading.schema import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark_kafka_sink.config.source.offset_specs import Selection

logger = logging.getLogger(__name__)

#: "earliest", "latest", a time, or an offset or a time for each partition.
Position: TypeAlias = "str | datetime | Mapping[TopicPartition | int, int | datetime]"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NAMED: Final = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}


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

    Records that were deleted in the meantime are an error; with `fail_on_data_loss=False` they are
    skipped, with a warning in the log. Without progress for `poll_timeout` seconds the read fails.

    Settings of Kafka's consumer are passed by keyword, with underscores for dots
    (`isolation_level="read_committed"`), or in `settings` by their own names.

    Raises ConfigError, SchemaError for an unknown column, BrokerError for a topic that does not
    exist, and NetworkError or KafkaTimeoutError if no broker answers within default.api.timeout.ms.
    Iterating the result raises DataLossError, CorruptRecordError, BrokerError and
    KafkaTimeoutError.
    """
    config = _config(bootstrap_servers, settings or {}, client_settings)
    schema = arrow_schema(columns, include_headers=include_headers)
    selection = _selection(topic)
    with ConsumerClient(config) as client:
        ranges = _ranges(client, selection, start, end)
    batches = _read(
        config, ranges, schema, fail_on_data_loss=fail_on_data_loss, poll_timeout=poll_timeout
    )
    return pa.RecordBatchReader.from_batches(schema, batches)


def _config(
    servers: str | Sequence[str],
    settings: Mapping[str, object],
    client_settings: Mapping[str, object],
) -> ConsumerConfig:
    address = servers if isinstance(servers, str) else ",".join(servers)
    given: dict[str, object] = {"bootstrap.servers": address}
    by_keyword = {name.replace("_", "."): value for name, value in client_settings.items()}
    for more in (settings, by_keyword):
        twice = sorted(given.keys() & more.keys())
        if twice:
            raise ConfigError(f"{twice[0]} is given twice: remove one of them")
        given = {**given, **more}
    return ConsumerConfig.from_mapping(given)


def _selection(
    topic: str | TopicPartition | Sequence[str | TopicPartition],
) -> Sequence[Selection]:
    """Return one selection for all topics, and one for all single partitions."""
    wanted = [topic] if isinstance(topic, str | TopicPartition) else list(topic)
    topics = tuple(dict.fromkeys(each for each in wanted if isinstance(each, str)))
    partitions = tuple(sorted({each for each in wanted if isinstance(each, TopicPartition)}))
    if not wanted or len(wanted) > len(topics) + len(partitions):
        raise ConfigError(
            "topic must be the name of a topic or a TopicPartition, or several different ones"
        )
    selections: list[Selection] = []
    if topics:
        selections.append(Subscribe(topics))
    if partitions:
        selections.append(Assign(partitions))
    return selections


def _ranges(
    client: ConsumerClient, selections: Sequence[Selection], start: Position, end: Position
) -> list[PartitionRange]:
    timeout = client.config.default_api_timeout_ms / 1000
    partitions = sorted(
        {
            partition
            for selection in selections
            for partition in client.list_partitions(selection, timeout=timeout)
        }
    )
    starts = _offsets(client, "start", start, partitions)
    ends = _offsets(client, "end", end, partitions)
    ids = client.partition_ids(partitions)
    for partition in partitions:
        if isinstance(start, Mapping) and starts[partition] > ends[partition]:
            raise ConfigError(
                f"{partition}: start is offset {starts[partition]}, which is after the end, offset "
                f"{ends[partition]}"
            )
    return [
        PartitionRange(*each, starts[each], ends[each], ids[each].topic_id, ids[each].leader_epoch)
        for each in partitions
    ]


def _offsets(
    client: ConsumerClient, name: str, position: Position, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    timeout = client.config.default_api_timeout_ms / 1000
    wanted = _by_partition(name, position, partitions)
    offsets: dict[TopicPartition, int] = {}
    times: dict[TopicPartition, int] = {}
    for partition, value in wanted.items():
        if isinstance(value, datetime):
            times[partition] = _milliseconds(name, value)
        elif value >= EARLIEST_OFFSET:
            offsets[partition] = value
        else:
            raise ConfigError(f"{name} of {partition} must be an offset or a datetime: {value!r}")
    if times:
        found = client.offsets_for_times(times, timeout=timeout)
        # No record is so late: there is nothing to read from there on.
        offsets |= {one: LATEST_OFFSET if it is None else it for one, it in found.items()}
    latest = [one for one, offset in offsets.items() if offset == LATEST_OFFSET]
    earliest = [one for one, offset in offsets.items() if offset == EARLIEST_OFFSET]
    return {
        **offsets,
        **client.latest_offsets(latest, timeout=timeout),
        **client.earliest_offsets(earliest, timeout=timeout),
    }


def _by_partition(
    name: str, position: Position, partitions: Sequence[TopicPartition]
) -> Mapping[TopicPartition, int | datetime]:
    if isinstance(position, datetime):
        return dict.fromkeys(partitions, position)
    if isinstance(position, Mapping):
        topics = {partition.topic for partition in partitions}
        if any(isinstance(key, int) for key in position) and len(topics) != 1:
            raise ConfigError(
                f"{name} must have TopicPartitions as keys, since several topics are read"
            )
        given = {
            key if isinstance(key, TopicPartition) else TopicPartition(min(topics), key): value
            for key, value in position.items()
        }
        check_same_partitions(name, given, partitions)
        return given
    if position not in _NAMED:
        raise ConfigError(
            f'{name} must be "earliest", "latest", a datetime, or a mapping of partitions to '
            f"offsets: {position!r}"
        )
    return dict.fromkeys(partitions, _NAMED[position])


def _milliseconds(name: str, time: datetime) -> int:
    if time.tzinfo is None:
        raise ConfigError(
            f"{name} must have a time zone, such as datetime(2026, 1, 1, tzinfo=timezone.utc)"
        )
    # Negative timestamps have other meanings in Kafka, such as the latest offset.
    return max(-((_EPOCH - time) // _MILLISECOND), 0)


def _read(
    config: ConsumerConfig,
    ranges: Sequence[PartitionRange],
    schema: pa.Schema,
    *,
    fail_on_data_loss: bool,
    poll_timeout: float,
) -> Iterator[pa.RecordBatch]:
    # A client of its own: a result that is never iterated must leave no connection behind.
    with ConsumerClient(config) as client:
        for each in ranges:
            yield from read_range(
                client,
                each,
                schema,
                fail_on_data_loss=fail_on_data_loss,
                on_data_loss=_warn,
                poll_timeout=poll_timeout,
            )


def _warn(loss: DataLoss) -> None:
    logger.warning(
        "%s-%d: %d offsets are lost, from offset %d on: %s",
        loss.topic,
        loss.partition,
        loss.lost,
        loss.wanted,
        loss.reason,
    )
