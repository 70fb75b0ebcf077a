"""The membership in a group of the consumer protocol of KIP-848, without IO.

This is Kafka's ConsumerHeartbeatRequestManager with its CoordinatorRequestManager, around the state
of the member in `group_member`. Their rules:

- Both belong to the thread that holds the consumer's lock, and have no lock of their own.
- `next_step` says what to do next, and returns each step once. The caller takes steps until there
  is a `Wait`, and reports each outcome with its step; that of a step that is no longer current is
  ignored.
- Callbacks are returned only within the user's `poll`, `unsubscribe` or `close` (`may_call_back`);
  heartbeats, the search for the coordinator and metadata also go on outside of them.
- One heartbeat is in flight at a time, except that the one with which the member leaves waits for
  no answer. The caller sends them in order, over one connection.
- A member that leaves sends one heartbeat and does not repeat it. Without a coordinator it sends
  none, and its session times out.
- A fatal error is raised by the next `poll`, once. The member never leaves the state FATAL.
"""

from __future__ import annotations

from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.consumer.group.group_member import (
    Callback,
    CommitBeforeRevocation,
    GroupMember,
    MemberSettings,
    MemberState,
    RefreshMetadata,
    SendHeartbeat,
    Step,
)
from spark_kafka_sink.consumer.group.group_requests import (
    FindCoordinator,
    GroupAction,
    LeaveOperation,
    Wait,
    group_action,
)
from spark_kafka_sink.consumer.group.membership import Membership
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, is_retriable
from spark_kafka_sink.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from spark_kafka_sink.consumer.group.group_member import LocalAssignment
    from spark_kafka_sink.consumer.subscription.subscription import Subscription
    from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
    from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff

_S = MemberState
#: The states whose heartbeat does not wait for the interval.
_URGENT: Final = frozenset({_S.JOINING, _S.ACKNOWLEDGING, _S.LEAVING})
#: The advice if the brokers support the protocol, but not subscriptions by a pattern of RE2.
PATTERN_ADVICE = (
    "Upgrade the brokers to Kafka 4.0, or subscribe with a compiled pattern of Python, which this "
    "client evaluates"
)


class HeartbeatAction(Enum):
    """The reaction of a member to an answer to ConsumerGroupHeartbeat."""

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


_A, _E = HeartbeatAction, ErrorCode

#: The reaction to each error code, as in AbstractHeartbeatRequestManager.onErrorResponse, with one
#: difference: a code that is not in the table is retried if Kafka calls it retriable. Any other
#: code ends the membership.
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

#: The advice to the user in an error.
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


def heartbeat_action(code: int) -> HeartbeatAction:
    """Return the action for the error code of an answer."""
    action = HEARTBEAT_RULES.get(code)
    if action is not None:
        return action
    return HeartbeatAction.RETRY if is_retriable(code) else HeartbeatAction.FATAL


