"""A Sender between a real accumulator and a network in memory, run step by step."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.batch.batch_compression import (
    BatchCompression,
    BatchSizes,
    WorkOutcome,
)
from spark_kafka_sink.producer.batch.buffer_pool import BufferPool
from spark_kafka_sink.producer.batch.set_aside import SetAsideTray
from spark_kafka_sink.producer.records.partitioner import NodeLatencies
from spark_kafka_sink.producer.sending.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.sending.sender import Sender
from spark_kafka_sink.producer.sending.transaction_manager import TransactionManager
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from spark_kafka_sink.protocol.messages.end_txn import EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorResponse,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from spark_kafka_sink.record.compression import CompressionType, Compressor
from tests.support.producer.mock_network import MockNetwork, SentRequest
from tests.support.producer.producer_batches import NODES, batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch

PRODUCER_ID = 1000
BACKOFF = 0.1
#: The settings of a producer without idempotence.
PLAIN = {"enable_idempotence": False}
#: Longer than any backoff of the harness, in seconds.
LATER = BACKOFF * 2


class SenderHarness:
    """A context manager; `now` is the time, and the Sender runs only when a test makes it."""

    def __init__(
        self,
        *,
        leaders: dict[int, int | None] | None = None,
        transaction_version: int = 2,
        **settings: object,
    ) -> None:
        """Create a Sender; settings have underscores for Kafka's dots."""
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = ProducerConfig.from_mapping(
            {
                "bootstrap.servers": "localhost:9092",
                "retry.backoff.ms": 100,
                "retry.backoff.max.ms": 100,
                **given,
            }
        )
        self.now = 1_000.0
        self.network = MockNetwork(leaders or {0: 0, 1: 1})
        self.network.use_transaction_version(transaction_version)
        self.manager = (
            TransactionManager(
                transactional_id=self.config.transactional_id,
                transaction_timeout_ms=self.config.transaction_timeout_ms,
            )
            if self.config.enable_idempotence
            else None
        )
        self.accumulator = RecordAccumulator(
            pool=BufferPool(10_000_000),
            delivery_timeout=self.config.delivery_timeout_ms / 1000,
            transaction_manager=self.manager,
            guarantee_order=self.config.max_in_flight_requests_per_connection == 1,
        )
        #: The rows that brokers refuse for themselves, once it is open.
        self.tray = SetAsideTray()
        self.too_large: list[tuple[str, int]] = []
        #: The jobs that the worker has not run yet.
        self.jobs: list[tuple[Callable[[], Any], Callable[[WorkOutcome], None]]] = []
        self.is_busy = False
        self._loop = asyncio.new_event_loop()
        self.latencies = NodeLatencies(self.config.partitioner_availability_timeout_ms / 1000)
        self.events = SimpleNamespace(drained=[], retried=[], failed=[], split=0)
        self.sender: Sender = self._loop.run_until_complete(self._make_sender())

    async def _make_sender(self) -> Sender:
        compression = BatchCompression(
            Compressor(CompressionType.NONE), BatchSizes(self.config.batch_size)
        )
        compression.sizes.lower = lambda topic, size: self.too_large.append((topic, size))
        return Sender(
            self.config,
            client=self.network,
            accumulator=self.accumulator,
            transaction_manager=self.manager,
            compression=compression,
            run_aside=self._run_aside,
            latencies=self.latencies,
            listener=self,
            clock=lambda: self.now,
            tray=self.tray,
        )

    def __enter__(self) -> Self:
        """Return the harness itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the loop."""
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _run_aside(self, work: Callable[[], Any], then: Callable[[WorkOutcome], None]) -> None:
        """Store a job; run it at once unless the worker `is_busy`."""
        self.jobs.append((work, then))
        if not self.is_busy:
            self.do_jobs()

    def do_jobs(self) -> None:
        """Run all of the worker's jobs."""
        while self.jobs:
            work, then = self.jobs.pop(0)
            try:
                outcome = WorkOutcome(work())
            except ArithmeticError as error:
                outcome = WorkOutcome(None, error)
            then(outcome)

    # --- the listener

    def on_batches_drained(self, batches: list[ProducerBatch], now: float) -> None:
        """Record the drained batches."""
        self.events.drained.append((batches, now))

    def on_batch_retried(self, each: ProducerBatch, now: float) -> None:
        """Record the retried batch."""
        self.events.retried.append((each, now))

    def on_batch_failed(self, each: ProducerBatch, now: float) -> None:
        """Record the failed batch."""
        self.events.failed.append((each, now))

    def on_batch_split(self, now: float) -> None:
        """Count the split."""
        del now
        self.events.split += 1

    # --- time

    def step(self, seconds: float = 0.0) -> float:
        """Advance the time, process responses, and run the Sender once."""
        self.now += seconds

        async def settle() -> float:
            for _ in range(3):
                await asyncio.sleep(0)
            next_check_at = self.sender.run_once(self.now)
            for _ in range(5):
                await asyncio.sleep(0)
            return next_check_at

        return self._loop.run_until_complete(settle())

    def run_to_the_end(self, *actions: Callable[[], object]) -> None:
        """Run the Sender's own loop until it has closed, with the actions one after another."""

        async def run() -> None:
            running = asyncio.ensure_future(self.sender.run())
            for action in actions:
                for _ in range(10):
                    await asyncio.sleep(0)
                assert not running.done()
                action()
            await asyncio.wait_for(running, 10)

        self._loop.run_until_complete(run())

    # --- batches

    def add(self, partition: int = 0, *, records: int = 1) -> ProducerBatch:
        """Add a batch to the queue, as a producer does after closing one."""
        return self.enqueue(batch(partition, records=records, created_at=self.now))

    def enqueue(self, added: ProducerBatch) -> ProducerBatch:
        """Add a batch to the queue, and return it."""
        if self.manager is not None:
            self.manager.maybe_add_partition(added.topic_partition)
        self.accumulator.enqueue(added)
        return added

    # --- requests and responses

    def take(self, api_key: ApiKey | None = None) -> SentRequest:
        """Remove and return the oldest request; fail if it is for another API."""
        assert self.network.sent, f"nothing was sent, {api_key!r} was expected"
        sent = self.network.sent.pop(0)
        if api_key is not None:
            assert api_key is sent.request.api_key
        return sent

    def answer(self, api_key: ApiKey, response: object) -> SentRequest:
        """Run a step, respond to the next request, and run another step."""
        self.step()
        sent = self.take(api_key)
        sent.answer(response)
        self.step()
        return sent

    def produce(self, code: int = 0, *, offset: int = 0, **fields: Any) -> SentRequest:
        """Respond to the oldest Produce with the same result for all of its partitions."""
        sent = self.take(ApiKey.PRODUCE)
        self.answer_produce(sent, code, offset=offset, **fields)
        return sent

    def answer_produce(
        self, sent: SentRequest, code: int = 0, *, offset: int = 0, **fields: Any
    ) -> None:
        """Respond to a Produce with the same result for all of its partitions, and run a step."""
        sent.answer(produce_response(sent, code, offset=offset, **fields))
        self.step()

    def init_producer_id(self, epoch: int = 0, code: int = 0) -> SentRequest:
        """Respond to InitProducerId."""
        return self.answer(
            ApiKey.INIT_PRODUCER_ID,
            InitProducerIdResponse(
                error_code=code, producer_id=-1 if code else PRODUCER_ID, producer_epoch=epoch
            ),
        )

    def find_coordinator(self, node_id: int = 0, code: int = 0) -> SentRequest:
        """Respond to FindCoordinator, in its form with a list of keys."""
        node = NODES[node_id]
        self.step()
        sent = self.take(ApiKey.FIND_COORDINATOR)
        [key] = sent.request.coordinator_keys
        sent.answer(
            FindCoordinatorResponse(
                coordinators=(
                    Coordinator(
                        key=key,
                        node_id=node.node_id,
                        host=node.host,
                        port=node.port,
                        error_code=code,
                    ),
                )
            )
        )
        self.step()
        return sent

    def add_partitions(self, code: int = 0, codes: dict[int, int] | None = None) -> SentRequest:
        """Respond to AddPartitionsToTxn, with the same result for all partitions or by `codes`."""
        self.step()
        sent = self.take(ApiKey.ADD_PARTITIONS_TO_TXN)
        sent.answer(
            AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=tuple(
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=tuple(
                            AddPartitionsToTxnPartitionResult(
                                partition_index=index,
                                partition_error_code=(codes or {}).get(index, code),
                            )
                            for index in topic.partitions
                        ),
                    )
                    for topic in sent.request.v3_and_below_topics
                )
            )
        )
        self.step()
        return sent

    def add_offsets(self, code: int = 0) -> SentRequest:
        """Respond to AddOffsetsToTxn."""
        return self.answer(ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnResponse(error_code=code))

    def offset_commit(self, code: int = 0, codes: dict[int, int] | None = None) -> SentRequest:
        """Respond to TxnOffsetCommit, with the same result for all partitions or by `codes`."""
        self.step()
        sent = self.take(ApiKey.TXN_OFFSET_COMMIT)
        sent.answer(
            TxnOffsetCommitResponse(
                topics=tuple(
                    TxnOffsetCommitResponseTopic(
                        name=topic.name,
                        partitions=tuple(
                            TxnOffsetCommitResponsePartition(
                                partition_index=each.partition_index,
                                error_code=(codes or {}).get(each.partition_index, code),
                            )
                            for each in topic.partitions
                        ),
                    )
                    for topic in sent.request.topics
                )
            )
        )
        self.step()
        return sent

    def end_txn(self, code: int = 0, epoch: int | None = None) -> SentRequest:
        """Respond to EndTxn; under TV2 with the next epoch."""
        identity = {} if epoch is None else {"producer_id": PRODUCER_ID, "producer_epoch": epoch}
        return self.answer(ApiKey.END_TXN, EndTxnResponse(error_code=code, **identity))

    # --- steps that many tests share

    def initialize(self, epoch: int = 0) -> None:
        """Acquire a producer id; a transactional one from its coordinator, node 0."""
        assert self.manager is not None
        if self.manager.state.is_transactional:
            result = self.manager.initialize_transactions()
            self.find_coordinator()
            self.init_producer_id(epoch)
            result.wait(0)
        else:
            assert self.accumulator.has_incomplete, "without need no id is asked for"
            self.init_producer_id(epoch)

    def begin(self, *partitions: int, epoch: int = 0) -> list[ProducerBatch]:
        """Initialize, begin a transaction, and send a batch to each partition."""
        assert self.manager is not None
        self.initialize(epoch)
        self.manager.begin_transaction()
        batches = [self.add(partition) for partition in partitions]
        if partitions and not self.manager.epochs.is_transaction_v2:
            self.add_partitions()
        self.step()
        return batches


def produce_response(
    sent: SentRequest, code: int = 0, *, offset: int = 0, **fields: Any
) -> ProduceResponse:
    """Create a response to a Produce with the same result for all of its partitions."""
    return ProduceResponse(
        node_endpoints=fields.pop("node_endpoints", ()),
        responses=tuple(
            TopicProduceResponse(
                name=topic.name,
                partition_responses=tuple(
                    PartitionProduceResponse(
                        index=data.index,
                        error_code=code,
                        base_offset=-1 if code else offset,
                        **fields,
                    )
                    for data in topic.partition_data
                ),
            )
            for topic in sent.request.topic_data
        ),
    )


def place(partition: int = 0) -> TopicPartition:
    """Return a partition of topic `t`."""
    return TopicPartition("t", partition)


def numbers(batch: ProducerBatch) -> tuple[int, int]:
    """Return a batch's epoch and first sequence number."""
    return batch.producer_id_and_epoch.epoch, batch.base_sequence
