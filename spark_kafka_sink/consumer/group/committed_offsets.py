"""The requests that commit the offsets of a group and fetch them, and their answers.

Topics go by their ids if all of them are known, and by their names otherwise, as in Java's
CommitRequestManager: the version that names topics is then the highest that can be used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.protocol.group_offsets import (
    LAST_COMMIT_WITH_NAMES,
    LAST_FETCH_WITH_NAMES,
    commit_codes,
    commit_topics,
    fetched_group,
    offset_fetch_request,
)
from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitRequest
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from uuid import UUID

    from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
    from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitResponse
    from spark_kafka_sink.protocol.messages.offset_fetch import (
        OffsetFetchRequest,
        OffsetFetchResponse,
    )


class FetchedOffsets(NamedTuple):
    """What an OffsetFetch response says about one group."""

    #: The error of the whole group, or 0.
    error_code: int
    #: None where the group has no offset.
    offsets: dict[TopicPartition, OffsetAndMetadata | None]
    #: The error codes of the other partitions.
    errors: dict[TopicPartition, int]


def commit_request(
    member: ConsumerGroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    topic_ids: Mapping[str, UUID] | None = None,
) -> tuple[OffsetCommitRequest, int | None]:
    """Build OffsetCommit; return it with the highest version to send it in, None for any.

    `member` has the generation of a classic group, or the member epoch of a consumer group
    (KIP-848), as `generation_id`. The defaults of ConsumerGroupMetadata commit from outside the
    group, as a consumer with assigned partitions does. Raises ValueError for a negative offset.
    Encoding raises UnsupportedVersionError for a group.instance.id that the version lacks.
    """
    for partition, committed in offsets.items():
        if committed.offset < 0:
            raise ValueError(f"{partition}: an offset of {committed.offset} cannot be committed")
    topic_ids = topic_ids or {}
    request = OffsetCommitRequest(
        group_id=member.group_id,
        generation_id_or_member_epoch=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=commit_topics(offsets, topic_ids),
    )
    return request, None if _have_ids(offsets, topic_ids) else LAST_COMMIT_WITH_NAMES


def read_commit(
    response: OffsetCommitResponse, topic_names: Mapping[UUID, str] | None = None
) -> dict[TopicPartition, int]:
    """Return the error code of each partition, 0 if its offset was committed.

    `topic_names` are the names of the topics that were sent by their ids; other ids are left out.
    """
    return dict(commit_codes(response, topic_names or {}))


def highest_fetch_version(
    partitions: Iterable[TopicPartition], topic_ids: Mapping[str, UUID] | None = None
) -> int | None:
    """Return the highest OffsetFetch version that can request the partitions; None for any."""
    return None if _have_ids(partitions, topic_ids or {}) else LAST_FETCH_WITH_NAMES


def fetch_request(
    group_id: str,
    partitions: Collection[TopicPartition],
    version: int,
    *,
    member_id: str | None = None,
    member_epoch: int = -1,
    topic_ids: Mapping[str, UUID] | None = None,
    require_stable: bool = True,
) -> OffsetFetchRequest:
    """Build OffsetFetch for one group and a version, at most `highest_fetch_version`.

    Only a member of a consumer group (KIP-848) sends its id and epoch. With `require_stable`, a
    partition whose offset an open transaction may change is UNSTABLE_OFFSET_COMMIT (KIP-447);
    brokers before 2.5 return such offsets anyway.
    """
    return offset_fetch_request(
        group_id,
        partitions,
        version,
        require_stable=require_stable,
        member_id=member_id,
        member_epoch=member_epoch,
        topic_ids=topic_ids or {},
    )


def read_fetched(
    response: OffsetFetchResponse, topic_names: Mapping[UUID, str] | None = None
) -> FetchedOffsets:
    """Return the offsets of the group; a negative one means that there is none.

    `topic_names` are the names of the topics that were sent by their ids; other ids are left out.
    Raises DecodeError for a response about several groups.
    """
    error_code, fetched = fetched_group(response, topic_names or {})
    return FetchedOffsets(
        error_code,
        {
            partition: committed if committed.offset >= 0 else None
            for partition, (code, committed) in fetched.items()
            if not code
        },
        {partition: code for partition, (code, _) in fetched.items() if code},
    )


def _have_ids(partitions: Iterable[TopicPartition], topic_ids: Mapping[str, UUID]) -> bool:
    return all(topic_ids.get(partition.topic, ZERO_UUID) != ZERO_UUID for partition in partitions)
