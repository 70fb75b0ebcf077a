"""Fetch sessions: each Fetch names only what has changed since the one before (KIP-227).

This is Kafka's FetchSessionHandler. Its rules:

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

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.consumer.fetching.session_requests import (
    INITIAL_EPOCH,
    PartitionToFetch,
    SessionRequest,
    read_fetch,
)
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.error_codes import ErrorCode, error_name
from spark_kafka_sink.protocol.messages.fetch import FINAL_EPOCH, MAX_INT32
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.protocol.messages.fetch import FetchResponse

#: The id of a request or a response without a session.
NO_SESSION: Final = 0


class FetchSession:
    """The session of one broker."""

    def __init__(self) -> None:
        """Start without a session."""
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._partitions: dict[TopicPartition, PartitionToFetch] = {}
        #: Why the last response was refused; empty if it was not.
        self.problem = ""

    def __repr__(self) -> str:
        """Show the session and the epoch of the next request."""
        count = len(self._partitions)
        return f"<FetchSession {self._session_id}, epoch {self._epoch}: {count} partitions>"

    @property
    def session_id(self) -> int:
        """The id of the session that the next request continues or closes; 0 for none."""
        return self._session_id

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
            *(wanted.topic_id for wanted in partitions.values()),
        }
        kept = {partition: partitions[partition] for partition in before if partition in partitions}
        added = {
            partition: wanted for partition, wanted in partitions.items() if partition not in before
        }
        changed = {
            partition: wanted for partition, wanted in kept.items() if wanted != before[partition]
        }
        self._partitions = {**kept, **added}
        to_replace = {
            partition: before[partition].topic_id
            for partition, wanted in changed.items()
            if uses_topic_ids and before[partition].topic_id not in {ZERO_UUID, wanted.topic_id}
        }
        return SessionRequest(
            session_id=self._session_id,
            session_epoch=self._epoch,
            # New partitions come first, so that each of them is read soon.
            to_send={**added, **changed},
            to_forget=to_forget,
            to_replace=to_replace,
            partitions=self._partitions,
            topic_names={
                wanted.topic_id: partition.topic for partition, wanted in partitions.items()
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
        session_id = self._session_id
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
            self._session_id = response.session_id
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
            missing = next(each for each in self._partitions if each not in answered)
            return f"the response lacks {missing}"
        return ""

    def _reset(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH

    def _close_and_open(self) -> None:
        self._epoch = INITIAL_EPOCH
