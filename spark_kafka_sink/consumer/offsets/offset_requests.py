"""Requests about offsets, one for each broker, and their responses.

An error of one partition does not affect the others. It is retried, with new metadata, if Kafka
calls it retriable (OffsetFetcherUtils.handleListOffsetResponse), and final otherwise.

OffsetForLeaderEpoch asks whether leaders still have what was read before the positions (KIP-320).
Any error but a missing right is retried, with new metadata, since the leader may have changed.

Source: OffsetsForLeaderEpochUtils, and OffsetFetcherUtils from
onSuccessfulResponseForValidatingPositions on.
"""

from __future__ import annotations

from collections import defaultdict
from enum import Enum, auto
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from spark_kafka_sink.errors import BrokerError, DecodeError, KafkaError, LogTruncationError
from spark_kafka_sink.model import (
    NO_LEADER_EPOCH,
    UNKNOWN_OFFSET,
    Node,
    OffsetAndMetadata,
    TopicPartition,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.group_offsets import commit_codes, commit_topics
from spark_kafka_sink.protocol.messages.find_coordinator import (
    CoordinatorType,
    FindCoordinatorRequest,
)
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitRequest
from spark_kafka_sink.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping

    from spark_kafka_sink.consumer.subscription.partition_state import FetchPosition, LogTruncation
    from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
    from spark_kafka_sink.network.metadata import MetadataSnapshot
    from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorResponse
    from spark_kafka_sink.protocol.messages.list_offsets import ListOffsetsResponse
    from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitResponse

T = TypeVar("T")

_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1
#: The first FindCoordinator version that accepts several keys.
COORDINATOR_KEYS_VERSION: Final = 4
_ADVICE: Final[Mapping[int, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Grant this user DESCRIBE and READ on the topic",
}


#: The questions to one broker: the partitions of each topic, with their timestamps.
Questions: TypeAlias = dict[str, list[ListOffsetsPartition]]


class OffsetAnswers(NamedTuple):
    """The answers of one broker."""

    #: None where no record has the timestamp or a later one.
    found: dict[TopicPartition, int | None]
    failed: dict[TopicPartition, BrokerError]
    #: The leader epochs of the found offsets: of a latest offset, that of the leader.
    epochs: dict[TopicPartition, int]


class FoundOffset(NamedTuple):
    """An offset, None if no record has the timestamp or a later one, and its leader epoch."""

    offset: int | None
    #: `NO_LEADER_EPOCH` if the broker does not know it (before 2.1).
    leader_epoch: int


def by_leader(
    timestamps: Mapping[TopicPartition, int], snapshot: MetadataSnapshot
) -> tuple[dict[Node, Questions], list[TopicPartition]]:
    """Group questions by the leaders of their partitions; return also those without a leader.

    A timestamp may be one of the special ones.
    """
    groups: defaultdict[int, Questions] = defaultdict(lambda: defaultdict(list))
    leaderless = []
    nodes = snapshot.nodes
    for topic_partition, timestamp in timestamps.items():
        known = snapshot.partition(topic_partition)
        if known is None or known.leader_id not in nodes:
            leaderless.append(topic_partition)
        else:
            question = _question(topic_partition.partition, known.leader_epoch, timestamp)
            groups[known.leader_id][topic_partition.topic].append(question)
    return {nodes[node_id]: questions for node_id, questions in groups.items()}, leaderless


# A stream asks the same before each micro-batch.
@lru_cache(maxsize=10_000)
def _question(partition: int, leader_epoch: int, timestamp: int) -> ListOffsetsPartition:
    return ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=leader_epoch, timestamp=timestamp
    )


def list_offsets_request(
    questions: Questions, *, is_committed: bool, timeout_ms: int
) -> ListOffsetsRequest:
    """Build the request for one broker; "latest" is the last stable offset if `is_committed`."""
    return ListOffsetsRequest(
        isolation_level=_READ_COMMITTED if is_committed else _READ_UNCOMMITTED,
        topics=tuple(
            ListOffsetsTopic(name=name, partitions=tuple(partitions))
            for name, partitions in questions.items()
        ),
        timeout_ms=timeout_ms,
    )


def only_requested(
    answers: Iterable[tuple[TopicPartition, T]], requested: Container[TopicPartition]
) -> Iterator[tuple[TopicPartition, T]]:
    """Return the answers about requested partitions; a response may be about others, too."""
    return ((partition, answer) for partition, answer in answers if partition in requested)


def read_offsets(
    response: ListOffsetsResponse, node: Node, requested: Container[TopicPartition]
) -> OffsetAnswers:
    """Return the requested offsets in a response, and the errors of other partitions."""
    answers = OffsetAnswers({}, {}, {})
    for topic in response.topics:
        for topic_partition, partition in only_requested(
            (
                (TopicPartition(topic.name, partition.partition_index), partition)
                for partition in topic.partitions
            ),
            requested,
        ):
            code = partition.error_code
            if code:
                what = f"{topic_partition}: ListOffsets at {node}"
                answers.failed[topic_partition] = broker_error(code, what, _ADVICE.get(code))
            else:
                offset = partition.offset
                answers.found[topic_partition] = None if offset == UNKNOWN_OFFSET else offset
                answers.epochs[topic_partition] = partition.leader_epoch
    return answers


def find_coordinator_request(group_id: str, version: int) -> FindCoordinatorRequest:
    """Build the request for the coordinator of a group."""
    if version < COORDINATOR_KEYS_VERSION:
        return FindCoordinatorRequest(key=group_id, key_type=CoordinatorType.GROUP)
    return FindCoordinatorRequest(key_type=CoordinatorType.GROUP, coordinator_keys=(group_id,))


def found_coordinator(response: FindCoordinatorResponse) -> tuple[int, Node]:
    """Return the error code and the node of the only coordinator."""
    answer = response.coordinators[0] if response.coordinators else response
    return answer.error_code, Node(answer.node_id, answer.host, answer.port)


def commit_request(group_id: str, offsets: Mapping[TopicPartition, int]) -> OffsetCommitRequest:
    """Build the request that commits offsets of a group from outside the group.

    Kafka accepts them as long as the group has no members, and creates a group that does not exist.
    """
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=commit_topics(
            {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        ),
    )


def refused_commits(
    response: OffsetCommitResponse, group_id: str, requested: Collection[TopicPartition]
) -> dict[TopicPartition, KafkaError]:
    """Return the requested partitions whose offsets were refused, or not answered, and why."""
    codes = dict(only_requested(commit_codes(response), requested))
    refusals: dict[TopicPartition, KafkaError] = {
        partition: broker_error(code, f"OffsetCommit of group {group_id!r} for {partition}")
        for partition, code in codes.items()
        if code
    }
    missing = missing_answer(group_id, codes, requested)
    if missing is not None:
        refusals.update(dict.fromkeys(set(requested) - codes.keys(), missing))
    return refusals


def missing_answer(
    group_id: str, answered: Container[TopicPartition], requested: Iterable[TopicPartition]
) -> DecodeError | None:
    """Return the error of an OffsetCommit response without a partition that was requested.

    Java's consumer takes such an offset for committed.
    """
    missing = sorted(partition for partition in requested if partition not in answered)
    if not missing:
        return None
    others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return DecodeError(
        f"OffsetCommit of group {group_id!r}: the coordinator's answer lacks {missing[0]}{others}, "
        "so whether the offset was committed is not known"
    )


#: The first version that needs only the right to DESCRIBE the topics.
_USABLE_VERSION: Final = 3
_CONSUMER: Final = -1
_DESCRIBE_ADVICE: Final = "Grant this user DESCRIBE on the topic"


class EpochAction(Enum):
    """The reaction to the error code of a partition."""

    #: There is no error.
    DONE = auto()
    #: Ask the leader that new metadata names, after a back-off.
    RETRY = auto()
    #: The next `poll` raises the error, which names all topics with it.
    UNAUTHORIZED_TOPIC = auto()


_E = ErrorCode

EPOCH_RULES: Mapping[int, EpochAction] = {
    _E.NONE: EpochAction.DONE,
    _E.NOT_LEADER_OR_FOLLOWER: EpochAction.RETRY,
    _E.REPLICA_NOT_AVAILABLE: EpochAction.RETRY,
    _E.KAFKA_STORAGE_ERROR: EpochAction.RETRY,
    # The new leader's high watermark may be behind for a moment.
    _E.OFFSET_NOT_AVAILABLE: EpochAction.RETRY,
    _E.LEADER_NOT_AVAILABLE: EpochAction.RETRY,
    # The metadata of one side are behind those of the other.
    _E.FENCED_LEADER_EPOCH: EpochAction.RETRY,
    _E.UNKNOWN_LEADER_EPOCH: EpochAction.RETRY,
    _E.UNKNOWN_TOPIC_OR_PARTITION: EpochAction.RETRY,
    _E.TOPIC_AUTHORIZATION_FAILED: EpochAction.UNAUTHORIZED_TOPIC,
}


class EpochEnd(NamedTuple):
    """Where the log of an epoch ends; both are -1 if the leader knows no such epoch."""

    end_offset: int
    #: The largest epoch of the log that is not above the requested one.
    epoch: int


class EpochAnswers(NamedTuple):
    """The response of one leader about the requested partitions."""

    found: dict[TopicPartition, EpochEnd]
    #: Those with an error that may pass, and those that the response leaves out.
    retried: tuple[TopicPartition, ...]
    #: The topics that this user may not describe, sorted.
    unauthorized: tuple[str, ...]


def epoch_action(code: int) -> EpochAction:
    """Return the action for an error code; what is not in the table is retried, as in Java."""
    return EPOCH_RULES.get(code, EpochAction.RETRY)


def supports_validation(versions: NodeApiVersions) -> bool:
    """Return whether a broker can validate positions; those at an older one are taken as valid.

    Older versions need a right on the whole cluster, which a consumer rarely has.

    Source: OffsetFetcherUtils.hasUsableOffsetForLeaderEpochVersion.
    """
    _, highest = versions.versions.get(ApiKey.OFFSET_FOR_LEADER_EPOCH, (0, 0))
    return highest >= _USABLE_VERSION


def positions_by_leader(
    positions: Mapping[TopicPartition, FetchPosition],
) -> dict[Node, dict[TopicPartition, FetchPosition]]:
    """Group positions by the leaders that are to confirm them; those without one are left out."""
    groups: dict[Node, dict[TopicPartition, FetchPosition]] = {}
    for partition, position in positions.items():
        if position.current_leader.leader is not None:
            groups.setdefault(position.current_leader.leader, {})[partition] = position
    return groups


def epoch_request(
    positions: Mapping[TopicPartition, FetchPosition],
) -> OffsetForLeaderEpochRequest:
    """Build the request for one leader; positions without an epoch are left out."""
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for (topic, partition), position in positions.items():
        if position.offset_epoch != NO_LEADER_EPOCH:
            topics.setdefault(topic, []).append(
                OffsetForLeaderPartition(
                    partition=partition,
                    current_leader_epoch=position.current_leader.epoch,
                    leader_epoch=position.offset_epoch,
                )
            )
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER,
        topics=tuple(
            OffsetForLeaderTopic(topic=topic, partitions=tuple(partitions))
            for topic, partitions in topics.items()
        ),
    )