class HeartbeatSchedule:
    """The timers of one member: when it sends heartbeats.

    This is Kafka's HeartbeatRequestState without its clock: all times are seconds on the caller's.
    The coordinator names the interval with every answer. A change of the member's state makes a
    heartbeat urgent: it does not wait for the interval. Unlike in Java it still waits for the
    back-off after a failure, or a coordinator that is loading would get the same request in a busy
    loop.
    """

    def __init__(self, settings: MemberSettings, now: float) -> None:
        """Start with a heartbeat that is due, and with the timer of the user's calls of `poll`."""
        self._settings = settings
        #: The interval that the coordinator has named; 0 before its first answer.
        self.interval = 0.0
        self._failures = 0
        #: The end of the interval, and that of the back-off.
        self._due_at = self._retry_at = now
        #: When the time for the user's next call of `poll` ends.
        self.poll_until = now
        self.poll(now)

    def poll(self, now: float) -> None:
        """Restart the timer of the user's calls of `poll`."""
        self.poll_until = now + self._settings.rebalance_timeout

    def has_poll_expired(self, now: float) -> bool:
        """Return whether the user has not called `poll` for max.poll.interval.ms."""
        return now >= self.poll_until

    def next_at(self, *, is_urgent: bool) -> float:
        """Return when the next heartbeat is due, if none is in flight."""
        return self._retry_at if is_urgent else max(self._due_at, self._retry_at)

    def sent(self, now: float) -> None:
        """Restart the interval."""
        self._due_at = now + self.interval

    def answered(self, interval: float, now: float) -> None:
        """Apply the interval of an answer without an error, which ends the back-off.

        The next heartbeat that is not urgent waits for retry.backoff.ms at least, whatever the
        interval is.
        """
        if interval != self.interval:
            self.interval = interval
            self._due_at = now + interval
        self._due_at = max(self._due_at, now + self._settings.backoff.initial)
        self._failures = 0
        self._retry_at = now

    def failed(self, now: float, *, may_skip: bool = False) -> None:
        """End the interval, and start a back-off that grows with each failure (KIP-580).

        With `may_skip` the first failure in a row has no back-off.
        """
        self._due_at = self._retry_at = now
        if self._failures or not may_skip:
            self._retry_at += self._settings.backoff.delay(self._failures)
        self._failures += 1

    def reset(self, now: float) -> None:
        """End the interval and the back-off."""
        self._failures = 0
        self._due_at = self._retry_at = now


class HeartbeatFields:
    """The fields of one member's next heartbeat, which depend on what the last one has sent.

    A member sends all fields when it joins. Later it sends only those that changed since the last
    heartbeat, and after a failed heartbeat all again, because the coordinator may not have got
    them.

    Source: ConsumerHeartbeatRequestManager.HeartbeatState.
    """

    def __init__(self, settings: MemberSettings, subscription: Subscription) -> None:
        """Start as if nothing had been sent."""
        self._settings = settings
        self._subscription = subscription
        self._rebalance_timeout_ms: int | None = None
        self._topics: tuple[str, ...] | None = None
        self._pattern: str | None = None
        self._assignor: str | None = None
        self._assignment: LocalAssignment | None = None

    def reset(self) -> None:
        """Forget what was sent."""
        self._rebalance_timeout_ms = None
        self._topics = self._pattern = self._assignor = self._assignment = None

    def build_request(
        self, epoch: int, owned: LocalAssignment, *, is_joining: bool
    ) -> ConsumerGroupHeartbeatRequest:
        """Return the next request, and assume from then on that it was received.

        `owned` is what the member has reconciled. `is_joining` sends all fields.

        Source: HeartbeatState.buildRequestData.
        """
        settings, subscription = self._settings, self._subscription
        timeout = round(settings.rebalance_timeout * 1000)
        topics = tuple(sorted(subscription.topics))
        pattern, assignor = subscription.broker_pattern, settings.server_assignor
        sends_timeout = is_joining or timeout != self._rebalance_timeout_ms
        sends_topics = is_joining or topics != self._topics
        # An empty regular expression removes the one that was sent before.
        sends_pattern = (is_joining and pattern is not None) or pattern != self._pattern
        sends_assignor = is_joining or assignor != self._assignor
        sends_owned = is_joining or owned != self._assignment
        self._rebalance_timeout_ms, self._topics, self._pattern = timeout, topics, pattern
        self._assignor, self._assignment = assignor, owned
        return ConsumerGroupHeartbeatRequest(
            group_id=settings.group_id,
            member_id=settings.member_id,
            member_epoch=epoch,
            instance_id=settings.group_instance_id,
            rack_id=settings.rack_id if is_joining else None,
            rebalance_timeout_ms=timeout if sends_timeout else -1,
            subscribed_topic_names=topics if sends_topics else None,
            subscribed_topic_regex=(pattern or "") if sends_pattern else None,
            server_assignor=assignor if sends_assignor else None,
            topic_partitions=_topic_partitions(owned) if sends_owned else None,
        )


