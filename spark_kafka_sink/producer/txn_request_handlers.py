"""The requests of a producer's id and transactions: how each is asked, and what its answer means.

Java's TxnRequestHandler and its kinds, as pure data: a handler makes a request in the version that
the connection has, and reads an answer into a verdict by the table of `error_rules`. What follows
from the verdict is TransactionManager's business, sending the Sender's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from spark_kafka_sink.model import (
    NO_PRODUCER_ID_AND_EPOCH,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from spark_kafka_sink.producer.error_rules import TxnAction, txn_action
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    LAST_CLIENT_VERSION,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from spark_kafka_sink.protocol.messages.end_txn import (
    LAST_VERSION_WITHOUT_EPOCH_BUMP,
    EndTxnRequest,
)
from spark_kafka_sink.protocol.messages.find_coordinator import (
    CoordinatorType,
    FindCoordinatorRequest,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_kafka_sink.producer.transactional_request_result import TransactionalRequestResult
    from spark_kafka_sink.protocol.messages.find_coordinator import Coordinator
    from spark_kafka_sink.protocol.schema import ApiMessage

#: From this version on FindCoordinator asks for a list of keys (KIP-699).
FIRST_VERSION_WITH_KEYS = 4
#: The last TxnOffsetCommit that does not add the group to the transaction (KIP-890).
LAST_OFFSET_COMMIT_WITHOUT_ADD = 4
#: What brokers ignore unless a transaction is asked for.
NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1


class TxnRequestPriority(IntEnum):
    """Which request goes first.

    The end of a transaction goes after all that belongs to it; a new epoch after that end.
    """

    FIND_COORDINATOR = 0
    INIT_PRODUCER_ID = 1
    ADD_PARTITIONS_OR_OFFSETS = 2
    END_TXN = 3
    EPOCH_BUMP = 4


class Verdict(NamedTuple):
    """What an answer means: what to do, by which code, and of what it was said."""

    action: TxnAction
    code: int = ErrorCode.NONE
    context: str = ""


@dataclass(slots=True, eq=False, kw_only=True)
class TxnRequestHandler(ABC):
    """One request, until it has its answer; retries included."""

    api_key: ClassVar[ApiKey]
    is_end_txn: ClassVar[bool] = False

    result: TransactionalRequestResult
    #: How often it was sent in vain.
    attempts: int = 0
    #: Its place among those of its priority, once it has waited for its turn.
    number: int | None = None
    #: Whether a broker may have seen it.
    was_sent: bool = False
    #: Seconds before the next try, where the answer asks for another time than the back-off.
    retry_delay: float | None = None

    @property
    @abstractmethod
    def priority(self) -> TxnRequestPriority:
        """Which requests it may overtake."""

    @property
    def coordinator_type(self) -> CoordinatorType | None:
        """Whose coordinator is asked; None: any broker."""
        return CoordinatorType.TRANSACTION

    @property
    @abstractmethod
    def coordinator_key(self) -> str:
        """What the coordinator is found by."""

    @property
    def max_version(self) -> int | None:
        """The highest version that means what is meant; None: any."""
        return None

    @abstractmethod
    def request(self, version: int) -> ApiMessage:
        """Make the request."""

    @abstractmethod
    def verdict(self, response: Any) -> Verdict:
        """Read the answer."""

    def _judge(self, code: int, context: str) -> Verdict:
        return Verdict(txn_action(self.api_key, code), code, context)


@dataclass(slots=True, eq=False, kw_only=True)
class FindCoordinatorHandler(TxnRequestHandler):
    """Asks which broker looks after a transactional id or a group."""

    api_key = ApiKey.FIND_COORDINATOR

    key_type: CoordinatorType
    key: str

    @property
    def priority(self) -> TxnRequestPriority:
        """Nothing can be asked before the coordinator is known."""
        return TxnRequestPriority.FIND_COORDINATOR

    @property
    def coordinator_type(self) -> CoordinatorType | None:
        """Any broker knows."""
        return None

    @property
    def coordinator_key(self) -> str:
        """What is asked about."""
        return self.key

    def request(self, version: int) -> FindCoordinatorRequest:
        """Ask for one key, in either of the two forms."""
        if version >= FIRST_VERSION_WITH_KEYS:
            return FindCoordinatorRequest(key_type=self.key_type, coordinator_keys=(self.key,))
        return FindCoordinatorRequest(key_type=self.key_type, key=self.key)

    def coordinator(self, response: Any) -> Coordinator | Any:
        """Find the answer, in either of the two forms; None where there is not exactly one."""
        if not response.coordinators:
            return response
        return response.coordinators[0] if len(response.coordinators) == 1 else None

    def verdict(self, response: Any) -> Verdict:
        """Read the answer for the one key."""
        answer = self.coordinator(response)
        kind = "transactional.id" if self.key_type is CoordinatorType.TRANSACTION else "group"
        context = f"finding the coordinator of {kind} {self.key!r}"
        if answer is None:
            return Verdict(TxnAction.FATAL, ErrorCode.UNKNOWN_SERVER_ERROR, context)
        return self._judge(answer.error_code, context)


@dataclass(slots=True, eq=False, kw_only=True)
class InitProducerIdHandler(TxnRequestHandler):
    """Asks for an id, or for a new epoch of the one there is (KIP-360)."""

    api_key = ApiKey.INIT_PRODUCER_ID

    transactional_id: str | None
    transaction_timeout_ms: int = NO_TRANSACTION_TIMEOUT_MS
    producer: ProducerIdAndEpoch = NO_PRODUCER_ID_AND_EPOCH

    @property
    def is_epoch_bump(self) -> bool:
        """Whether the id is kept."""
        return self.producer.is_valid

    @property
    def priority(self) -> TxnRequestPriority:
        """Before all that needs an id; a new epoch after the end of the old one's transaction."""
        if self.is_epoch_bump:
            return TxnRequestPriority.EPOCH_BUMP
        return TxnRequestPriority.INIT_PRODUCER_ID

    @property
    def coordinator_type(self) -> CoordinatorType | None:
        """Any broker gives an id to a producer without transactions."""
        return None if self.transactional_id is None else CoordinatorType.TRANSACTION

    @property
    def coordinator_key(self) -> str:
        """The transactional id, if there is one."""
        return self.transactional_id or ""

    def request(self, version: int) -> InitProducerIdRequest:  # noqa: ARG002 - the same in all
        """Ask; a version below 3 cannot say which id is to be kept, and is refused then."""
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.transaction_timeout_ms,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
        )

    def verdict(self, response: Any) -> Verdict:
        """Read the answer."""
        context = (
            "a broker gave no producer id (enable.idempotence=true needs one)"
            if self.transactional_id is None
            else f"initializing transactional.id {self.transactional_id!r}"
        )
        return self._judge(response.error_code, context)


