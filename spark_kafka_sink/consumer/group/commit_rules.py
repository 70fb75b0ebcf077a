"""The reaction to each error of OffsetCommit and OffsetFetch, and when to commit automatically.

Both group protocols have one table for each response and level: the error of an OffsetFetch may be
that of the whole group. The tables follow the response handlers of Java's ConsumerCoordinator for
classic groups, and of its CommitRequestManager for groups of the new protocol (KIP-848), with three
differences:

- A code that is not in a table is retried if Kafka calls it retriable, where Java raises it.
- Among the partitions of a response, a permanent error takes precedence over one that passes. In
  Java, the first partition with an error decides.
- A commit that was sent in an earlier generation never ends the current one. Java ends it unless
  the member is about to join.
"""

from __future__ import annotations

from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.consumer.group.classic_membership import ClassicMembership, ClassicMemberState
from spark_kafka_sink.errors import CommitFailedError, KafkaError, RebalanceInProgressError
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error, error_name, is_retriable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.consumer.group.group_requests import Generation
    from spark_kafka_sink.model import TopicPartition


class OffsetCall(Enum):
    """A response about committed offsets, and the level of its errors."""

    #: In a classic group, or from outside of any.
    CLASSIC_COMMIT = auto()
    CLASSIC_FETCH = auto()
    CLASSIC_FETCH_PARTITION = auto()
    #: In a group of the new protocol (KIP-848).
    CONSUMER_COMMIT = auto()
    CONSUMER_FETCH = auto()
    CONSUMER_FETCH_PARTITION = auto()

    @property
    def api_name(self) -> str:
        """Kafka's name of the request."""
        is_commit = self in {OffsetCall.CLASSIC_COMMIT, OffsetCall.CONSUMER_COMMIT}
        return "OffsetCommit" if is_commit else "OffsetFetch"


class OffsetAction(Enum):
    """The reaction to an error code; earlier ones take precedence over later ones."""

    #: The call raises the error.
    FATAL = auto()
    #: Another consumer has the group.instance.id: the call raises the error, or the next call if
    #: the commit was asynchronous.
    FENCED = auto()
    #: Raise CommitFailedError, and join again as a new member (resetStateOnResponseError).
    REJOIN_AS_NEW = auto()
    #: Raise CommitFailedError, and join again without the generation but with the member id.
    REJOIN_AS_MEMBER = auto()
    #: Raise CommitFailedError; the membership does not change.
    REFUSED = auto()
    #: Raise RebalanceInProgressError, and join again within the next `poll`, in the generation.
    REJOIN = auto()
    #: Raise RebalanceInProgressError; the member is about to join anyway.
    REBALANCING = auto()
    #: Raise the error, which names all topics with it.
    UNAUTHORIZED_TOPIC = auto()
    #: Find the coordinator, then resend.
    FIND_COORDINATOR = auto()
    #: Resend with the member epoch that a heartbeat has brought since; without one, as after
    #: leaving, raise the error. A commit that the user has called for is REFUSED instead.
    NEW_EPOCH = auto()
    #: Resend after the back-off, until the timeout.
    RETRY = auto()
    #: There is no error.
    DONE = auto()


class Verdict(NamedTuple):
    """The reaction to a whole response."""

    action: OffsetAction
    code: int = 0
    #: The partitions with this action, sorted; none if it is about the group.
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def is_retried(self) -> bool:
        """Whether to resend the request, if there is time left."""
        return self.action in _RETRIED


_E = ErrorCode
_A = OffsetAction
_RETRIED = frozenset({_A.FIND_COORDINATOR, _A.NEW_EPOCH, _A.RETRY})
_ORDER = {action: order for order, action in enumerate(OffsetAction)}

#: Codes of both protocols.
_COMMIT: Mapping[int, OffsetAction] = {
    _E.NONE: _A.DONE,
    _E.GROUP_AUTHORIZATION_FAILED: _A.FATAL,
    _E.TOPIC_AUTHORIZATION_FAILED: _A.UNAUTHORIZED_TOPIC,
    _E.OFFSET_METADATA_TOO_LARGE: _A.FATAL,
    _E.INVALID_COMMIT_OFFSET_SIZE: _A.FATAL,
    _E.COORDINATOR_LOAD_IN_PROGRESS: _A.RETRY,
    # The broker may not know a new topic yet.
    _E.UNKNOWN_TOPIC_OR_PARTITION: _A.RETRY,
    _E.COORDINATOR_NOT_AVAILABLE: _A.FIND_COORDINATOR,
    _E.NOT_COORDINATOR: _A.FIND_COORDINATOR,
    # The coordinator could not replicate the offsets in time: it may have lost its place.
    _E.REQUEST_TIMED_OUT: _A.FIND_COORDINATOR,
}
_FETCH: Mapping[int, OffsetAction] = {
    _E.NONE: _A.DONE,
    _E.GROUP_AUTHORIZATION_FAILED: _A.FATAL,
    _E.COORDINATOR_LOAD_IN_PROGRESS: _A.RETRY,
    _E.COORDINATOR_NOT_AVAILABLE: _A.FIND_COORDINATOR,
    _E.NOT_COORDINATOR: _A.FIND_COORDINATOR,
}
_FETCH_PARTITION: Mapping[int, OffsetAction] = {
    _E.NONE: _A.DONE,
    _E.TOPIC_AUTHORIZATION_FAILED: _A.UNAUTHORIZED_TOPIC,
    # An open transaction may change the offset (KIP-447).
    _E.UNSTABLE_OFFSET_COMMIT: _A.RETRY,
}

