"""ListOffsets and OffsetCommit requests, one for each broker, and their responses.

An error of one partition does not affect the others. It is retried, with new metadata, if Kafka
calls it retriable (OffsetFetcherUtils.handleListOffsetResponse), and final otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import UNKNOWN_OFFSET, Node, OffsetAndMetadata, TopicPartition
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

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping

    from spark_kafka_sink.errors import BrokerError, KafkaError
    from spark_kafka_sink.network.cluster.metadata import MetadataSnapshot
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


#: What one broker is asked: the partitions of each topic, with their timestamps.
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
    """Return the answers to what was requested: a response may be about other partitions, too."""
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
