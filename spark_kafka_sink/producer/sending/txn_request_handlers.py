"""The requests for ids and transactions: how each is built, what its answer means, their queue.

They are Java's TxnRequestHandler classes as pure data. A handler builds a request in the
connection's version, and converts the answer into a verdict using the table of `error_rules`.
TransactionManager acts on the verdict; the Sender does the sending.
"""

from __future__ import annotations

import heapq
import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple

from spark_kafka_sink.errors import TransactionAbortedError
from spark_kafka_sink.model import (
    NO_PRODUCER_ID_AND_EPOCH,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from spark_kafka_sink.producer.batch.error_rules import TxnAction, txn_action
from spark_kafka_sink.producer.sending.transaction_state import TransactionalRequestResult
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    find_coordinator,
    init_producer_id,
    txn_offset_commit,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from spark_kafka_sink.protocol.schema import AnyRequest, ApiRequest, ResponseT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from spark_kafka_sink.model import Node

#: From this version on FindCoordinator takes a list of keys (KIP-699).
FIRST_VERSION_WITH_KEYS = 4
#: The last TxnOffsetCommit version that does not add the group to the transaction (KIP-890).
LAST_OFFSET_COMMIT_WITHOUT_ADD = 4
#: The last TxnOffsetCommit version that names topics; later ones have their ids (KIP-1319).
LAST_OFFSET_COMMIT_WITH_NAMES = 5
#: A value that brokers ignore unless the request has a transactional id.
NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1


class TxnRequestPriority(IntEnum):
    """The order in which requests are sent.

    The end of a transaction follows all its other requests; a new epoch follows that end.
    """

    FIND_COORDINATOR = 0
    INIT_PRODUCER_ID = 1
    ADD_PARTITIONS_OR_OFFSETS = 2
    END_TXN = 3
    EPOCH_BUMP = 4


class Verdict(NamedTuple):
    """The meaning of an answer: the action, its error code, and the operation it is about."""

    action: TxnAction
    code: int = ErrorCode.NONE
    context: str = ""


@dataclass(slots=True, eq=False, kw_only=True)
class TxnRequestHandler(ABC):
    """One request, including retries, until it is answered."""

    api_key: ClassVar[ApiKey]
    is_end_txn: ClassVar[bool] = False

    result: TransactionalRequestResult
    #: The number of failed attempts.
    attempts: int = 0
    #: Its place among requests of its priority, once it has been queued.
    number: int | None = None
    #: Whether a broker may have seen it.
    was_sent: bool = False
    #: Seconds before the next attempt, if the answer requires a time other than the back-off.
    retry_delay: float | None = None

    @property
    @abstractmethod
    def priority(self) -> TxnRequestPriority:
        """The request's priority in the queue."""

    @property
    def coordinator_type(self) -> find_coordinator.CoordinatorType | None:
        """The type of the coordinator that the request goes to; None for any broker."""
        return find_coordinator.CoordinatorType.TRANSACTION

    @property
    @abstractmethod
    def coordinator_key(self) -> str:
        """The key by which the coordinator is found."""

    @property
    def max_version(self) -> int | None:
        """The highest version with the intended meaning; None for any."""
        return None

    def prepare(self, topic_id: Callable[[str], UUID]) -> None:  # noqa: B027  most need nothing
        """Look up the topic ids of the next request; `ZERO_UUID` is one that is not known."""

    @abstractmethod
    def request(self, version: int) -> AnyRequest:
        """Build the request."""

    @abstractmethod
    def verdict(self, response: Any) -> Verdict:
        """Convert the answer into a verdict."""

    def _judge(self, code: int, context: str) -> Verdict:
        return Verdict(txn_action(self.api_key, code), code, context)


class HandlerOf(TxnRequestHandler, Generic[ResponseT]):
    """The handler of one API, whose verdict is on the response to its own request."""

    __slots__ = ()

    @abstractmethod
    def request(self, version: int) -> ApiRequest[ResponseT]:
        """Build the request."""

    @abstractmethod
    def verdict(self, response: ResponseT) -> Verdict:
        """Convert the answer into a verdict."""


@dataclass(slots=True, eq=False, kw_only=True)
class FindCoordinatorHandler(HandlerOf[find_coordinator.FindCoordinatorResponse]):
    """The request for the coordinator of a transactional id or a group."""

    api_key = ApiKey.FIND_COORDINATOR
    #: First of all: no other request can be sent before the coordinator is known.
    priority = TxnRequestPriority.FIND_COORDINATOR
    #: Any broker can answer.
    coordinator_type = None

    key_type: find_coordinator.CoordinatorType
    key: str

    @property
    def coordinator_key(self) -> str:
        """The key to look up."""
        return self.key

    def request(self, version: int) -> find_coordinator.FindCoordinatorRequest:
        """Build the request for one key, in the form of the version."""
        if version >= FIRST_VERSION_WITH_KEYS:
            return find_coordinator.FindCoordinatorRequest(
                key_type=self.key_type, coordinator_keys=(self.key,)
            )
        return find_coordinator.FindCoordinatorRequest(key_type=self.key_type, key=self.key)

    def coordinator(
        self, response: find_coordinator.FindCoordinatorResponse
    ) -> find_coordinator.Coordinator | find_coordinator.FindCoordinatorResponse:
        """Return the answer in either of the two forms."""
        return response.coordinators[0] if response.coordinators else response

    def verdict(self, response: find_coordinator.FindCoordinatorResponse) -> Verdict:
        """Convert the answer for the one key into a verdict."""
        kind = (
            "transactional.id"
            if self.key_type is find_coordinator.CoordinatorType.TRANSACTION
            else "group"
        )
        context = f"could not find the coordinator of {kind} {self.key!r}"
        if len(response.coordinators) > 1:
            return Verdict(TxnAction.FATAL, ErrorCode.UNKNOWN_SERVER_ERROR, context)
        return self._judge(self.coordinator(response).error_code, context)


@dataclass(slots=True, eq=False, kw_only=True)
class InitProducerIdHandler(HandlerOf[init_producer_id.InitProducerIdResponse]):
    """The request for a producer id, or for a new epoch of the current one (KIP-360)."""

    api_key = ApiKey.INIT_PRODUCER_ID

    transactional_id: str | None
    transaction_timeout_ms: int = NO_TRANSACTION_TIMEOUT_MS
    producer: ProducerIdAndEpoch = NO_PRODUCER_ID_AND_EPOCH

    @property
    def is_epoch_bump(self) -> bool:
        """Whether the producer id is kept."""
        return self.producer.is_valid

    @property
    def priority(self) -> TxnRequestPriority:
        """Before all requests that need an id; an epoch bump after the old transaction's end."""
        if self.is_epoch_bump:
            return TxnRequestPriority.EPOCH_BUMP
        return TxnRequestPriority.INIT_PRODUCER_ID

    @property
    def coordinator_type(self) -> find_coordinator.CoordinatorType | None:
        """None without transactions: any broker can assign the id."""
        return (
            None if self.transactional_id is None else find_coordinator.CoordinatorType.TRANSACTION
        )

    @property
    def coordinator_key(self) -> str:
        """The transactional id, if any."""
        return self.transactional_id or ""

    def request(self, version: int) -> init_producer_id.InitProducerIdRequest:  # noqa: ARG002 - the same in all
        """Build the request; versions below 3 cannot name the id to keep, so encoding fails."""
        return init_producer_id.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.transaction_timeout_ms,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
        )

    def verdict(self, response: init_producer_id.InitProducerIdResponse) -> Verdict:
        """Convert the answer into a verdict."""
        context = (
            "could not get a producer id, which enable.idempotence=true requires"
            if self.transactional_id is None
            else f"could not initialize transactional.id {self.transactional_id!r}"
        )
        return self._judge(response.error_code, context)


