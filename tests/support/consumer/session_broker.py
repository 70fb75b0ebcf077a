"""A model of a broker's fetch sessions, as KIP-227 describes them."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, TypeAlias

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import (
    MAX_INT32,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

if TYPE_CHECKING:
    from uuid import UUID

#: A partition as a request names it: the name of its topic or the id of it, and its index.
Place: TypeAlias = "tuple[str, UUID, int]"


class Event(Enum):
    """What happens to a request."""

    ANSWERED = auto()
    #: The broker does not receive it.
    LOST = auto()
    #: The broker has received it, but the client gets no response.
    UNANSWERED = auto()
    #: The broker has restarted, or has dropped the session to make room for others.
    SESSION_LOST = auto()
    #: The broker opens no session.
    NO_SESSION = auto()
    THROTTLED = auto()


class Session:
    """A session as the broker knows it."""

    def __init__(self, *, by_ids: bool) -> None:
        """Start without partitions."""
        self.by_ids = by_ids
        self.partitions: dict[Place, FetchPartition] = {}
        #: The epoch of the next request.
        self.epoch = 1


class ModelBroker:
    """A broker with sessions, which finds no records: a subclass may."""

    def __init__(self) -> None:
        """Start without sessions."""
        self.sessions: dict[int, Session] = {}
        self.last_id = 0
        #: What the last request made it read, in its order.
        self.reads: dict[Place, FetchPartition] = {}

    def receive(self, request: FetchRequest, version: int, event: Event) -> FetchResponse:
        """Handle a request and return the response."""
        by_ids = version >= 13
        if event is Event.SESSION_LOST:
            self.sessions.clear()
        listed = {
            (topic.topic, topic.topic_id, each.partition): each
            for topic in request.topics
            for each in topic.partitions
        }
        if event is Event.THROTTLED and request.session_epoch == 0:
            return FetchResponse(session_id=0, throttle_time_ms=10, responses=())
        if request.session_epoch in {0, -1}:
            self.sessions.pop(request.session_id, None)
            self.reads = listed
            session_id = 0
            if event is not Event.NO_SESSION and request.session_epoch == 0:
                session_id = self.last_id = self.last_id + 1
                self.sessions[session_id] = Session(by_ids=by_ids)
                self.sessions[session_id].partitions = dict(listed)
            return self._response(session_id, self._read(listed))
        session = self.sessions.get(request.session_id)
        if session is None:
            return self._refuse(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != session.epoch:
            return self._refuse(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if by_ids != session.by_ids:
            return self._refuse(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if session.epoch == MAX_INT32 else session.epoch + 1
        session.partitions.update(listed)
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                del session.partitions[topic.topic, topic.topic_id, index]
        self.reads = dict(session.partitions)
        return self._response(request.session_id, self.news(self._read(session.partitions)))

    def read(self, place: Place, wanted: FetchPartition) -> PartitionData:
        """Return what a partition has from the offset on that is wanted."""
        return PartitionData(partition_index=place[2], high_watermark=1, records=None)

    def news(self, answers: dict[Place, PartitionData]) -> dict[Place, PartitionData]:
        """Return what the response in a session has: here, every second partition."""
        return dict(list(answers.items())[::2])

    def _read(self, partitions: dict[Place, FetchPartition]) -> dict[Place, PartitionData]:
        return {place: self.read(place, wanted) for place, wanted in partitions.items()}

    def _refuse(self, code: ErrorCode) -> FetchResponse:
        return FetchResponse(error_code=code, session_id=0, responses=())

    def _response(self, session_id: int, answers: dict[Place, PartitionData]) -> FetchResponse:
        return FetchResponse(
            session_id=session_id,
            responses=tuple(
                FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=(data,))
                for (topic, topic_id, _), data in answers.items()
            ),
        )
