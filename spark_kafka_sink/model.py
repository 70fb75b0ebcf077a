"""Value types shared by all layers, with no behaviour beyond what the values imply."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from spark_kafka_sink import display

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
#: An unknown offset: with acks=0, or of a duplicate whose original the broker has forgotten.
UNKNOWN_OFFSET = -1
#: The partition of a record that failed before one was chosen.
UNKNOWN_PARTITION = -1
NO_LEADER_EPOCH = -1
#: The longest text in a request, in bytes of UTF-8: its length is a signed 16-bit number.
LONGEST_TEXT: Final = 2**15 - 1
#: Added to a broker's id for another connection to it; brokers' ids count up from 0.
MORE_CONNECTIONS: Final = 2**30
#: The transaction version from which on Produce adds partitions and EndTxn bumps the epoch (TV2,
#: KIP-890).
TRANSACTION_V2: Final = 2
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
#: The most bytes to which a record batch may be decompressed, unless something else is configured.
DEFAULT_MAX_UNCOMPRESSED_BYTES: Final = 128 * 1024 * 1024
#: The number of partitions in a text that is one line long.
_SHOWN_PARTITIONS: Final = 3


def utf8_size(text: str) -> int | None:
    """Return how many bytes a text has in a request; None if it cannot be encoded."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def is_topic_name(name: str) -> bool:
    """Return whether `name` is a valid topic name, by the rules of Kafka's Topic class."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in {".", ".."}


class TopicPartition(NamedTuple):
    """A partition of a topic.

    `partition` is its number, counted from 0.

    >>> str(TopicPartition("orders", 3))
    'orders-3'
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        """Format it as Kafka's own tools do, but with control characters escaped."""
        return display.printable(f"{self.topic}-{self.partition}")


def host_and_port(host: str, port: int) -> str:
    """Format an address as `bootstrap.servers` takes it, an IPv6 address in brackets.

    >>> host_and_port("::1", 9092)
    '[::1]:9092'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Node(NamedTuple):
    """A broker's id and advertised address.

    `node_id` is the broker's id; clients connect to `host` and `port`.

    >>> str(Node(1, "kafka-1", 9092))
    'kafka-1:9092 (id 1)'

    For another connection to the same broker, a client adds `MORE_CONNECTIONS` to the id.
    """

    node_id: int
    host: str
    port: int

    @property
    def broker_id(self) -> int:
        """The broker's id, of whichever connection."""
        return self.node_id % MORE_CONNECTIONS if self.node_id >= 0 else self.node_id

    def __str__(self) -> str:
        """Format it with the address first, which is what an operator looks for.

        A bootstrap address has no id yet (clients count such nodes from -1 down), so none is shown.
        Control characters are escaped: a broker may advertise any host.
        """
        address = display.printable(host_and_port(self.host, self.port))
        return address if self.node_id < 0 else f"{address} (id {self.broker_id})"


class ProducerIdAndEpoch(NamedTuple):
    """The identity of an idempotent producer, as assigned by a broker.

    `producer_id` and `epoch` are both -1 if none has been assigned.

    >>> ProducerIdAndEpoch(4000, 0).is_valid
    True
    """

    producer_id: int
    epoch: int

    @property
    def is_valid(self) -> bool:
        """Whether a broker has assigned this id."""
        return self.producer_id != NO_PRODUCER_ID


NO_PRODUCER_ID_AND_EPOCH = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class PreparedTransaction(NamedTuple):
    """An open transaction that another process is to end before it times out.

    `producer` is the producer id and epoch with which to end it.

    >>> settings = {"bootstrap.servers": "localhost:9092", "transactional.id": "orders-1"}
    >>> with KafkaProducer(settings) as producer:
    ...     producer.init_transactions()
    ...     producer.begin_transaction()
    ...     future = producer.send("orders", b"a book")
    ...     producer.prepare_transaction().transaction_version
    2
    """

    producer: ProducerIdAndEpoch
    #: The transaction protocol that it was begun with: 2 for KIP-890, less for older ones.
    transaction_version: int


class OffsetAndMetadata(NamedTuple):
    """The next offset that a consumer group will read in a partition.

    `offset` is that of the next record to read: one more than that of the last record read.

    >>> OffsetAndMetadata(42).offset
    42
    """

    offset: int
    #: The epoch of the last record read; `NO_LEADER_EPOCH` if it is not known.
    leader_epoch: int = NO_LEADER_EPOCH
    #: Any text that the group stores with the offset.
    metadata: str | None = ""


