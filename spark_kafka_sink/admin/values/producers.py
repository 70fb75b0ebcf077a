"""The producers of a partition, as its leader knows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """An idempotent or transactional producer of a partition (KIP-664).

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     metadata = producer.send("orders", b"a book").result(timeout=30)
    >>> place = TopicPartition("orders", 0)
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     [state] = admin.describe_producers([place])[place]
    >>> state.producer_epoch, state.last_sequence, state.current_transaction_start_offset
    (0, 0, None)
    """

    #: Its id.
    producer_id: int
    #: The epoch of its id.
    producer_epoch: int
    #: The sequence number of its last record; -1 if there is none.
    last_sequence: int
    #: The timestamp of its last batch, in milliseconds since 1970; -1 if there is none.
    last_timestamp: int
    #: The epoch of the coordinator that wrote the last marker; None if there is none.
    coordinator_epoch: int | None
    #: The offset of the first record of its open transaction; None if there is none.
    current_transaction_start_offset: int | None