@dataclass(slots=True, eq=False, kw_only=True)
class RequestOfTransaction(HandlerOf[ResponseT]):
    """A request that is part of a transaction, sent to its coordinator before its end."""

    priority = TxnRequestPriority.ADD_PARTITIONS_OR_OFFSETS

    transactional_id: str
    producer: ProducerIdAndEpoch

    @property
    def coordinator_key(self) -> str:
        """The transactional id."""
        return self.transactional_id


@dataclass(slots=True, eq=False, kw_only=True)
class AddPartitionsToTxnHandler(
    RequestOfTransaction[add_partitions_to_txn.AddPartitionsToTxnResponse]
):
    """The request that adds partitions to the transaction, if Produce does not do so itself."""

    api_key = ApiKey.ADD_PARTITIONS_TO_TXN
    #: Higher versions are for brokers.
    max_version = add_partitions_to_txn.LAST_CLIENT_VERSION

    partitions: frozenset[TopicPartition]

    def request(self, version: int) -> add_partitions_to_txn.AddPartitionsToTxnRequest:  # noqa: ARG002 - the same in all
        """Build the request with sorted partitions: equal sets make equal requests."""
        return add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer.producer_id,
            v3_and_below_producer_epoch=self.producer.epoch,
            v3_and_below_topics=tuple(
                add_partitions_to_txn.AddPartitionsToTxnTopic(
                    name=topic,
                    partitions=tuple(topic_partition.partition for topic_partition in partitions),
                )
                for topic, partitions in _by_topic(self.partitions).items()
            ),
        )

    def verdict(self, response: add_partitions_to_txn.AddPartitionsToTxnResponse) -> Verdict:
        """Return the worst verdict of the partitions; one without an answer is an error."""
        answered = {
            TopicPartition(topic.name, partition.partition_index): partition.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for partition in topic.results_by_partition
        }
        return _worst(
            self._judge(
                answered.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR),
                f"could not add {partition} to the transaction of {self.transactional_id!r}",
            )
            for partition in sorted(self.partitions)
        )


