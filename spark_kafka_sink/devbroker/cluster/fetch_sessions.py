"""Fetch sessions: the partitions that a consumer fetches, remembered by a broker (KIP-227).

The counterpart of Kafka's FetchManager and FetchSessionCache. Rules:

- A request with session epoch 0 lists all its partitions and opens a session, if there is room; one
  with epoch -1 has no session. Both close the session that they name.
- Any other request continues its session. Its epoch must be the one that follows that of the last
  request. It lists only the partitions that are new or changed, and those to forget.
- The response to such a request has only partitions with records or an error, and those whose high
  watermark or log start offset has changed since the last response.
- A partition with records moves to the end of its session, so that each gets its turn.
- If there are too many sessions, a new one replaces one that has been idle for two minutes, or a
  smaller one that is older than two minutes. Otherwise the new one is not opened. Unlike Kafka's,
  sessions also share a budget of memory: a new one may then replace several, and one that grows too
  large is closed, so that its consumer begins another one.
"""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import FINAL_EPOCH, MAX_INT32
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from spark_kafka_sink.protocol.messages.fetch import FetchPartition, PartitionData

NO_SESSION = 0
_INITIAL_EPOCH = 0
_EVICTION_MS = 120_000
_NO_OFFSET = -1
#: About the memory of a partition in a session, without the name of its topic.
_PARTITION_BYTES = 500

#: A partition's topic, by id or else by name, and its index.
PartitionKey: TypeAlias = "tuple[uuid.UUID | str | None, int]"


def partition_key(topic: str | None, topic_id: uuid.UUID, index: int) -> PartitionKey:
    """Return the key of a partition, by the id of its topic if the client uses ids."""
    return (topic if topic_id == ZERO_UUID else topic_id), index


class RequestedPartition(NamedTuple):
    """A partition to fetch."""

    #: None if the id is not that of a topic.
    topic: str | None
    #: Zero if the client uses names.
    topic_id: uuid.UUID
    fetch_partition: FetchPartition

    @property
    def key(self) -> PartitionKey:
        """What identifies the partition in a session."""
        return partition_key(self.topic, self.topic_id, self.fetch_partition.partition)

    @property
    def bytes(self) -> int:
        """About how much memory the partition takes in a session."""
        return _PARTITION_BYTES + (sys.getsizeof(self.topic) if self.topic_id == ZERO_UUID else 0)


class PartitionResult(NamedTuple):
    """A partition with its part of the response."""

    requested: RequestedPartition
    data: PartitionData


class SessionResponse(NamedTuple):
    """The session's part of a response."""

    session_id: int
    error_code: ErrorCode = ErrorCode.NONE
    results: Sequence[PartitionResult] = ()


@dataclass(slots=True)
class _CachedPartition:
    """A partition of a session, with what the client knows of it."""

    requested: RequestedPartition
    high_watermark: int = _NO_OFFSET
    log_start_offset: int = _NO_OFFSET

    def update(self, data: PartitionData) -> bool:
        """Store what a response says; return whether the client has to receive it."""
        changed = (
            data.error_code != ErrorCode.NONE
            or bool(data.records)
            or data.high_watermark != self.high_watermark
            or data.log_start_offset != self.log_start_offset
            or data.preferred_read_replica >= 0
            or data.diverging_epoch.epoch >= 0
        )
        self.high_watermark = data.high_watermark
        self.log_start_offset = data.log_start_offset
        if data.error_code != ErrorCode.NONE:
            # The end of the error is a change, too.
            self.high_watermark = _NO_OFFSET
        return changed


@dataclass(slots=True)
class _Session:
    """The partitions of one consumer."""

    session_id: int
    uses_topic_ids: bool
    created_ms: int
    last_used_ms: int
    partitions: dict[PartitionKey, _CachedPartition] = field(default_factory=dict)
    #: The epoch that the next request must have.
    epoch: int = _INITIAL_EPOCH + 1
    #: About how much memory the partitions take.
    bytes: int = 0

    def update(
        self,
        requested: Mapping[PartitionKey, RequestedPartition],
        forgotten: Sequence[PartitionKey],
    ) -> None:
        for key, partition in requested.items():
            cached = self.partitions.get(key)
            if cached is None:
                self.partitions[key] = _CachedPartition(partition)
                self.bytes += partition.bytes
            else:
                cached.requested = cached.requested._replace(
                    fetch_partition=partition.fetch_partition
                )
        for key in forgotten:
            removed = self.partitions.pop(key, None)
            if removed is not None:
                self.bytes -= removed.requested.bytes


class FetchContext:
    """The session of one request: one that it continues, one that it opens, or none."""

    def __init__(
        self,
        partitions: Sequence[RequestedPartition],
        *,
        session: _Session | None = None,
        open_session: Callable[[Sequence[PartitionResult], int], int] | None = None,
    ) -> None:
        self.partitions = partitions
        self._session = session
        self._open_session = open_session
        self._epoch = _INITIAL_EPOCH if session is None else session.epoch

    def respond(self, results: Sequence[PartitionResult], now_ms: int) -> SessionResponse:
        """Return the response that has these results, and update the session."""
        session = self._session
        if session is None:
            session_id = NO_SESSION
            if self._open_session is not None:
                session_id = self._open_session(results, now_ms)
            return SessionResponse(session_id, results=results)
        if session.epoch != self._epoch:
            return self._without_partitions(session)
        changed = []
        for result in results:
            key = result.requested.key
            cached = session.partitions[key]
            if cached.update(result.data):
                changed.append(result)
                if result.data.records:
                    session.partitions[key] = session.partitions.pop(key)
        return SessionResponse(session.session_id, results=changed)

    def throttle(self) -> SessionResponse:
        """Return the response to a client that has exceeded a quota: it has no partitions.

        With an error, if the request waited while another one continued its session.
        """
        session = self._session
        if session is None:
            return SessionResponse(NO_SESSION)
        return self._without_partitions(session)

    def _without_partitions(self, session: _Session) -> SessionResponse:
        in_turn = session.epoch == self._epoch
        code = ErrorCode.NONE if in_turn else ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return SessionResponse(session.session_id, code)