OFFSET_RULES: Mapping[OffsetCall, Mapping[int, OffsetAction]] = {
    OffsetCall.CLASSIC_COMMIT: {
        **_COMMIT,
        _E.FENCED_INSTANCE_ID: _A.FENCED,
        # Between JoinGroup and SyncGroup: the generation is still valid.
        _E.REBALANCE_IN_PROGRESS: _A.REJOIN,
        _E.ILLEGAL_GENERATION: _A.REJOIN_AS_MEMBER,
        _E.UNKNOWN_MEMBER_ID: _A.REJOIN_AS_NEW,
    },
    OffsetCall.CLASSIC_FETCH: _FETCH,
    OffsetCall.CLASSIC_FETCH_PARTITION: {
        **_FETCH_PARTITION,
        _E.UNKNOWN_TOPIC_OR_PARTITION: _A.FATAL,
    },
    OffsetCall.CONSUMER_COMMIT: {
        **_COMMIT,
        _E.UNKNOWN_TOPIC_ID: _A.RETRY,
        # The next heartbeat has the same answer, and lets the member join again.
        _E.UNKNOWN_MEMBER_ID: _A.REFUSED,
        _E.STALE_MEMBER_EPOCH: _A.NEW_EPOCH,
    },
    OffsetCall.CONSUMER_FETCH: {
        **_FETCH,
        _E.UNKNOWN_MEMBER_ID: _A.FATAL,
        _E.STALE_MEMBER_EPOCH: _A.NEW_EPOCH,
    },
    OffsetCall.CONSUMER_FETCH_PARTITION: {
        **_FETCH_PARTITION,
        # After the timeout, the offsets of the other partitions are returned.
        _E.UNKNOWN_TOPIC_OR_PARTITION: _A.RETRY,
        _E.UNKNOWN_TOPIC_ID: _A.RETRY,
    },
}

#: The advice to the user in an error.
ADVICE: Mapping[int, str] = {
    _E.GROUP_AUTHORIZATION_FAILED: "Grant this user READ on the group",
    _E.TOPIC_AUTHORIZATION_FAILED: "Grant this user READ and DESCRIBE on the topic",
    _E.OFFSET_METADATA_TOO_LARGE: "Commit shorter metadata, or raise offset.metadata.max.bytes of "
    "the brokers",
    _E.INVALID_COMMIT_OFFSET_SIZE: "Commit fewer partitions at a time, or raise max.message.bytes "
    "of the topic __consumer_offsets",
    _E.FENCED_INSTANCE_ID: "Give each consumer of the group a group.instance.id of its own",
    _E.UNKNOWN_TOPIC_OR_PARTITION: "Check the names of the topics, and whether one was deleted",
}
_KEEP_POLLING = (
    "The group gives partitions to another member if poll is not called within "
    "max.poll.interval.ms: raise it, or process fewer records between two calls of poll by "
    "lowering max.poll.records"
)
_POLL_FIRST = "Call poll, which completes the rebalance, then commit again"


def offset_action(call: OffsetCall, code: int) -> OffsetAction:
    """Return the action for one error code."""
    action = OFFSET_RULES[call].get(code)
    if action is not None:
        return action
    return OffsetAction.RETRY if is_retriable(code) else OffsetAction.FATAL


def judge_group(call: OffsetCall, code: int) -> Verdict:
    """Return the reaction to the error code of a group."""
    return Verdict(offset_action(call, code), code)


def judge_partitions(call: OffsetCall, codes: Mapping[TopicPartition, int]) -> Verdict:
    """Return the reaction to the error codes of all partitions of a response."""
    actions = {partition: offset_action(call, code) for partition, code in codes.items()}
    action = min(actions.values(), key=_ORDER.__getitem__, default=OffsetAction.DONE)
    if action is OffsetAction.DONE:
        return Verdict(action)
    partitions = tuple(
        sorted(partition for partition, reaction in actions.items() if reaction is action)
    )
    return Verdict(action, codes[partitions[0]], partitions)


def commit_of_user(verdict: Verdict) -> Verdict:
    """Return the reaction to a commit that the user has called for.

    Only the auto-commit before a rebalance is resent with another member epoch.

    Source: CommitRequestManager.commitSyncExceptionForError.
    """
    if verdict.action is OffsetAction.NEW_EPOCH:
        return verdict._replace(action=OffsetAction.REFUSED)
    return verdict


