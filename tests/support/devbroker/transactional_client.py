"""A transactional client that enforces no rules, for an embedded broker or through a socket.

It produces and consumes, sends exactly the requests that a test calls for, and returns the error
codes of the responses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from spark_kafka_sink.record.decode import decode_record_batch
from spark_kafka_sink.record.record_batch import split_record_batches
from tests.support.devbroker.broker_requests import NOW, ask
from tests.support.record.plain_batches import PlainRecord, plain_batch

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.broker import Broker

TRANSACTIONAL = 0x10
PRODUCE_TV1, PRODUCE_TV2 = 11, 12
END_TV1, END_TV2 = 4, 5
READ_COMMITTED = 1
LAST_FETCH_BY_NAME, LIST_OFFSETS = 12, 9


class TransactionalRequests:
    """The requests of one transactional id about one topic."""

    def __init__(self, transactional_id: str, topic: str) -> None:
        """Store the transactional id and the topic."""
        self.transactional_id = transactional_id
        self.topic = topic
        #: The timestamp of the appended records, in milliseconds.
        self.timestamp = int(NOW * 1000)

    def ask(self, request: Any, version: int, **fields: Any) -> Any:
        """Send a request and return the response."""
        raise NotImplementedError

    def init(
        self, expected: tuple[int, int] = (-1, -1), *, timeout_ms: int = 60_000, version: int = 5
    ) -> tuple[int, tuple[int, int]]:
        """Request a producer id; return the error code, and producer id and epoch."""
        answer = self.ask(
            InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=expected[0],
                producer_epoch=expected[1],
            ),
            version,
        )
        return answer.error_code, (answer.producer_id, answer.producer_epoch)

    def add(self, identity: tuple[int, int], *partitions: int, version: int = 3) -> list[int]:
        """Add partitions of the topic to the transaction; return their error codes by partition."""
        answer = self.ask(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=identity[0],
                v3_and_below_producer_epoch=identity[1],
                v3_and_below_topics=(
                    AddPartitionsToTxnTopic(name=self.topic, partitions=partitions),
                ),
            ),
            version,
        )
        (topic,) = answer.results_by_topic_v3_and_below
        results = sorted(topic.results_by_partition, key=lambda result: result.partition_index)
        return [result.partition_error_code for result in results]

    def add_offsets(self, identity: tuple[int, int], group_id: str, *, version: int = 4) -> int:
        """Add a group to the transaction; return the error code."""
        answer = self.ask(
            AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=identity[0],
                producer_epoch=identity[1],
                group_id=group_id,
            ),
            version,
        )
        return int(answer.error_code)

    def produce_request(
        self,
        identity: tuple[int, int],
        sequence: int,
        *partitions: int,
        count: int = 1,
        attributes: int = TRANSACTIONAL,
        value: bytes = b"v",
    ) -> ProduceRequest:
        """Create a request to append a batch to each partition."""
        batch = plain_batch(
            [PlainRecord(value, timestamp=self.timestamp)] * count,
            producer_id=identity[0],
            producer_epoch=identity[1],
            base_sequence=sequence,
            attributes=attributes,
        )
        return ProduceRequest(
            transactional_id=self.transactional_id if attributes else None,
            acks=-1,
            timeout_ms=1000,
            topic_data=(
                TopicProduceData(
                    name=self.topic,
                    partition_data=tuple(
                        PartitionProduceData(index=index, records=batch)
                        for index in partitions or (0,)
                    ),
                ),
            ),
        )

    def produce(
        self,
        identity: tuple[int, int],
        sequence: int,
        *partitions: int,
        version: int = PRODUCE_TV2,
        **fields: Any,
    ) -> list[tuple[int, int]]:
        """Append a batch to each partition; return error codes and base offsets."""
        request = self.produce_request(identity, sequence, *partitions, **fields)
        (topic,) = self.ask(request, version).responses
        return [(p.error_code, p.base_offset) for p in topic.partition_responses]

    def end(
        self, identity: tuple[int, int], *, committed: bool, version: int = END_TV2
    ) -> tuple[int, tuple[int, int]]:
        """End the transaction; return the error code, and the next producer id and epoch."""
        answer = self.ask(
            EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=identity[0],
                producer_epoch=identity[1],
                committed=committed,
            ),
            version,
        )
        return answer.error_code, (answer.producer_id, answer.producer_epoch)

    def fetch(self, offset: int = 0, *, partition: int = 0, isolation_level: int = 1) -> Any:
        """Fetch a partition; return its part of the response."""
        answer = self.ask(
            FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                isolation_level=isolation_level,
                topics=(
                    FetchTopic(
                        topic=self.topic,
                        partitions=(
                            FetchPartition(
                                partition=partition, fetch_offset=offset, partition_max_bytes=10**8
                            ),
                        ),
                    ),
                ),
            ),
            LAST_FETCH_BY_NAME,
        )
        return answer.responses[0].partitions[0]

    def read_committed(self, partition: int = 0) -> list[bytes | None]:
        """Read the values of a partition up to the LSO, as a read_committed consumer does."""
        answer = self.fetch(partition=partition)
        aborted = sorted(answer.aborted_transactions, key=lambda txn: txn.first_offset)
        aborting: set[int] = set()
        values = []
        for batch in map(decode_record_batch, split_record_batches(answer.records)):
            while aborted and aborted[0].first_offset <= batch.header.last_offset:
                aborting.add(aborted.pop(0).producer_id)
            if batch.header.is_control:
                aborting.discard(batch.header.producer_id)
            elif not (batch.header.is_transactional and batch.header.producer_id in aborting):
                values += [record.value for record in batch.records]
        return values

    def latest(self, *, partition: int = 0, isolation_level: int = READ_COMMITTED) -> int:
        """Return the latest offset of a partition."""
        answer = self.ask(
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation_level,
                topics=(
                    ListOffsetsTopic(
                        name=self.topic,
                        partitions=(ListOffsetsPartition(partition_index=partition, timestamp=-1),),
                    ),
                ),
            ),
            LIST_OFFSETS,
        )
        return int(answer.topics[0].partitions[0].offset)


class TransactionalClient(TransactionalRequests):
    """A client of an embedded broker; `now` is the time of the following requests, in seconds."""

    def __init__(self, broker: Broker, transactional_id: str = "x", topic: str = "t") -> None:
        """Create a client of one transactional id."""
        super().__init__(transactional_id, topic)
        self.broker = broker
        self.now = NOW

    def ask(self, request: Any, version: int | None = None, **fields: Any) -> Any:
        """Send a request."""
        return ask(self.broker, request, version, now=self.now, **fields)

    def state(self) -> str | None:
        """Return the state of the transactional id, or None if it is unknown."""
        metadata = self.broker.cluster.transactions.find(
            self.transactional_id, int(self.now * 1000)
        )
        return None if metadata is None else str(metadata.state)

    def identity(self) -> ProducerIdAndEpoch:
        """Return the producer id and epoch; raise KeyError if the transactional id is unknown."""
        metadata = self.broker.cluster.transactions.find(
            self.transactional_id, int(self.now * 1000)
        )
        if metadata is None:
            raise KeyError(self.transactional_id)
        return metadata.identity

    def log(self, partition: int = 0) -> Any:
        """Return the log of a partition."""
        return self.broker.cluster.partition(TopicPartition(self.topic, partition)).log