class ConsumerGroupMetadata(NamedTuple):
    """The consumer group that commits offsets, and its member if there is one (KIP-447).

    Given a member and its generation, the coordinator fences consumers that have lost the
    partition.

    `group_id` is the group's name. `generation_id`, `member_id` and `group_instance_id` identify
    the member; its consumer knows them.

    >>> offsets = {TopicPartition("payments", 0): OffsetAndMetadata(42)}
    >>> settings = {"bootstrap.servers": "localhost:9092", "transactional.id": "orders-1"}
    >>> with KafkaProducer(settings) as producer:
    ...     producer.init_transactions()
    ...     producer.begin_transaction()
    ...     producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata("orders"))
    ...     producer.abort_transaction()
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class SecurityProtocol(StrEnum):
    """The security protocol of a connection (`security.protocol`).

    >>> SecurityProtocol("SASL_SSL")
    <SecurityProtocol.SASL_SSL: 'SASL_SSL'>
    """

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


class CompressionLevels(NamedTuple):
    """The levels of a codec, from `lowest` to `highest`, and the default."""

    default: int
    lowest: int
    highest: int


#: The levels of each codec of `compression.type` that has any (KIP-390). The default of gzip lies
#: outside of its levels: it leaves the choice to zlib.
COMPRESSION_LEVELS: Final = {
    "gzip": CompressionLevels(default=-1, lowest=1, highest=9),
    "lz4": CompressionLevels(default=9, lowest=1, highest=17),
    "zstd": CompressionLevels(default=3, lowest=-131_072, highest=22),
}


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The position of an acknowledged record (Kafka's class of the same name).

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     metadata = producer.send("orders", b"a book").result(timeout=30)
    >>> metadata.topic, metadata.partition, metadata.offset, metadata.serialized_value_size
    ('orders', 0, 0, 6)
    """

    topic: str
    partition: int
    #: `UNKNOWN_OFFSET` if the broker returned none (acks=0, or a duplicate it has forgotten).
    offset: int
    #: Milliseconds since 1970: the record's own, or the broker's if the topic replaces it.
    timestamp: int
    #: Bytes of the serialized key; -1 if there is none.
    serialized_key_size: int
    #: Bytes of the serialized value; -1 if there is none.
    serialized_value_size: int

    def _repr_html_(self) -> str:
        """Show the fields in words."""
        return display.block(
            f"record acknowledged in {self.topic}-{self.partition}",
            display.facts(
                {
                    "topic": self.topic,
                    "partition": self.partition,
                    "offset": known_offset(self.offset),
                    "timestamp": display.moment(self.timestamp),
                    "key, in bytes": _size(self.serialized_key_size),
                    "value, in bytes": _size(self.serialized_value_size),
                }
            ),
        )


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition and its leader, from `partitions_for` (Kafka's class of the same name).

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     [info] = producer.partitions_for("orders")
    >>> info.topic, info.partition, info.leader.node_id
    ('orders', 0, 1)
    """

    topic: str
    partition: int
    #: None while there is no leader, or it is not known.
    leader: Node | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAcks:
    """The acknowledged records of one producer in one partition.

    Offsets are `UNKNOWN_OFFSET` if the broker returned none (acks=0). Records of other producers
    may lie between `first_offset` and `last_offset`: `records` counts only ours.

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     metadata = producer.send("orders", b"a book").result(timeout=30)
    ...     acks = producer.acks()[TopicPartition("orders", 0)]
    >>> acks.records, acks.first_offset, acks.last_offset
    (1, 0, 0)
    """

    first_offset: int
    last_offset: int
    #: Records acknowledged.
    records: int
    #: Bytes of the record batches as sent: compressed, headers included. 0 where a batch may hold
    #: the rows of several calls (`send_arrow`).
    bytes: int
    #: Whether the broker replaces our timestamps (message.timestamp.type=LogAppendTime).
    log_append_time: bool = False

    def merged(self, other: PartitionAcks) -> PartitionAcks:
        """Return the sum of two producers' or batches' writes to the same partition."""
        known = [o for o in (self.first_offset, other.first_offset) if o != UNKNOWN_OFFSET]
        return PartitionAcks(
            first_offset=min(known, default=UNKNOWN_OFFSET),
            last_offset=max(self.last_offset, other.last_offset),
            records=self.records + other.records,
            bytes=self.bytes + other.bytes,
            log_append_time=self.log_append_time or other.log_append_time,
        )


class AcksByPartition(dict[TopicPartition, PartitionAcks]):
    """The acknowledgements of a write by partition: a dict that shows itself as a table."""

    def __repr__(self) -> str:
        """Show the number of records, and the offsets of the first partitions."""
        written = [
            f"{partition} {_offsets(acks)}"
            for partition, acks in islice(self.items(), _SHOWN_PARTITIONS)
        ]
        rest = len(self) - len(written)
        places = ", ".join(written) + (f" and {rest:,} more" if rest else "")
        return f"<{self._summary()}{': ' if places else ''}{places}>"

    def _summary(self) -> str:
        records = sum(acks.records for acks in self.values())
        return f"{display.counted(records, 'record')} in {display.counted(len(self), 'partition')}"

    def _repr_html_(self) -> str:
        """Show the offsets of each partition, and bars of its records."""
        rows = (
            (
                *(str(part) for part in partition),
                acks.records,
                *(known_offset(offset) for offset in (acks.first_offset, acks.last_offset)),
            )
            for partition, acks in sorted(self.items())
        )
        notes: tuple[str, ...] = ()
        if any(acks.first_offset == UNKNOWN_OFFSET for acks in self.values()):
            notes = ("brokers returned no offsets for some of the records, as with acks=0",)
        return display.block(
            f"{self._summary()} acknowledged",
            display.table(
                ("topic", "partition", "records", "first offset", "last offset"),
                rows,
                count=len(self),
                things=("partition", "partitions"),
                bars=2,
            ),
            notes=notes,
        )


def known_offset(offset: int) -> int | None:
    """Return an `offset`, or None if no broker has returned one."""
    return None if offset == UNKNOWN_OFFSET else offset


def _offsets(acks: PartitionAcks) -> str:
    if acks.first_offset == UNKNOWN_OFFSET:
        return "at unknown offsets"
    if acks.first_offset == acks.last_offset:
        return f"at offset {acks.first_offset}"
    return f"at offsets {acks.first_offset} to {acks.last_offset}"


def _size(count: int) -> int | str:
    return "none" if count < 0 else count
