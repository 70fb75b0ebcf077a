"""The reaction of a reader to each error code of a Fetch response: one table.

As in Java's FetchCollector.handleInitializeErrors. A code that is not in the table is retried if
Kafka calls it retriable, with new metadata if it is due to old ones. Any other is fatal. An offset
out of range is left to auto.offset.reset by a consumer, as in Java, and is a data loss of a range.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from spark_kafka_sink.protocol.error_codes import ErrorCode, is_invalid_metadata, is_retriable

if TYPE_CHECKING:
    from collections.abc import Mapping


class FetchAction(Enum):
    """The reaction to the error code of a partition."""

    #: There is no error.
    READ = auto()
    #: Refresh the metadata to find the leader, then ask again.
    REFRESH = auto()
    #: Ask the same broker again after the back-off.
    WAIT = auto()
    #: The log does not have the offset: look up its start and its end.
    LOOK_UP_BOUNDS = auto()
    #: No retry helps.
    FATAL = auto()


_E = ErrorCode
_A = FetchAction

FETCH_RULES: Mapping[int, FetchAction] = {
    _E.NONE: _A.READ,
    _E.OFFSET_OUT_OF_RANGE: _A.LOOK_UP_BOUNDS,
    _E.NOT_LEADER_OR_FOLLOWER: _A.REFRESH,
    _E.LEADER_NOT_AVAILABLE: _A.REFRESH,
    _E.REPLICA_NOT_AVAILABLE: _A.REFRESH,
    _E.KAFKA_STORAGE_ERROR: _A.REFRESH,
    _E.LISTENER_NOT_FOUND: _A.REFRESH,
    _E.NETWORK_EXCEPTION: _A.REFRESH,
    _E.FENCED_LEADER_EPOCH: _A.REFRESH,
    # The broker may not have heard of the topic yet. Whether it was deleted or recreated is decided
    # by the metadata.
    _E.UNKNOWN_TOPIC_OR_PARTITION: _A.REFRESH,
    _E.UNKNOWN_TOPIC_ID: _A.REFRESH,
    _E.INCONSISTENT_TOPIC_ID: _A.REFRESH,
    # A new leader does not know its high watermark yet (KIP-207); Java refreshes here as well.
    _E.OFFSET_NOT_AVAILABLE: _A.REFRESH,
    # The broker is behind this client's metadata, so new metadata would not help.
    _E.UNKNOWN_LEADER_EPOCH: _A.WAIT,
    _E.REQUEST_TIMED_OUT: _A.WAIT,
    _E.THROTTLING_QUOTA_EXCEEDED: _A.WAIT,
    # As in Java: the broker's log says what happened, and it may be over soon.
    _E.UNKNOWN_SERVER_ERROR: _A.WAIT,
    # A request without a session gets these only if it is answered by mistake.
    _E.FETCH_SESSION_ID_NOT_FOUND: _A.WAIT,
    _E.INVALID_FETCH_SESSION_EPOCH: _A.WAIT,
    _E.FETCH_SESSION_TOPIC_ID_ERROR: _A.WAIT,
    _E.TOPIC_AUTHORIZATION_FAILED: _A.FATAL,
    _E.CLUSTER_AUTHORIZATION_FAILED: _A.FATAL,
    _E.INVALID_TOPIC_EXCEPTION: _A.FATAL,
    _E.CORRUPT_MESSAGE: _A.FATAL,
    _E.UNSUPPORTED_VERSION: _A.FATAL,
    _E.UNSUPPORTED_COMPRESSION_TYPE: _A.FATAL,
    _E.INVALID_REQUEST: _A.FATAL,
}

#: The advice to the user in a fatal error.
ADVICE: Mapping[int, str] = {
    _E.TOPIC_AUTHORIZATION_FAILED: "Grant this user READ on the topic",
    _E.CLUSTER_AUTHORIZATION_FAILED: "Grant this user the right that the broker's log names",
    _E.CORRUPT_MESSAGE: "Check the disk and the log of that broker; another replica may be intact",
    _E.UNSUPPORTED_COMPRESSION_TYPE: "The topic has zstd batches, which need Fetch 10: upgrade "
    "the broker",
}


def fetch_action(code: int) -> FetchAction:
    """Return the action for the error code of a partition in a Fetch response."""
    action = FETCH_RULES.get(code)
    if action is not None:
        return action
    if is_invalid_metadata(code):
        return FetchAction.REFRESH
    return FetchAction.WAIT if is_retriable(code) else FetchAction.FATAL