def read_epochs(
    response: OffsetForLeaderEpochResponse, requested: Iterable[TopicPartition]
) -> EpochAnswers:
    """Return what a response says about the requested partitions, and about no others."""
    retried = dict.fromkeys(requested)
    ends: dict[TopicPartition, EpochEnd] = {}
    unauthorized: set[str] = set()
    for topic in response.topics:
        for end in topic.partitions:
            partition = TopicPartition(topic.topic, end.partition)
            action = epoch_action(end.error_code)
            if partition not in retried or action is EpochAction.RETRY:
                continue
            del retried[partition]
            if action is EpochAction.DONE:
                ends[partition] = EpochEnd(end.end_offset, end.leader_epoch)
            else:
                unauthorized.add(partition.topic)
    return EpochAnswers(ends, tuple(retried), tuple(sorted(unauthorized)))


def complete_validation(
    state: SubscriptionState,
    requested: Mapping[TopicPartition, FetchPosition],
    answers: EpochAnswers,
    retry_at: float,
) -> list[LogTruncation]:
    """Apply the answers of one leader to the positions.

    Partitions without an answer are asked about again at `retry_at`, in seconds, with metadata that
    the caller requests. Return the truncations that no reset resolves; `truncation_error` makes an
    error of them.
    """
    undecided = [partition for partition in requested if partition not in answers.found]
    state.set_next_allowed_retry(undecided, retry_at)
    truncations = [
        state.maybe_complete_validation(
            partition, requested[partition], end_offset=end.end_offset, epoch=end.epoch
        )
        for partition, end in answers.found.items()
    ]
    return [truncation for truncation in truncations if truncation is not None]


def truncation_error(truncations: Iterable[LogTruncation]) -> LogTruncationError:
    """Return the error that the next `poll` raises."""
    offsets, divergent_offsets = {}, {}
    for truncation in truncations:
        offsets[truncation.topic_partition] = truncation.position.offset
        if truncation.divergent_offset is not None:
            divergent_offsets[truncation.topic_partition] = truncation.divergent_offset
    return LogTruncationError(offsets, divergent_offsets)


def unauthorized_error(topics: Iterable[str]) -> BrokerError:
    """Return the error that the next `poll` raises for topics that this user may not describe."""
    return broker_error(
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        f"OffsetForLeaderEpoch for {', '.join(map(repr, topics))}",
        _DESCRIBE_ADVICE,
    )
