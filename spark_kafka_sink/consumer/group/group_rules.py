"""The reaction of a member of a classic group to each error code: one table per request.

As in the response handlers of Java's AbstractCoordinator, with one difference: a code that is not
in a table is retried if Kafka calls it retriable, where Java raises it. Any other code is an error
of the user's call, except for Heartbeat, which is always tried again.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, is_retriable

if TYPE_CHECKING:
    from collections.abc import Mapping


class GroupAction(Enum):
    """The reaction to the answer to a group request."""

    #: There is no error.
    DONE = auto()
    #: Resend after the back-off.
    RETRY = auto()
    #: Find the coordinator, then do what was asked of the old one.
    FIND_COORDINATOR = auto()
    #: Join again at once.
    REJOIN = auto()
    #: Join again at once, without the generation but with the member id.
    REJOIN_AS_MEMBER = auto()
    #: Join again at once, as a new member.
    REJOIN_AS_NEW = auto()
    #: Join again at once, with the member id from the answer (KIP-394).
    TAKE_MEMBER_ID = auto()
    #: Forget the generation and the member id; the next `poll` raises the error.
    FENCED = auto()
    #: The next `poll` raises the error.
    FATAL = auto()


_E = ErrorCode
_A = GroupAction

GROUP_RULES: Mapping[ApiKey, Mapping[int, GroupAction]] = {
    ApiKey.FIND_COORDINATOR: {
        _E.NONE: _A.DONE,
        _E.COORDINATOR_NOT_AVAILABLE: _A.RETRY,
        _E.COORDINATOR_LOAD_IN_PROGRESS: _A.RETRY,
        _E.GROUP_AUTHORIZATION_FAILED: _A.FATAL,
        _E.INVALID_GROUP_ID: _A.FATAL,
    },
    ApiKey.JOIN_GROUP: {
        _E.NONE: _A.DONE,
        _E.COORDINATOR_LOAD_IN_PROGRESS: _A.RETRY,
        _E.COORDINATOR_NOT_AVAILABLE: _A.FIND_COORDINATOR,
        _E.NOT_COORDINATOR: _A.FIND_COORDINATOR,
        _E.UNKNOWN_MEMBER_ID: _A.REJOIN_AS_NEW,
        _E.MEMBER_ID_REQUIRED: _A.TAKE_MEMBER_ID,
        # The coordinator could not replicate the group's state in time.
        _E.REBALANCE_IN_PROGRESS: _A.REJOIN,
        _E.FENCED_INSTANCE_ID: _A.FATAL,
        _E.INCONSISTENT_GROUP_PROTOCOL: _A.FATAL,
        _E.INVALID_SESSION_TIMEOUT: _A.FATAL,
        _E.INVALID_GROUP_ID: _A.FATAL,
        _E.GROUP_AUTHORIZATION_FAILED: _A.FATAL,
        _E.GROUP_MAX_SIZE_REACHED: _A.FATAL,
        _E.UNSUPPORTED_VERSION: _A.FATAL,
    },
    ApiKey.SYNC_GROUP: {
        _E.NONE: _A.DONE,
        _E.COORDINATOR_NOT_AVAILABLE: _A.FIND_COORDINATOR,
        _E.NOT_COORDINATOR: _A.FIND_COORDINATOR,
        _E.REBALANCE_IN_PROGRESS: _A.REJOIN,
        _E.ILLEGAL_GENERATION: _A.REJOIN_AS_MEMBER,
        _E.UNKNOWN_MEMBER_ID: _A.REJOIN_AS_NEW,
        _E.FENCED_INSTANCE_ID: _A.FATAL,
        _E.INCONSISTENT_GROUP_PROTOCOL: _A.FATAL,
        _E.GROUP_AUTHORIZATION_FAILED: _A.FATAL,
    },
    ApiKey.HEARTBEAT: {
        _E.NONE: _A.DONE,
        _E.COORDINATOR_NOT_AVAILABLE: _A.FIND_COORDINATOR,
        _E.NOT_COORDINATOR: _A.FIND_COORDINATOR,
        _E.REBALANCE_IN_PROGRESS: _A.REJOIN,
        _E.ILLEGAL_GENERATION: _A.REJOIN_AS_MEMBER,
        _E.UNKNOWN_MEMBER_ID: _A.REJOIN_AS_NEW,
        _E.FENCED_INSTANCE_ID: _A.FENCED,
        # The member keeps its place if the right is granted before the session ends.
        _E.GROUP_AUTHORIZATION_FAILED: _A.RETRY,
    },
}

#: What a user can do about a fatal error.
ADVICE: Mapping[int, str] = {
    _E.FENCED_INSTANCE_ID: "Give each consumer of the group a group.instance.id of its own",
    _E.INCONSISTENT_GROUP_PROTOCOL: "Use the group.protocol of the group's other members, and an "
    "assignor that all of them have (partition.assignment.strategy)",
    _E.INVALID_SESSION_TIMEOUT: "Set session.timeout.ms between group.min.session.timeout.ms and "
    "group.max.session.timeout.ms of the brokers",
    _E.INVALID_GROUP_ID: "Set group.id to a name that is not empty",
    _E.GROUP_AUTHORIZATION_FAILED: "Grant this user READ on the group",
    _E.GROUP_MAX_SIZE_REACHED: "Start fewer consumers, or raise group.max.size of the brokers",
    _E.UNSUPPORTED_VERSION: "Upgrade the brokers, or unset group.instance.id",
}


def group_action(api_key: ApiKey, code: int) -> GroupAction:
    """Return the action for the error code of an answer to `api_key`, a key of GROUP_RULES."""
    action = GROUP_RULES[api_key].get(code)
    if action is not None:
        return action
    if is_retriable(code) or api_key is ApiKey.HEARTBEAT:
        return GroupAction.RETRY
    return GroupAction.FATAL
