"""The reaction of a member to each error code of ConsumerGroupHeartbeat.

As in AbstractHeartbeatRequestManager.onErrorResponse, with one difference: a code that is not in
the table is retried if Kafka calls it retriable. Any other code ends the membership.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from spark_kafka_sink.protocol.error_codes import ErrorCode, is_retriable

if TYPE_CHECKING:
    from collections.abc import Mapping


class HeartbeatAction(Enum):
    """The reaction to an answer."""

    #: There is no error.
    DONE = auto()
    #: Resend after a back-off.
    RETRY = auto()
    #: Resend after a back-off; the next `poll` raises the error.
    RETRY_AND_RAISE = auto()
    #: Find the coordinator, then resend at once.
    FIND_COORDINATOR = auto()
    #: Give up all partitions, then join again at once.
    REJOIN = auto()
    #: The group is gone: fatal, unless the member has left it anyway.
    FATAL_IN_GROUP = auto()
    #: The membership ends for good, and the next `poll` raises the error.
    FATAL = auto()


_E = ErrorCode
_A = HeartbeatAction

HEARTBEAT_RULES: Mapping[int, HeartbeatAction] = {
    _E.NONE: _A.DONE,
    _E.COORDINATOR_LOAD_IN_PROGRESS: _A.RETRY,
    _E.COORDINATOR_NOT_AVAILABLE: _A.FIND_COORDINATOR,
    _E.NOT_COORDINATOR: _A.FIND_COORDINATOR,
    # The member keeps its place if the right is granted before the session ends.
    _E.TOPIC_AUTHORIZATION_FAILED: _A.RETRY_AND_RAISE,
    _E.UNKNOWN_MEMBER_ID: _A.REJOIN,
    _E.FENCED_MEMBER_EPOCH: _A.REJOIN,
    _E.GROUP_ID_NOT_FOUND: _A.FATAL_IN_GROUP,
    _E.GROUP_AUTHORIZATION_FAILED: _A.FATAL,
    _E.INVALID_REQUEST: _A.FATAL,
    _E.INVALID_REGULAR_EXPRESSION: _A.FATAL,
    _E.GROUP_MAX_SIZE_REACHED: _A.FATAL,
    _E.UNSUPPORTED_ASSIGNOR: _A.FATAL,
    _E.UNSUPPORTED_VERSION: _A.FATAL,
    _E.UNRELEASED_INSTANCE_ID: _A.FATAL,
    _E.FENCED_INSTANCE_ID: _A.FATAL,
}

#: What a user can do about an error.
HEARTBEAT_ADVICE: Mapping[int, str] = {
    _E.TOPIC_AUTHORIZATION_FAILED: "Grant this user DESCRIBE on the topics of the subscription",
    _E.GROUP_ID_NOT_FOUND: "Create a new consumer: the group was deleted, or it never existed",
    _E.GROUP_AUTHORIZATION_FAILED: "Grant this user READ on the group",
    _E.INVALID_GROUP_ID: "Set group.id to a name that is not empty",
    _E.INVALID_REQUEST: "Check group.id, group.instance.id, max.poll.interval.ms and the topics of "
    "the subscription",
    _E.INVALID_REGULAR_EXPRESSION: "Subscribe with a pattern in the syntax of RE2, which has no "
    "lookaround and no backreferences",
    _E.GROUP_MAX_SIZE_REACHED: "Start fewer consumers, or raise group.consumer.max.size of the "
    "brokers",
    _E.UNSUPPORTED_ASSIGNOR: "Set group.remote.assignor to one of group.consumer.assignors of the "
    "brokers, such as uniform or range, or unset it",
    _E.UNSUPPORTED_VERSION: "Set group.protocol=classic until the brokers are upgraded to Kafka "
    "4.0 and have the consumer protocol enabled",
    _E.UNRELEASED_INSTANCE_ID: "Close the other consumer with this group.instance.id, or wait "
    "until its session times out, and create a new consumer",
    _E.FENCED_INSTANCE_ID: "Give each consumer of the group a group.instance.id of its own, and "
    "create a new consumer",
}
#: The advice if the brokers support the protocol, but not subscriptions by a pattern of RE2.
PATTERN_ADVICE = (
    "Upgrade the brokers to Kafka 4.0, or subscribe with a compiled pattern of Python, which this "
    "client evaluates"
)


def heartbeat_action(code: int) -> HeartbeatAction:
    """Return the action for the error code of an answer."""
    action = HEARTBEAT_RULES.get(code)
    if action is not None:
        return action
    return HeartbeatAction.RETRY if is_retriable(code) else HeartbeatAction.FATAL