def commit_in_generation(
    verdict: Verdict, sent: Generation, current: Generation, state: ClassicMemberState
) -> Verdict:
    """Return the reaction to a commit of a classic member that was sent in the generation `sent`.

    An answer that ends the generation is outdated if the member has another one by now: it has
    failed anyway, but the membership does not change.
    """
    ends_generation = {_A.FENCED, _A.REJOIN_AS_NEW, _A.REJOIN_AS_MEMBER}
    if sent == current or verdict.action not in ends_generation:
        return verdict
    is_preparing = state is ClassicMemberState.PREPARING_REBALANCE
    return verdict._replace(action=_A.REBALANCING if is_preparing else _A.REFUSED)


def apply_commit(
    membership: ClassicMembership, verdict: Verdict, sent: Generation, now: float
) -> Verdict:
    """Apply the answer to a commit of a classic member, sent in a generation, to its membership.

    Return the reaction that remains for the caller. `now` is in seconds.
    """
    verdict = commit_in_generation(verdict, sent, membership.generation, membership.state)
    match verdict.action:
        case _A.FIND_COORDINATOR:
            membership.coordinator_lost(now)
        case _A.REJOIN:
            membership.request_rejoin("offset commit failed since group is already rebalancing")
        case _A.REJOIN_AS_NEW | _A.REJOIN_AS_MEMBER:
            membership.generation_ended(
                f"encountered {error_name(verdict.code)} from OFFSET_COMMIT response",
                keeps_member_id=verdict.action is _A.REJOIN_AS_MEMBER,
            )
    return verdict


def offset_error(call: OffsetCall, verdict: Verdict, group_id: str) -> KafkaError:
    """Return the error for a response whose action is not DONE.

    For actions that resend the request it is the cause of the timeout, or what an asynchronous
    commit reports; it is retriable, unless the action is NEW_EPOCH.
    """
    code = verdict.code
    what = f"{call.api_name} of group {group_id!r}"
    match verdict.action:
        case _A.REJOIN_AS_NEW | _A.REJOIN_AS_MEMBER | _A.REFUSED:
            return CommitFailedError(
                f"{what}: this consumer is no longer a member in the generation that it commits "
                f"for ({error_name(code)}), so its partitions may belong to another one. "
                f"{_KEEP_POLLING}"
            )
        case _A.REJOIN | _A.REBALANCING:
            return RebalanceInProgressError(
                f"{what}: the group rebalances ({error_name(code)}). {_POLL_FIRST}"
            )
        case _A.UNAUTHORIZED_TOPIC:
            topics = sorted({partition.topic for partition in verdict.partitions})
            what += f" for {', '.join(map(repr, topics))}"
        case _ if verdict.partitions:
            others = len(verdict.partitions) - 1
            what += f" for {verdict.partitions[0]}" + (f" and {others} more" if others else "")
    return broker_error(code, what, ADVICE.get(code))


def not_in_generation(group_id: str, state: ClassicMemberState) -> KafkaError:
    """Return the error for a commit that cannot be sent, as the member is in no generation.

    Source: ConsumerCoordinator.sendOffsetCommitRequest.
    """
    what = f"OffsetCommit of group {group_id!r}"
    if state in {
        ClassicMemberState.PREPARING_REBALANCE,
        ClassicMemberState.COMPLETING_REBALANCE,
    }:
        return RebalanceInProgressError(f"{what}: the group rebalances. {_POLL_FIRST}")
    return CommitFailedError(f"{what}: this consumer is not a member. {_KEEP_POLLING}")


class AutoCommit:
    """The automatic commits, one per auto.commit.interval.ms, and never two of them in flight.

    It says when a consumer commits its offsets by itself (enable.auto.commit), without IO. Times
    are seconds on the caller's clock.

    Source: CommitRequestManager.AutoCommitState and maybeAutoCommitAsync; for classic groups,
    ConsumerCoordinator.maybeAutoCommitOffsetsAsync.
    """

    def __init__(self, interval: float, now: float, *, is_enabled: bool = True) -> None:
        """Start the first interval; `is_enabled` is enable.auto.commit."""
        self.interval = interval
        self.is_enabled = is_enabled
        self._due_at = now + interval
        self._is_in_flight = False

    @property
    def wake_up_at(self) -> float:
        """When `is_due` may become true by the passage of time; never while one is in flight."""
        return inf if self._is_in_flight or not self.is_enabled else self._due_at

    def is_due(self, now: float) -> bool:
        """Return whether to commit all consumed offsets at `now`."""
        return now >= self.wake_up_at

    def begin(self, now: float, *, is_sent: bool = True) -> None:
        """Start the next interval; `is_sent` is False if there was no offset to commit."""
        self._due_at = now + self.interval
        self._is_in_flight = is_sent

    def end(self, now: float, *, retry_after: float | None = None) -> None:
        """Record the outcome of the commit in flight.

        `retry_after` is retry.backoff.ms if it failed for a reason that may pass. Any other failure
        is left to the next interval.
        """
        self._is_in_flight = False
        if retry_after is not None:
            self._due_at = now + retry_after

    def restart(self, now: float) -> None:
        """Start an interval: the consumer has a new assignment."""
        self._due_at = now + self.interval