@dataclass(slots=True, eq=False, kw_only=True)
class RequestOfTransaction(TxnRequestHandler):
    """What belongs to a transaction, and goes to its coordinator before its end."""

    transactional_id: str
    producer: ProducerIdAndEpoch

    @property
    def priority(self) -> TxnRequestPriority:
        """Before the transaction's end."""
        return TxnRequestPriority.ADD_PARTITIONS_OR_OFFSETS

    @property
    def coordinator_key(self) -> str:
        """The transactional id."""
        return self.transactional_id


@dataclass(slots=True, eq=False, kw_only=True)
class AddPartitionsToTxnHandler(RequestOfTransaction):
    """Adds partitions to the transaction, where Produce does not do it by itself."""

    api_key = ApiKey.ADD_PARTITIONS_TO_TXN

    partitions: frozenset[TopicPartition]

    @property
    def max_version(self) -> int:
        """Higher versions are for brokers."""
        return LAST_CLIENT_VERSION

    def request(self, version: int) -> AddPartitionsToTxnRequest:  # noqa: ARG002 - the same in all
        """Name the partitions, sorted: the same set is the same request."""
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer.producer_id,
            v3_and_below_producer_epoch=self.producer.epoch,
            v3_and_below_topics=tuple(
                AddPartitionsToTxnTopic(
                    name=topic, partitions=tuple(each.partition for each in partitions)
                )
                for topic, partitions in _by_topic(self.partitions).items()
            ),
        )

    def verdict(self, response: Any) -> Verdict:
        """Take the worst of the partitions' answers; a partition without one is refused."""
        answered = {
            TopicPartition(topic.name, partition.partition_index): partition.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for partition in topic.results_by_partition
        }
        return _worst(
            self._judge(
                answered.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR),
                f"adding {partition} to the transaction of {self.transactional_id!r}",
            )
            for partition in sorted(self.partitions)
        )


