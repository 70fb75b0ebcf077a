"""Fetch requests of a session, for many partitions, and their responses."""

from __future__ import annotations

from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.consumer.fetching.fetch_requests import (
    LAST_VERSION_WITH_NAMES,
    named_leader,
)
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import (
    FINAL_EPOCH,
    MAX_INT32,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
    from spark_kafka_sink.protocol.messages.fetch import FetchResponse, PartitionData

#: The epoch of a request that opens a session.
INITIAL_EPOCH: Final = 0
_NONE: Final[Mapping[TopicPartition, UUID]] = MappingProxyType({})
#: The first version with `last_fetched_epoch`.
_FIRST_VERSION_WITH_LAST_EPOCH: Final = 12
_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1
#: The errors with which a broker names the leader that it knows (KIP-951).
_OTHER_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class PartitionToFetch(NamedTuple):
    """What a session knows of a partition (FetchRequest.PartitionData)."""

    #: `ZERO_UUID` if it is not known.
    topic_id: UUID
    #: The first offset to read.
    offset: int
    #: The epoch of the leader as the metadata name it; `NO_LEADER_EPOCH` if it is not known.
    leader_epoch: int
    #: The epoch of the record before `offset`, by which the broker detects that its log was
    #: truncated (KIP-595); `NO_LEADER_EPOCH` to leave that out.
    last_fetched_epoch: int = NO_LEADER_EPOCH
    #: max.partition.fetch.bytes.
    max_bytes: int = MAX_INT32


class SessionRequest(NamedTuple):
    """What the next Fetch has to say (FetchSessionHandler.FetchRequestData)."""

    session_id: int
    session_epoch: int
    #: The partitions to list, in this order: all of them if the request is full.
    to_send: Mapping[TopicPartition, PartitionToFetch]
    #: The partitions to remove from the session, with their topic ids.
    to_forget: Mapping[TopicPartition, UUID] = _NONE
    #: Partitions of topics that were deleted and created again, with the topic ids by which the
    #: broker knows them. They are in `to_send`, too. Empty if the request names topics.
    to_replace: Mapping[TopicPartition, UUID] = _NONE
    #: All partitions of the session, listed or not: the response may be about any of them.
    partitions: Mapping[TopicPartition, PartitionToFetch] = MappingProxyType({})
    #: The topics of `partitions` by their ids; empty if the request names topics.
    topic_names: Mapping[UUID, str] = MappingProxyType({})
    #: Whether the request identifies topics by their ids, which is from version 13 on.
    uses_topic_ids: bool = False

    @property
    def is_full(self) -> bool:
        """Whether the request lists all partitions, so that it does not continue a session."""
        return self.session_epoch in {INITIAL_EPOCH, FINAL_EPOCH}


def has_topic_ids(versions: NodeApiVersions) -> bool:
    """Return whether a broker identifies topics by their ids in Fetch (KIP-516).

    Raise UnsupportedVersionError if the broker has no version in common with this client.
    """
    return versions.version_for(ApiKey.FETCH) > LAST_VERSION_WITH_NAMES


def build_fetch(
    session_request: SessionRequest,
    versions: NodeApiVersions,
    *,
    is_committed: bool,
    max_bytes: int,
    min_bytes: int,
    max_wait_ms: int,
    rack: str,
) -> tuple[FetchRequest, int]:
    """Build the request of a session; return it with the highest version in which to send it.

    `is_committed` is isolation.level=read_committed, `max_bytes` is fetch.max.bytes, `min_bytes` is
    fetch.min.bytes, `max_wait_ms` is fetch.max.wait.ms and `rack` is client.rack, empty for none.
    Partitions of one topic that follow each other are listed together. Raise
    UnsupportedVersionError if the broker has no version in common with this client.

    Source: FetchRequest.Builder and AbstractFetch.createFetchRequest.
    """
    highest = FetchRequest.versions.max
    if not session_request.uses_topic_ids:
        highest = LAST_VERSION_WITH_NAMES
    version = versions.version_for(ApiKey.FETCH, highest)
    has_last_epoch = version >= _FIRST_VERSION_WITH_LAST_EPOCH
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=_READ_COMMITTED if is_committed else _READ_UNCOMMITTED,
        session_id=session_request.session_id,
        session_epoch=session_request.session_epoch,
        topics=tuple(
            FetchTopic(
                topic=topic,
                topic_id=topic_id,
                partitions=tuple(
                    FetchPartition(
                        partition=partition.partition,
                        current_leader_epoch=wanted.leader_epoch,
                        fetch_offset=wanted.offset,
                        last_fetched_epoch=wanted.last_fetched_epoch
                        if has_last_epoch
                        else NO_LEADER_EPOCH,
                        partition_max_bytes=wanted.max_bytes,
                    )
                    for partition, wanted in partitions
                ),
            )
            for (topic, topic_id), partitions in groupby(
                session_request.to_send.items(), key=lambda item: (item[0].topic, item[1].topic_id)
            )
        ),
        forgotten_topics_data=_forgotten(session_request),
        rack_id=rack,
    )
    return request, version


def read_fetch(
    response: FetchResponse, topic_names: Mapping[UUID, str]
) -> dict[TopicPartition, PartitionData]:
    """Return what a response says about each partition, in its order.

    `topic_names` are the topics of the request by their ids. Raise DecodeError if the response has
    another topic id, or the same partition twice.
    """
    found: dict[TopicPartition, PartitionData] = {}
    for topic in response.responses:
        name = topic.topic if topic.topic_id == ZERO_UUID else topic_names.get(topic.topic_id)
        if name is None:
            raise DecodeError(f"Fetch: the response has the unknown topic id {topic.topic_id}")
        for data in topic.partitions:
            partition = TopicPartition(name, data.partition_index)
            if partition in found:
                raise DecodeError(f"Fetch: the response has {partition} twice")
            found[partition] = data
    return found


def named_leaders(
    answers: Mapping[TopicPartition, PartitionData],
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the ids and the epochs of the leaders that a response names (KIP-951).

    They are those of partitions that the broker does not lead, for Metadata.update_leaders.

    Source: AbstractFetch.handleFetchSuccess.
    """
    leaders = {
        partition: named_leader(data)
        for partition, data in answers.items()
        if data.error_code in _OTHER_LEADER
    }
    return {
        partition: leader
        for partition, leader in leaders.items()
        if leader is not None and leader[1] != NO_LEADER_EPOCH
    }


def _forgotten(session_request: SessionRequest) -> tuple[ForgottenTopic, ...]:
    by_topic: dict[tuple[str, UUID], list[int]] = {}
    for partitions in (session_request.to_forget, session_request.to_replace):
        for (topic, index), topic_id in partitions.items():
            by_topic.setdefault((topic, topic_id), []).append(index)
    return tuple(
        ForgottenTopic(topic=topic, topic_id=topic_id, partitions=tuple(indexes))
        for (topic, topic_id), indexes in by_topic.items()
    )