class FetchSessions:
    """The sessions of one broker."""

    def __init__(self, most: int, max_bytes: int) -> None:
        """Keep at most this many sessions, of about this many bytes in total."""
        self._most = most
        self._max_bytes = max_bytes
        self._sessions: dict[int, _Session] = {}
        #: The sum over all sessions.
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def clear(self) -> None:
        """Close all sessions, as the end of a broker does."""
        self._sessions.clear()
        self._bytes = 0

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._bytes -= session.bytes

    def begin(
        self,
        session_id: int,
        epoch: int,
        requested: Mapping[PartitionKey, RequestedPartition],
        forgotten: Sequence[PartitionKey],
        *,
        uses_topic_ids: bool,
        find_name: Callable[[uuid.UUID], str | None],
        now_ms: int,
    ) -> FetchContext:
        """Open, continue or close a session as a request says (FetchManager.newContext).

        Raises RefusedError with FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, or
        FETCH_SESSION_TOPIC_ID_ERROR for a session that began with names and continues with ids.
        """
        if epoch in {_INITIAL_EPOCH, FINAL_EPOCH}:
            self._close(session_id)
            partitions = list(requested.values())
            if epoch == FINAL_EPOCH:
                return FetchContext(partitions)
            return FetchContext(
                partitions, open_session=partial(self._open, uses_topic_ids=uses_topic_ids)
            )
        session = self._sessions.get(session_id)
        if session is None:
            raise RefusedError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {session_id}"
            )
        if epoch != session.epoch:
            raise RefusedError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"the epoch of fetch session {session_id} is {session.epoch}, not {epoch}",
            )
        if uses_topic_ids != session.uses_topic_ids:
            raise RefusedError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                f"fetch session {session_id} mixes names and ids of topics",
            )
        before = session.bytes
        session.update(requested, forgotten)
        self._bytes += session.bytes - before
        if not session.partitions:
            self._close(session_id)
            return FetchContext(list(requested.values()))
        if session.bytes > before and self._bytes > self._max_bytes:
            # As if it had been evicted: the consumer lists all its partitions once more.
            self._close(session_id)
            raise RefusedError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"fetch session {session_id} is too large for the memory that sessions may take",
            )
        session.last_used_ms = now_ms
        session.epoch = 1 if session.epoch == MAX_INT32 else session.epoch + 1
        for cached in session.partitions.values():
            topic, topic_id, _ = cached.requested
            if topic is None:
                cached.requested = cached.requested._replace(topic=find_name(topic_id))
        partitions = [cached.requested for cached in session.partitions.values()]
        return FetchContext(partitions, session=session)

    def _open(
        self, results: Sequence[PartitionResult], now_ms: int, *, uses_topic_ids: bool
    ) -> int:
        """Open a session and return its id, NO_SESSION if there are too many sessions."""
        size = sum(result.requested.bytes for result in results)
        if not self._make_room(len(results), size, now_ms):
            return NO_SESSION
        session_id = self._new_id()
        self._sessions[session_id] = _Session(
            session_id,
            uses_topic_ids,
            now_ms,
            now_ms,
            {
                requested.key: _CachedPartition(
                    requested, data.high_watermark, data.log_start_offset
                )
                for requested, data in results
            },
            bytes=size,
        )
        self._bytes += size
        return session_id

    def _new_id(self) -> int:
        while True:
            # Random, so that a session of an earlier run of the broker is not found.
            session_id = secrets.randbelow(MAX_INT32 - 1) + 1
            if session_id not in self._sessions:
                return session_id

    def _make_room(self, partitions: int, size: int, now_ms: int) -> bool:
        """Close sessions until a new one fits, with its partitions and bytes.

        Return False, and close none, if those that may be closed are not enough.
        """
        slots = len(self._sessions) - self._most + 1
        excess = self._bytes + size - self._max_bytes
        closed = []
        for session in self._replaceable(partitions, now_ms) if max(slots, excess) > 0 else ():
            if slots <= 0 and excess <= 0:
                break
            closed.append(session.session_id)
            slots -= 1
            excess -= session.bytes
        if slots > 0 or excess > 0:
            return False
        for session_id in closed:
            self._close(session_id)
        return True

    def _replaceable(self, partitions: int, now_ms: int) -> Iterator[_Session]:
        """Return the sessions that give way to one with this many partitions, in this order."""
        sessions = sorted(self._sessions.values(), key=lambda session: session.last_used_ms)
        stale = [session for session in sessions if now_ms - session.last_used_ms > _EVICTION_MS]
        yield from stale
        for session in sorted(sessions[len(stale) :], key=lambda session: len(session.partitions)):
            is_old = session.last_used_ms - session.created_ms > _EVICTION_MS
            if is_old and len(session.partitions) < partitions:
                yield session
