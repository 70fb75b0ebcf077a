"""The committed offsets of a group: how OffsetCommit and OffsetFetch carry them in each version.

Up to version 9 both name topics; later versions have topic ids only (KIP-848). Up to version 7 the
single group of an OffsetFetch is a part of the messages themselves, later one of a list (KIP-709).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition
from spark_kafka_sink.protocol.messages import offset_commit, offset_fetch
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from uuid import UUID


#: The last versions that name topics.
LAST_COMMIT_WITH_NAMES: Final = 9
LAST_FETCH_WITH_NAMES: Final = 9
#: The first OffsetFetch version with a list of groups.
FETCH_GROUPS_VERSION: Final = 8
#: The first OffsetFetch version that can require stable offsets (KIP-447).
REQUIRE_STABLE_VERSION: Final = 7

_NO_IDS: Final[Mapping[str, UUID]] = {}
_NO_NAMES: Final[Mapping[UUID, str]] = {}


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Group partitions by their topics."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped


def commit_topics(
    offsets: Mapping[TopicPartition, OffsetAndMetadata], topic_ids: Mapping[str, UUID] = _NO_IDS
) -> tuple[offset_commit.OffsetCommitRequestTopic, ...]:
    """Return the topics of an OffsetCommit request, each by its name and by its id if known."""
    return tuple(
        offset_commit.OffsetCommitRequestTopic(
            name=topic,
            topic_id=topic_ids.get(topic, ZERO_UUID),
            partitions=tuple(
                offset_commit.OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
                for partition in partitions
                for committed in [offsets[TopicPartition(topic, partition)]]
            ),
        )
        for topic, partitions in partitions_by_topic(offsets).items()
    )


def commit_codes(
    response: offset_commit.OffsetCommitResponse, topic_names: Mapping[UUID, str] = _NO_NAMES
) -> Iterator[tuple[TopicPartition, int]]:
    """Iterate over the partitions of an OffsetCommit response and their error codes.

    Topics with an id that is not in `topic_names` are left out.
    """
    for topic in response.topics:
        name = topic.name if topic.topic_id == ZERO_UUID else topic_names.get(topic.topic_id)
        if name is not None:
            for partition in topic.partitions:
                yield TopicPartition(name, partition.partition_index), partition.error_code


def offset_fetch_request(
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    version: int,
    *,
    require_stable: bool,
    member_id: str | None = None,
    member_epoch: int = -1,
    topic_ids: Mapping[str, UUID] = _NO_IDS,
) -> offset_fetch.OffsetFetchRequest:
    """Build an OffsetFetch request for one group; without `partitions`, for all of them.

    `require_stable` is dropped before version 7, as in Java, and the member before version 9.
    Topics that are not in `topic_ids` cannot be requested after version 9.
    """
    grouped = None if partitions is None else partitions_by_topic(partitions).items()
    require_stable &= version >= REQUIRE_STABLE_VERSION
    if version < FETCH_GROUPS_VERSION:
        old = None
        if grouped is not None:
            old = tuple(
                offset_fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=tuple(indexes))
                for topic, indexes in grouped
            )
        return offset_fetch.OffsetFetchRequest(
            group_id=group_id, topics=old, require_stable=require_stable
        )
    topics = None
    if grouped is not None:
        topics = tuple(
            offset_fetch.OffsetFetchRequestTopics(
                name=topic,
                topic_id=topic_ids.get(topic, ZERO_UUID),
                partition_indexes=tuple(indexes),
            )
            for topic, indexes in grouped
        )
    group = offset_fetch.OffsetFetchRequestGroup(
        group_id=group_id, member_id=member_id, member_epoch=member_epoch, topics=topics
    )
    return offset_fetch.OffsetFetchRequest(groups=(group,), require_stable=require_stable)


def fetched_group(
    response: offset_fetch.OffsetFetchResponse, topic_names: Mapping[UUID, str] = _NO_NAMES
) -> tuple[int, dict[TopicPartition, tuple[int, OffsetAndMetadata]]]:
    """Return the error code of the group, and that of each partition with its offset.

    The offset is -1 where none is committed. Topics with an id that is not in `topic_names` are
    left out. Raises DecodeError for a response about several groups.
    """
    group: offset_fetch.OffsetFetchResponse | offset_fetch.OffsetFetchResponseGroup
    match response.groups:
        case ():
            group = response
        case (group,):
            pass
        case several:
            raise DecodeError(
                f"a response to OffsetFetch has {len(several)} groups, not the one requested"
            )
    offsets = {}
    for topic in group.topics:
        topic_id = (
            topic.topic_id
            if isinstance(topic, offset_fetch.OffsetFetchResponseTopics)
            else ZERO_UUID
        )
        name = topic.name if topic_id == ZERO_UUID else topic_names.get(topic_id)
        if name is not None:
            for partition in topic.partitions:
                committed = OffsetAndMetadata(
                    partition.committed_offset, partition.committed_leader_epoch, partition.metadata
                )
                offsets[TopicPartition(name, partition.partition_index)] = (
                    partition.error_code,
                    committed,
                )
    return group.error_code, offsets