@dataclass(slots=True, eq=False, kw_only=True)
class AddOffsetsToTxnHandler(RequestOfTransaction[add_offsets_to_txn.AddOffsetsToTxnResponse]):
    """The request that adds a consumer group, if TxnOffsetCommit does not do so itself."""

    api_key = ApiKey.ADD_OFFSETS_TO_TXN

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    group_metadata: ConsumerGroupMetadata

    def request(self, version: int) -> add_offsets_to_txn.AddOffsetsToTxnRequest:  # noqa: ARG002 - the same in all
        """Build the request for the group."""
        return add_offsets_to_txn.AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            group_id=self.group_metadata.group_id,
        )

    def verdict(self, response: add_offsets_to_txn.AddOffsetsToTxnResponse) -> Verdict:
        """Convert the answer into a verdict."""
        group = self.group_metadata.group_id
        return self._judge(response.error_code, f"could not add group {group!r} to the transaction")


@dataclass(slots=True, eq=False, kw_only=True)
class TxnOffsetCommitHandler(RequestOfTransaction[txn_offset_commit.TxnOffsetCommitResponse]):
    """The request that commits a group's offsets with the transaction, sent to its coordinator."""

    api_key = ApiKey.TXN_OFFSET_COMMIT
    coordinator_type = find_coordinator.CoordinatorType.GROUP

    group_metadata: ConsumerGroupMetadata
    is_transaction_v2: bool
    #: The offsets that are not committed yet.
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    #: By name; empty if that of one topic is not known.
    topic_ids: dict[str, UUID] = field(default_factory=dict)

    @property
    def coordinator_key(self) -> str:
        """The group id."""
        return self.group_metadata.group_id

    @property
    def max_version(self) -> int | None:
        """From version 5 on the request also adds the group to the transaction, as TV2 requires.

        From version 6 on it has the ids of all topics.
        """
        if not self.is_transaction_v2:
            return LAST_OFFSET_COMMIT_WITHOUT_ADD
        return None if self.topic_ids else LAST_OFFSET_COMMIT_WITH_NAMES

    def prepare(self, topic_id: Callable[[str], UUID]) -> None:
        """Look up the topic ids; those of a source's topics may not be known to a producer."""
        ids = {partition.topic: topic_id(partition.topic) for partition in self.offsets}
        self.topic_ids = {} if ZERO_UUID in ids.values() else ids

    def request(self, version: int) -> txn_offset_commit.TxnOffsetCommitRequest:  # noqa: ARG002 - the same in all
        """Build the request; versions below 3 cannot name the member, so encoding fails."""
        return txn_offset_commit.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.group_metadata.group_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            generation_id_or_member_epoch=self.group_metadata.generation_id,
            member_id=self.group_metadata.member_id,
            group_instance_id=self.group_metadata.group_instance_id,
            topics=tuple(
                txn_offset_commit.TxnOffsetCommitRequestTopic(
                    name=topic,
                    topic_id=self.topic_ids.get(topic, ZERO_UUID),
                    partitions=tuple(
                        txn_offset_commit.TxnOffsetCommitRequestPartition(
                            partition_index=topic_partition.partition,
                            committed_offset=self.offsets[topic_partition].offset,
                            committed_leader_epoch=self.offsets[topic_partition].leader_epoch,
                            committed_metadata=self.offsets[topic_partition].metadata,
                        )
                        for topic_partition in partitions
                    ),
                )
                for topic, partitions in _by_topic(self.offsets).items()
            ),
        )

    def verdict(self, response: txn_offset_commit.TxnOffsetCommitResponse) -> Verdict:
        """Return the worst of the partitions' verdicts; remove the offsets that were accepted."""
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        answered = {
            TopicPartition(
                topic.name or names.get(topic.topic_id, ""), partition.partition_index
            ): partition.error_code
            for topic in response.topics
            for partition in topic.partitions
        }
        group = self.group_metadata.group_id
        verdicts = {
            partition: self._judge(
                answered.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR),
                f"could not commit the offset of {partition} for group {group!r}",
            )
            for partition in sorted(self.offsets)
        }
        for partition, verdict in verdicts.items():
            if verdict.action is TxnAction.DONE:
                del self.offsets[partition]
        return _worst(verdicts.values())


