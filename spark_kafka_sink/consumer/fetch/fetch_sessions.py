"""Fetch requests and their responses, alone or in sessions (KIP-227).

In a session each Fetch names only what has changed since the one before. `FetchSession` is Kafka's
FetchSessionHandler. Its rules:

- There is one session for each broker, and at most one Fetch in flight in it: each request must be
  followed by `answered` or by `failed` before the next one is built.
- A request with epoch 0 lists all partitions and opens a session; with epoch -1 it only closes one.
  Both also close the session that they name. All others continue a session: they list what is new
  or changed, and what to forget, and have the epoch after that of the request before.
- A broker may refuse to open a session, by answering with session id 0. Then every request lists
  all partitions.
- If the two sides may disagree, the session is closed by the next request, which opens another.
- The order matters: a broker reads the partitions of a session in order until the response is full.
"""

from __future__ import annotations

from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.model import NO_LEADER_EPOCH, UNKNOWN_OFFSET, Node, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, error_name
from spark_kafka_sink.protocol.messages.fetch import (
    FINAL_EPOCH,
    MAX_INT32,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from spark_kafka_sink.consumer.fetch.range_fetch import SendFetch
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
    from spark_kafka_sink.protocol.messages.fetch import FetchResponse

#: The epoch of a request that opens a session.
INITIAL_EPOCH: Final = 0
#: The id of a request or a response without a session.
NO_SESSION: Final = 0
#: The last version that names topics; later ones use topic ids.
LAST_VERSION_WITH_NAMES: Final = 12
#: The first version with `last_fetched_epoch`.
_FIRST_VERSION_WITH_LAST_EPOCH: Final = 12
_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1
#: For a short range, which all of a micro-batch may be, a broker need not send more than this for
#: each offset, and at least as much in all: what exceeds the range is received for nothing. Should
#: records be larger, more answers are needed; one batch at least is always sent whole.
_BYTES_PER_OFFSET: Final = 1024
_LEAST_BYTES: Final = 1 << 20
#: The errors with which a broker names the leader that it knows (KIP-951).
_OTHER_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
_NONE: Final[Mapping[TopicPartition, UUID]] = MappingProxyType({})


class PartitionToFetch(NamedTuple):
    """A partition as a session requests it (FetchRequest.PartitionData)."""

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
    """The content of the next Fetch (FetchSessionHandler.FetchRequestData)."""

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


# --- a request for one partition, without a session, and its response


def fetch_request(
    topic_partition: TopicPartition,
    fetch: SendFetch,
    versions: NodeApiVersions,
    *,
    is_committed: bool,
    max_bytes: int,
    max_partition_bytes: int,
    min_bytes: int,
    max_wait_ms: int,
    rack: str,
) -> tuple[FetchRequest, int]:
    """Build a request without a fetch session; return it with the version in which to send it.

    A topic without an id is named, which later versions cannot do. Raises UnsupportedVersionError
    if the broker has no version in common with this client.
    """
    version = _version(versions, uses_topic_ids=fetch.topic_id != ZERO_UUID)
    has_last_epoch = version >= _FIRST_VERSION_WITH_LAST_EPOCH
    request = FetchRequest(
        max_wait_ms=max_wait_ms if fetch.may_wait else 0,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=_READ_COMMITTED if is_committed else _READ_UNCOMMITTED,
        topics=(
            FetchTopic(
                topic=topic_partition.topic,
                topic_id=fetch.topic_id,
                partitions=(
                    FetchPartition(
                        partition=topic_partition.partition,
                        current_leader_epoch=fetch.leader_epoch,
                        fetch_offset=fetch.offset,
                        last_fetched_epoch=fetch.last_fetched_epoch
                        if has_last_epoch
                        else NO_LEADER_EPOCH,
                        partition_max_bytes=min(
                            max_partition_bytes, max(fetch.left * _BYTES_PER_OFFSET, _LEAST_BYTES)
                        ),
                    ),
                ),
            ),
        ),
        rack_id=rack if fetch.may_redirect else "",
    )
    return request, version


def _version(versions: NodeApiVersions, *, uses_topic_ids: bool) -> int:
    highest = FetchRequest.versions.max if uses_topic_ids else LAST_VERSION_WITH_NAMES
    return versions.version_for(ApiKey.FETCH, highest)


def partition_data(
    response: FetchResponse, topic_partition: TopicPartition, what: str
) -> PartitionData | None:
    """Return the part of the response about the only partition; None if there is none.

    An error of the whole response is returned as that of the partition. Raises DecodeError if the
    response is about another partition.
    """
    if response.error_code:
        return PartitionData(
            partition_index=topic_partition.partition,
            error_code=response.error_code,
            high_watermark=UNKNOWN_OFFSET,
            records=None,
        )
    partitions = [data for topic in response.responses for data in topic.partitions]
    if not partitions:
        return None
    if len(partitions) > 1 or partitions[0].partition_index != topic_partition.partition:
        raise DecodeError(f"{what}: the response is about other partitions")
    return partitions[0]


def named_leader(data: PartitionData) -> tuple[int, int] | None:
    """Return the id and the epoch of the leader that an error response names (KIP-951), if any."""
    leader = data.current_leader
    return (leader.leader_id, leader.leader_epoch) if leader.leader_id >= 0 else None


def named_nodes(response: FetchResponse) -> list[Node]:
    """Return the nodes whose addresses a response contains (KIP-951)."""
    return [
        Node(endpoint.node_id, endpoint.host, endpoint.port) for endpoint in response.node_endpoints
    ]


# --- the requests of a session, for many partitions, and their responses


def has_topic_ids(versions: NodeApiVersions) -> bool:
    """Return whether a broker identifies topics by their ids in Fetch (KIP-516).

    Raises UnsupportedVersionError if the broker has no version in common with this client.
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
    Partitions of one topic that follow each other are listed together. Raises
    UnsupportedVersionError if the broker has no version in common with this client.

    Source: FetchRequest.Builder and AbstractFetch.createFetchRequest.
    """
    version = _version(versions, uses_topic_ids=session_request.uses_topic_ids)
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
                        current_leader_epoch=to_fetch.leader_epoch,
                        fetch_offset=to_fetch.offset,
                        last_fetched_epoch=to_fetch.last_fetched_epoch
                        if has_last_epoch
                        else NO_LEADER_EPOCH,
                        partition_max_bytes=to_fetch.max_bytes,
                    )
                    for partition, to_fetch in partitions
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

    `topic_names` are the topics of the request by their ids. Raises DecodeError if the response has
    another topic id, or the same partition twice.
    """
    answers: dict[TopicPartition, PartitionData] = {}
    for topic in response.responses:
        name = topic.topic if topic.topic_id == ZERO_UUID else topic_names.get(topic.topic_id)
        if name is None:
            raise DecodeError(f"Fetch: the response has the unknown topic id {topic.topic_id}")
        for data in topic.partitions:
            partition = TopicPartition(name, data.partition_index)
            if partition in answers:
                raise DecodeError(f"Fetch: the response has {partition} twice")
            answers[partition] = data
    return answers


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


class FetchSession:
    """The session of one broker."""

    def __init__(self) -> None:
        #: The session that the next request continues or closes.
        self.session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._partitions: dict[TopicPartition, PartitionToFetch] = {}
        #: Why the last response was refused; empty if it was not.
        self.problem = ""

    def __repr__(self) -> str:
        """Show the session and the epoch of the next request."""
        count = len(self._partitions)
        return f"<FetchSession {self.session_id}, epoch {self._epoch}: {count} partitions>"

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions of the last request, in the order of the session."""
        return tuple(self._partitions)

    def next_request(
        self, partitions: Mapping[TopicPartition, PartitionToFetch], *, uses_topic_ids: bool
    ) -> SessionRequest:
        """Return the request after which the session has exactly `partitions`.

        `uses_topic_ids` is whether the connection's version of Fetch has topic ids. They are used
        only if all are known. A session that began with names and continues with ids, or the other
        way round, is refused by the broker with FETCH_SESSION_TOPIC_ID_ERROR.

        Source: FetchSessionHandler.Builder.build.
        """
        before = {} if self._epoch == INITIAL_EPOCH else self._partitions
        to_forget = {
            partition: known.topic_id
            for partition, known in before.items()
            if partition not in partitions
        }
        uses_topic_ids = uses_topic_ids and ZERO_UUID not in {
            *to_forget.values(),
            *(to_fetch.topic_id for to_fetch in partitions.values()),
        }
        kept = {partition: partitions[partition] for partition in before if partition in partitions}
        added = {
            partition: to_fetch
            for partition, to_fetch in partitions.items()
            if partition not in before
        }
        changed = {
            partition: to_fetch
            for partition, to_fetch in kept.items()
            if to_fetch != before[partition]
        }
        self._partitions = {**kept, **added}
        to_replace = {
            partition: before[partition].topic_id
            for partition, to_fetch in changed.items()
            if uses_topic_ids and before[partition].topic_id not in {ZERO_UUID, to_fetch.topic_id}
        }
        return SessionRequest(
            session_id=self.session_id,
            session_epoch=self._epoch,
            # New partitions come first, so that each of them is read soon.
            to_send={**added, **changed},
            to_forget=to_forget,
            to_replace=to_replace,
            partitions=self._partitions,
            topic_names={
                to_fetch.topic_id: partition.topic for partition, to_fetch in partitions.items()
            }
            if uses_topic_ids
            else {},
            uses_topic_ids=uses_topic_ids,
        )

    def close_request(self) -> SessionRequest | None:
        """Return a request that only closes the session; None if there is none to close.

        This object is then without a session, whatever becomes of the request.

        Source: FetchSessionHandler.notifyClose.
        """
        session_id = self.session_id
        self._partitions = {}
        self._reset()
        if session_id == NO_SESSION:
            return None
        # In any version: the request has no topics.
        return SessionRequest(session_id, FINAL_EPOCH, {}, uses_topic_ids=True)

    def answered(self, response: FetchResponse, topic_names: Mapping[UUID, str]) -> bool:
        """Handle the response to the last request; return whether its partitions can be used.

        `topic_names` are those of the request. A response with an error, or one that is not about
        the session's partitions, is refused, and `problem` says why. So is the empty response by
        which a broker throttles a client (KIP-219): only its `throttle_time_ms` matters. The next
        request then lists all partitions.

        Source: FetchSessionHandler.handleResponse.
        """
        is_full = self._epoch == INITIAL_EPOCH
        self.problem = self._problem(response, topic_names, is_full=is_full)
        if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            # There is nothing to close.
            self._reset()
        elif self.problem and (response.error_code or not is_full):
            self._close_and_open()
        elif self.problem or response.session_id == NO_SESSION:
            self._reset()
        elif is_full:
            self.session_id = response.session_id
            self._epoch = INITIAL_EPOCH + 1
        else:
            self._epoch = INITIAL_EPOCH + 1 if self._epoch == MAX_INT32 else self._epoch + 1
        return not self.problem

    def failed(self) -> None:
        """Handle a request without a response: the broker may or may not have received it.

        Source: FetchSessionHandler.handleError.
        """
        self._close_and_open()

    def _problem(
        self, response: FetchResponse, topic_names: Mapping[UUID, str], *, is_full: bool
    ) -> str:
        """Return why the response cannot be used; an empty text if it can."""
        if response.error_code:
            return f"the broker answered {error_name(response.error_code)}"
        try:
            answered = read_fetch(response, topic_names)
        except DecodeError as error:
            return str(error)
        if is_full and not answered and response.throttle_time_ms > 0:
            return f"the broker throttles this client for {response.throttle_time_ms} ms"
        for partition in answered:
            if partition not in self._partitions:
                return f"the response has {partition}, which was not asked for"
        if is_full and len(answered) < len(self._partitions):
            missing = next(partition for partition in self._partitions if partition not in answered)
            return f"the response lacks {missing}"
        return ""

    def _reset(self) -> None:
        self.session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH

    def _close_and_open(self) -> None:
        self._epoch = INITIAL_EPOCH


def _forgotten(session_request: SessionRequest) -> tuple[ForgottenTopic, ...]:
    by_topic: dict[tuple[str, UUID], list[int]] = {}
    for partitions in (session_request.to_forget, session_request.to_replace):
        for (topic, index), topic_id in partitions.items():
            by_topic.setdefault((topic, topic_id), []).append(index)
    return tuple(
        ForgottenTopic(topic=topic, topic_id=topic_id, partitions=tuple(indexes))
        for (topic, topic_id), indexes in by_topic.items()
    )