class MetadataRefresh:
    """When to request metadata for topics whose ids have no known names; times are seconds.

    The requests are for one set of topics after another.
    """

    def __init__(self, backoff: ExponentialBackoff, now: float) -> None:
        self._backoff = backoff
        self._failures, self._due_at = 0, now
        self._is_in_flight = False
        self._topic_ids: frozenset[UUID] = frozenset()

    def due_at(self, topic_ids: frozenset[UUID], now: float) -> float:
        """Return when to request the names of these topics; never without topics.

        Other topics than those of the last request are due at once.
        """
        if not topic_ids or (topic_ids <= self._topic_ids and self._is_in_flight):
            return inf
        return self._due_at if topic_ids <= self._topic_ids else now

    def next_step(self, topic_ids: frozenset[UUID], now: float) -> RefreshMetadata | None:
        """Return the request, if it is due."""
        if now < self.due_at(topic_ids, now):
            return None
        if not topic_ids <= self._topic_ids:
            self._failures = 0
        self._topic_ids = topic_ids
        self._is_in_flight = True
        return RefreshMetadata(topic_ids)

    def ended(self, now: float) -> None:
        """Delay the next request by a back-off: there are new metadata, or there is an error."""
        if self._is_in_flight:
            self._is_in_flight = False
            self._due_at = now + self._backoff.delay(self._failures)
            self._failures += 1