@dataclass(slots=True, eq=False, kw_only=True)
class AddOffsetsToTxnHandler(RequestOfTransaction):
    """Adds a consumer group to the transaction, where TxnOffsetCommit does not do it by itself."""

    api_key = ApiKey.ADD_OFFSETS_TO_TXN

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    group_metadata: ConsumerGroupMetadata

    def request(self, version: int) -> AddOffsetsToTxnRequest:  # noqa: ARG002 - the same in all
        """Name the group."""
        return AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            group_id=self.group_metadata.group_id,
        )

    def verdict(self, response: Any) -> Verdict:
        """Read the answer."""
        group = self.group_metadata.group_id
        return self._judge(response.error_code, f"adding group {group!r} to the transaction")


@dataclass(slots=True, eq=False, kw_only=True)
class TxnOffsetCommitHandler(RequestOfTransaction):
    """Hands a group's offsets to its coordinator, to be committed with the transaction."""

    api_key = ApiKey.TXN_OFFSET_COMMIT

    group_metadata: ConsumerGroupMetadata
    is_transaction_v2: bool
    #: Those that have not been taken yet.
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)

    @property
    def coordinator_type(self) -> CoordinatorType:
        """The group's own."""
        return CoordinatorType.GROUP

    @property
    def coordinator_key(self) -> str:
        """The group."""
        return self.group_metadata.group_id

    @property
    def max_version(self) -> int | None:
        """From version 5 on the group is added to the transaction too: that is TV2."""
        return None if self.is_transaction_v2 else LAST_OFFSET_COMMIT_WITHOUT_ADD

    def request(self, version: int) -> TxnOffsetCommitRequest:  # noqa: ARG002 - the same in all
        """Name the offsets; a version below 3 cannot name the member, and is refused then."""
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.group_metadata.group_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            generation_id=self.group_metadata.generation_id,
            member_id=self.group_metadata.member_id,
            group_instance_id=self.group_metadata.group_instance_id,
            topics=tuple(
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=tuple(
                        TxnOffsetCommitRequestPartition(
                            partition_index=each.partition,
                            committed_offset=self.offsets[each].offset,
                            committed_leader_epoch=self.offsets[each].leader_epoch,
                            committed_metadata=self.offsets[each].metadata,
                        )
                        for each in partitions
                    ),
                )
                for topic, partitions in _by_topic(self.offsets).items()
            ),
        )

    def verdict(self, response: Any) -> Verdict:
        """Take the worst of the partitions' answers, and ask no more for those that are in."""
        answered = {
            TopicPartition(topic.name, partition.partition_index): partition.error_code
            for topic in response.topics
            for partition in topic.partitions
        }
        group = self.group_metadata.group_id
        verdicts = {
            partition: self._judge(
                answered.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR),
                f"committing the offset of {partition} for group {group!r}",
            )
            for partition in sorted(self.offsets)
        }
        for partition, verdict in verdicts.items():
            if verdict.action is TxnAction.DONE:
                del self.offsets[partition]
        return _worst(verdicts.values())


@dataclass(slots=True, eq=False, kw_only=True)
class EndTxnHandler(RequestOfTransaction):
    """Commits or aborts."""

    api_key = ApiKey.END_TXN
    is_end_txn = True

    committed: bool
    is_transaction_v2: bool

    @property
    def priority(self) -> TxnRequestPriority:
        """After all that belongs to the transaction."""
        return TxnRequestPriority.END_TXN

    @property
    def max_version(self) -> int | None:
        """From version 5 on the answer brings the next epoch: that is TV2."""
        return None if self.is_transaction_v2 else LAST_VERSION_WITHOUT_EPOCH_BUMP

    def request(self, version: int) -> EndTxnRequest:  # noqa: ARG002 - the same in all
        """Say how it ends."""
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            committed=self.committed,
        )

    def verdict(self, response: Any) -> Verdict:
        """Read the answer; to an abort some codes mean something else than to a commit."""
        action = txn_action(self.api_key, response.error_code, is_abort=not self.committed)
        verb = "committing" if self.committed else "aborting"
        context = f"{verb} the transaction of {self.transactional_id!r}"
        return Verdict(action, response.error_code, context)


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=lambda verdict: verdict.action, default=Verdict(TxnAction.DONE))


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition)
    return topics
