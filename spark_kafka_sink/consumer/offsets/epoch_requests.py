"""OffsetForLeaderEpoch: whether leaders still have what was read before the positions (KIP-320).

`complete_validation` applies the answer of one leader to the positions. Any error but a missing
right is retried, with new metadata, since the leader may have changed.

Source: OffsetsForLeaderEpochUtils, and OffsetFetcherUtils from
onSuccessfulResponseForValidatingPositions on.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.errors import LogTruncationError
from spark_kafka_sink.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_kafka_sink.consumer.subscription.partition_state import FetchPosition, LogTruncation
    from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
    from spark_kafka_sink.errors import BrokerError
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
    from spark_kafka_sink.protocol.messages.offset_for_leader_epoch import (
        OffsetForLeaderEpochResponse,
    )

#: The first version that needs only the right to DESCRIBE the topics.
_USABLE_VERSION: Final = 3
_CONSUMER: Final = -1
_ADVICE: Final = "Grant this user DESCRIBE on the topic"


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
    """What the response of one leader says about the requested partitions."""

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
        _ADVICE,
    )