class ConsumerMembership(Membership):
    """One member of a group, with its heartbeats."""

    def __init__(
        self, settings: MemberSettings, subscriptions: SubscriptionState, now: float
    ) -> None:
        """Start outside of the group; the assignment in `subscriptions` is changed from here."""
        super().__init__(settings, now)
        self._settings = settings
        self._subscriptions = subscriptions
        self._member = GroupMember(settings, subscriptions)
        self._fields = HeartbeatFields(settings, subscriptions.subscription)
        self._schedule = HeartbeatSchedule(settings, now)
        self._refresh = MetadataRefresh(settings.backoff, now)
        self._in_flight: SendHeartbeat | None = None

    @property
    def state(self) -> MemberState:
        """The current state."""
        return self._member.state

    @property
    def member_epoch(self) -> int | None:
        """The epoch with which to commit offsets; None outside of the group."""
        epoch = self._member.epoch
        return epoch if epoch > 0 and self._member.is_in_group else None

    @property
    def is_leaving(self) -> bool:
        """Whether `leave` has not ended: callbacks, or the answer to the last heartbeat."""
        return self._member.is_leaving

    # What the user does

    def subscription_changed(self) -> None:
        """Join within the next `poll`, or send the subscription with the next heartbeat.

        Source: AbstractMembershipManager.onSubscriptionUpdated.
        """
        self._member.subscription_changed()

    def poll(self, now: float) -> None:
        """Record a call of `poll`, which may join; raise the error, if there is one, once."""
        self._member.poll()
        self._schedule.poll(now)
        super().poll(now)

    def leave(
        self, operation: LeaveOperation = LeaveOperation.DEFAULT, *, runs_callbacks: bool = True
    ) -> None:
        """End the subscription, and leave the group: `unsubscribe` and `close`.

        The caller then takes steps, with `may_call_back`, while `is_leaving`. Within a callback,
        which the steps would wait for, it only calls this method. Without callbacks all partitions
        are given up at once.

        A static member leaves with DEFAULT and REMAIN_IN_GROUP in such a way that it may return,
        with LEAVE_GROUP for good. A dynamic member always leaves for good, or, with
        REMAIN_IN_GROUP, without a word (KIP-1092).
        """
        self._member.leave(operation, runs_callbacks=runs_callbacks)

    # What to do next

    def next_step(
        self, now: float, *, may_call_back: bool, needs_coordinator: bool = False
    ) -> Step:
        """Return what to do at `now`, which is a `Wait` if there is nothing.

        `may_call_back` says that the user's thread asks, within a call that runs callbacks, and
        that it is not returning records. `needs_coordinator` says that something else, such as a
        commit, needs the coordinator.
        """
        needs_coordinator |= self._needs_coordinator()
        step: Step | None = self._member.next_step(now, may_call_back=may_call_back)
        if step is None:
            step = self._refresh.next_step(self._member.unresolved_topic_ids, now)
        if step is None and self.coordinator is None:
            self._member.heartbeat_skipped()
            if needs_coordinator and now >= self._search_at:
                step = self._begin_search()
        if step is None:
            step = self._next_heartbeat(now)
        return step or Wait(self._wake_up_at(now, needs_coordinator=needs_coordinator))

    def _needs_coordinator(self) -> bool:
        return self._member.is_in_group and self.state is not _S.LEAVING

    def _next_heartbeat(self, now: float) -> SendHeartbeat | None:
        """Return the heartbeat that is due (AbstractHeartbeatRequestManager.poll)."""
        if self.coordinator is None or not self._member.is_in_group:
            return None
        if self._has_poll_expired(now):
            self._member.poll_expired()
            step = self._build_heartbeat(now)
            # The member may join again before this is answered.
            self._in_flight = None
            self._fields.reset()
            self._schedule.reset(now)
            return step
        if now < self._heartbeat_at():
            return None
        self._in_flight = self._build_heartbeat(now)
        return self._in_flight

    def _build_heartbeat(self, now: float) -> SendHeartbeat:
        request = self._fields.build_request(
            self._member.epoch, self._member.owned, is_joining=self.state is _S.JOINING
        )
        self._schedule.sent(now)
        self._member.heartbeat_sent()
        return SendHeartbeat(self._next_number(), request)

    def _has_poll_expired(self, now: float) -> bool:
        return not self._member.is_about_to_leave and self._schedule.has_poll_expired(now)

    def _heartbeat_at(self) -> float:
        if self.state is _S.LEAVING:
            return -inf
        if self._in_flight is not None:
            return inf
        return self._schedule.next_at(is_urgent=self.state in _URGENT)

    def _wake_up_at(self, now: float, *, needs_coordinator: bool) -> float:
        times = [self._refresh.due_at(self._member.unresolved_topic_ids, now)]
        if self.coordinator is None:
            if needs_coordinator:
                times.append(self._search_at)
        elif self._member.is_in_group:
            times.append(self._heartbeat_at())
            if not self._member.is_about_to_leave:
                times.append(self._schedule.poll_until)
        return min(times)

    # The coordinator

    def coordinator_not_found(self, step: FindCoordinator, code: int | None, now: float) -> None:
        """Retry the search after a back-off; the next `poll` raises a fatal error."""
        if not self._end_search(step):
            return
        self._delay_search(now)
        if code is not None and group_action(ApiKey.FIND_COORDINATOR, code) is GroupAction.FATAL:
            self._fail(ApiKey.FIND_COORDINATOR, code)

    def coordinator_lost(self, now: float, *, was_reached: bool = True) -> None:
        """Rediscover the coordinator; the heartbeat in flight has failed."""
        super().coordinator_lost(now, was_reached=was_reached)
        if self._in_flight is not None:
            self.heartbeat_failed(self._in_flight, now)

    # The outcomes of the other steps

    def topic_names_changed(self, names: Mapping[UUID, str], now: float) -> None:
        """Use the topic names, by id, of new metadata; also after a RefreshMetadata that failed."""
        self._member.topic_names_changed(names)
        self._refresh.ended(now)

    def commit_done(self, step: CommitBeforeRevocation) -> None:
        """Continue the reconciliation, whether or not the commit succeeded."""
        self._member.commit_done(step)

    def callback_done(self, step: Callback, error: BaseException | None = None) -> None:
        """Continue after a callback; the user's `poll` raises `error` if the callback did."""
        self._member.callback_done(step, error)

    def heartbeat_failed(self, step: SendHeartbeat, now: float) -> None:
        """Resend after a back-off: there was no answer in time."""
        if step == self._in_flight:
            self._in_flight = None
            self._fields.reset()
            self._schedule.failed(now)
            self._maybe_end_leave(step)

    def heartbeat_answered(
        self, step: SendHeartbeat, response: ConsumerGroupHeartbeatResponse, now: float
    ) -> None:
        """Apply the answer to a heartbeat."""
        if step != self._in_flight:
            return
        self._in_flight = None
        self._failed_searches = 0
        if response.error_code == ErrorCode.NONE:
            self._schedule.answered(response.heartbeat_interval_ms / 1000, now)
            if self._is_current(step):
                self._member.heartbeat_answered(
                    response.member_epoch, _partitions(response.assignment)
                )
                if self.state is _S.JOINING:
                    # It lacks the epoch or the assignment, and may do so again.
                    self._schedule.failed(now)
            self._maybe_end_leave(step)
            return
        action = heartbeat_action(response.error_code)
        self._fields.reset()
        self._schedule.failed(now, may_skip=action in {_A.FIND_COORDINATOR, _A.REJOIN})
        self._refused(step, response, action, now)
        self._maybe_end_leave(step)

    def _refused(
        self,
        step: SendHeartbeat,
        response: ConsumerGroupHeartbeatResponse,
        action: HeartbeatAction,
        now: float,
    ) -> None:
        code, message = response.error_code, response.error_message
        is_current = self._is_current(step)
        match action:
            case _A.FIND_COORDINATOR:
                self.coordinator = None
                if now < self._schedule.next_at(is_urgent=True):
                    # Again: the brokers do not agree yet on who the coordinator is.
                    self._delay_search(now)
            case _A.REJOIN if is_current:
                self._member.fenced()
            case _A.RETRY_AND_RAISE if is_current:
                self._fail(ApiKey.CONSUMER_GROUP_HEARTBEAT, code, message)
            case _A.FATAL_IN_GROUP if is_current:
                self._end_membership(code, message)
            case _A.FATAL if is_current or _leaves(step):
                self._end_membership(code, message)

    def _end_membership(self, code: int, message: str | None) -> None:
        self._member.failed()
        self._fail(ApiKey.CONSUMER_GROUP_HEARTBEAT, code, message)

    def _is_current(self, step: SendHeartbeat) -> bool:
        """Return whether the answer is about the member as it is, not as it was when it left."""
        return not _leaves(step) and step.request.member_epoch == self._member.epoch

    def _maybe_end_leave(self, step: SendHeartbeat) -> None:
        """End the leaving if this was its heartbeat, which is never repeated."""
        if _leaves(step):
            self._member.leave_ended()

    def _fail(self, api_key: ApiKey, code: int, message: str | None = None) -> None:
        advice = HEARTBEAT_ADVICE.get(code)
        if (
            code == ErrorCode.UNSUPPORTED_VERSION
            and self._subscriptions.subscription.broker_pattern
        ):
            advice = PATTERN_ADVICE
        if message:
            broker_message = f"The broker says {message!r}"
            advice = f"{broker_message}. {advice}" if advice else broker_message
        self._set_failure(api_key, code, advice)


def _topic_partitions(assignment: LocalAssignment) -> tuple[TopicPartitions, ...]:
    return tuple(
        TopicPartitions(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in sorted(assignment.partitions.items())
    )


def _leaves(step: SendHeartbeat) -> bool:
    return step.request.member_epoch < 0


def _partitions(assignment: Assignment | None) -> dict[UUID, tuple[int, ...]] | None:
    if assignment is None:
        return None
    return {topic.topic_id: topic.partitions for topic in assignment.topic_partitions}