@dataclass(slots=True, eq=False, kw_only=True)
class EndTxnHandler(RequestOfTransaction[end_txn.EndTxnResponse]):
    """The request that commits or aborts the transaction."""

    api_key = ApiKey.END_TXN
    is_end_txn = True
    priority = TxnRequestPriority.END_TXN

    committed: bool
    is_transaction_v2: bool

    @property
    def max_version(self) -> int | None:
        """From version 5 on the answer contains the next epoch, as TV2 requires."""
        return None if self.is_transaction_v2 else end_txn.LAST_VERSION_WITHOUT_EPOCH_BUMP

    def request(self, version: int) -> end_txn.EndTxnRequest:  # noqa: ARG002 - the same in all
        """Build the request to commit or abort."""
        return end_txn.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            committed=self.committed,
        )

    def verdict(self, response: end_txn.EndTxnResponse) -> Verdict:
        """Convert the answer into a verdict; some codes mean something else for an abort."""
        action = txn_action(self.api_key, response.error_code, is_abort=not self.committed)
        verb = "commit" if self.committed else "abort"
        context = f"could not {verb} the transaction of {self.transactional_id!r}"
        return Verdict(action, response.error_code, context)


class TransactionRequestQueue:
    """The requests that wait, in sending order, and the coordinators found so far.

    The order is by priority, and first in first out per priority.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[TxnRequestPriority, int, TxnRequestHandler]] = []
        self._numbers = itertools.count()
        self._coordinators: dict[tuple[find_coordinator.CoordinatorType, str], Node] = {}

    def put(self, handler: TxnRequestHandler) -> None:
        """Add a request to the queue; one that is put back gets its old place."""
        if handler.number is None:
            handler.number = next(self._numbers)
        heapq.heappush(self._heap, (handler.priority, handler.number, handler))

    def peek(self) -> TxnRequestHandler | None:
        """Return the next request without removing it; None if there is none."""
        return self._heap[0][-1] if self._heap else None

    def pop(self) -> TxnRequestHandler:
        """Remove and return the next request."""
        return heapq.heappop(self._heap)[-1]

    def drain(self) -> list[TxnRequestHandler]:
        """Remove and return all requests, in order."""
        return [self.pop() for _ in range(len(self._heap))]

    def holds(self, kind: type[TxnRequestHandler]) -> bool:
        """Return whether a request of this kind is waiting."""
        return any(isinstance(handler, kind) for _, _, handler in self._heap)

    def remove(self, matches: Callable[[TxnRequestHandler], bool]) -> list[TxnRequestHandler]:
        """Remove and return the matching requests, in no particular order."""
        removed = [entry for entry in self._heap if matches(entry[-1])]
        if removed:
            self._heap = [entry for entry in self._heap if not matches(entry[-1])]
            heapq.heapify(self._heap)
        return [handler for _, _, handler in removed]

    def drop_unsent_offsets(self) -> None:
        """Drop offset requests: an abort must not wait for an unreachable group coordinator.

        Requests that a broker may have seen must be answered first: they must not arrive after the
        end of the transaction.
        """
        for handler in self.remove(_is_unsent_offsets):
            handler.result.fail(
                TransactionAbortedError(
                    "the offsets were not sent because the transaction was aborted"
                )
            )
        if not self.holds(TxnOffsetCommitHandler):
            self.remove(
                lambda handler: (
                    isinstance(handler, FindCoordinatorHandler)
                    and handler.key_type == find_coordinator.CoordinatorType.GROUP
                )
            )

    # --- coordinators

    def coordinator(self, handler: TxnRequestHandler) -> Node | None:
        """Return the coordinator that a request goes to, if it is known."""
        kind = handler.coordinator_type
        return None if kind is None else self._coordinators.get((kind, handler.coordinator_key))

    def found(self, handler: FindCoordinatorHandler, node: Node) -> None:
        """Store the coordinator of a key."""
        self._coordinators[handler.key_type, handler.key] = node

    def lookup(self, handler: TxnRequestHandler) -> None:
        """Look up a request's coordinator again, with one request however many need it."""
        kind, key = handler.coordinator_type, handler.coordinator_key
        if kind is None:
            return
        self._coordinators.pop((kind, key), None)
        pending = {
            (waiting.key_type, waiting.key)
            for _, _, waiting in self._heap
            if isinstance(waiting, FindCoordinatorHandler)
        }
        if (kind, key) not in pending:
            result = TransactionalRequestResult("FindCoordinator")
            self.put(FindCoordinatorHandler(result=result, key_type=kind, key=key))


def _is_unsent_offsets(handler: TxnRequestHandler) -> bool:
    is_offsets = isinstance(handler, AddOffsetsToTxnHandler | TxnOffsetCommitHandler)
    return is_offsets and not handler.was_sent


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=lambda verdict: verdict.action, default=Verdict(TxnAction.DONE))


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition)
    return topics
