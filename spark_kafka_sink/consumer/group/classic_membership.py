"""The membership in a group of the classic protocol (Kafka's AbstractCoordinator, without IO).

Its rules:

- It belongs to the thread that holds the consumer's lock, and has no lock of its own.
- `next_step` says what to do next, and returns each step once. The caller reports the outcome with
  the same step; the outcome of a step that is no longer current is ignored.
- The group is joined only within the user's `poll` (`may_join`), as in Java. Heartbeats and the
  search for the coordinator also go on outside of it.
- Of each kind of request one is in flight at a time, also of heartbeats, where Java sends the next
  one while an answer is late. Heartbeats are sent from the JoinGroup answer on.
- `CLASSIC_TRANSITIONS` alone decides which state may follow which: any other transition is refused
  and changes nothing. The generation changes only
  with an answer of the coordinator, or when it is given up.
- Answers change nothing if their request was sent in another generation.
"""

from __future__ import annotations

from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.consumer.group.group_requests import (
    GROUP_ADVICE,
    NO_GENERATION,
    CompleteJoin,
    FindCoordinator,
    Generation,
    GroupAction,
    GroupSettings,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeaveOperation,
    PerformAssignment,
    PrepareJoin,
    Step,
    SyncGroup,
    Wait,
    group_action,
    truncate_reason,
)
from spark_kafka_sink.consumer.group.membership import Membership
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, error_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.protocol.messages.join_group import JoinGroupResponse
    from spark_kafka_sink.protocol.messages.sync_group import SyncGroupResponse

#: How often a join that has failed is repeated at once, where Java always repeats it at once.
_QUICK_JOINS = 3
#: Seconds by which the timeout of JoinGroup exceeds that of a rebalance.
_JOIN_TIMEOUT_LAPSE: Final = 5.0


class ClassicMemberState(Enum):
    """The states of a member in the classic protocol (AbstractCoordinator.MemberState)."""

    #: It is in no group.
    UNJOINED = auto()
    #: It has sent JoinGroup.
    PREPARING_REBALANCE = auto()
    #: It has joined a generation, and waits for its assignment.
    COMPLETING_REBALANCE = auto()
    #: It has its assignment.
    STABLE = auto()


_S = ClassicMemberState

#: The states of the classic protocol that may follow each state.
CLASSIC_TRANSITIONS: dict[ClassicMemberState, frozenset[ClassicMemberState]] = {
    _S.UNJOINED: frozenset({_S.UNJOINED, _S.PREPARING_REBALANCE}),
    _S.PREPARING_REBALANCE: frozenset(
        {_S.UNJOINED, _S.PREPARING_REBALANCE, _S.COMPLETING_REBALANCE}
    ),
    _S.COMPLETING_REBALANCE: frozenset({_S.UNJOINED, _S.PREPARING_REBALANCE, _S.STABLE}),
    _S.STABLE: frozenset({_S.UNJOINED, _S.PREPARING_REBALANCE}),
}
#: The states in which the member belongs to a generation, and sends heartbeats.
JOINED: Final = frozenset({_S.COMPLETING_REBALANCE, _S.STABLE})


class HeartbeatTimer:
    """The timers of one member: when it sends heartbeats, and when it is too late for them.

    This is Kafka's Heartbeat class without its clock: all times are seconds on the caller's. There
    are three timers: the next heartbeat, the session (no answer for so long: the coordinator may be
    gone), and the user's calls of `poll` (none for so long: the member must leave, because others
    wait for its partitions).
    """

    def __init__(self, settings: GroupSettings, now: float) -> None:
        self._settings = settings
        self._failures = 0
        self.heartbeat_at = self._session_until = self._poll_until = now
        self.reset_timeouts(now)

    @property
    def next_deadline(self) -> float:
        """When the session or the time for `poll` ends, whichever is first."""
        return min(self._session_until, self._poll_until)

    def poll(self, now: float) -> None:
        """Restart the timer of the user's calls of `poll`."""
        self._poll_until = now + self._settings.rebalance_timeout

    def sent(self, now: float) -> None:
        """Schedule the next heartbeat after the one that is sent at `now`."""
        self.heartbeat_at = now + self._settings.heartbeat_interval

    def received(self, now: float) -> None:
        """Extend the session: the coordinator has answered."""
        self._failures = 0
        self.reset_session(now)

    def failed(self, now: float) -> None:
        """Schedule the next heartbeat after a back-off that grows with each failure (KIP-580)."""
        self.heartbeat_at = now + self._settings.backoff.delay(self._failures)
        self._failures += 1

    def should_heartbeat(self, now: float) -> bool:
        """Return whether a heartbeat is due."""
        return now >= self.heartbeat_at

    def has_session_expired(self, now: float) -> bool:
        """Return whether the coordinator has not answered for session.timeout.ms."""
        return now >= self._session_until

    def has_poll_expired(self, now: float) -> bool:
        """Return whether the user has not called `poll` for max.poll.interval.ms."""
        return now >= self._poll_until

    def reset_session(self, now: float) -> None:
        """Restart the session."""
        self._session_until = now + self._settings.session_timeout

    def reset_timeouts(self, now: float) -> None:
        """Restart all three timers."""
        self.reset_session(now)
        self.poll(now)
        self.sent(now)


class ClassicMembership(Membership):
    """One member of a classic group."""

    def __init__(self, settings: GroupSettings, now: float) -> None:
        """Start outside of the group."""
        super().__init__(settings, now)
        self._settings = settings
        self.state = _S.UNJOINED
        #: The current generation, or what is left of it.
        self.generation = NO_GENERATION
        #: Whether `failure` is the error of FindCoordinator.
        self._has_search_failed = False
        self._timer = HeartbeatTimer(settings, now)
        self._rejoin_needed = True
        self._rejoin_reason = ""
        self._prepare_needed = True
        self._join_at = now
        #: How often joining has failed since it last succeeded.
        self._failed_joins = 0
        self._heartbeat: Heartbeat | None = None
        #: The current step of joining, and whether it has been returned.
        self._join: (
            PrepareJoin | JoinGroup | PerformAssignment | SyncGroup | CompleteJoin | None
        ) = None
        self._is_returned = False
        #: Why to leave as soon as JoinGroup is answered with an id; empty for not at all.
        self._reason_to_leave = ""

    @property
    def stable_generation(self) -> Generation | None:
        """The generation with which to commit offsets; None while the group rebalances."""
        return self.generation if self.state is _S.STABLE else None

    @property
    def is_rejoin_needed(self) -> bool:
        """Whether the group has to be joined, or a join is not complete (rejoinNeededOrPending)."""
        return self._rejoin_needed or self._join is not None

    @property
    def awaits_others(self) -> bool:
        """Whether a request to the coordinator is in flight that waits for other members."""
        return self._is_returned and isinstance(self._join, JoinGroup | SyncGroup)

    @property
    def awaits_id_to_leave(self) -> bool:
        """Whether `join_answered` may return a request to leave."""
        return bool(self._reason_to_leave)

    # What the user does

    def poll(self, now: float) -> None:
        """Record a call of `poll`; raise the error of the group, if there is one, once."""
        self._timer.poll(now)
        super().poll(now)

    def raise_failure(self) -> None:
        """Raise the error of the group, if there is one, from a call other than `poll`.

        One of the search is raised once, so that the next call searches again.
        """
        failure = self.failure
        if failure is not None:
            if self._has_search_failed:
                self.failure = None
            raise failure

    def request_rejoin(self, reason: str) -> None:
        """Join the group again within the next `poll`; `reason` is for the coordinator's log."""
        self._rejoin_needed = True
        self._rejoin_reason = truncate_reason(reason)

    def leave(self, reason: str, operation: LeaveOperation) -> LeaveGroup | None:
        """Leave the group; return the request to send, or None if there is none to send.

        A static member leaves only with LEAVE_GROUP. No request is sent without a coordinator or a
        member id. In any case the member is in no generation afterwards.

        If JoinGroup is under way that will give the member its id (KIP-394), it leaves when that is
        answered. Java leaves it to its session, for whose end the group would wait.

        Source: AbstractCoordinator.maybeLeaveGroup.
        """
        leaves = operation is LeaveOperation.LEAVE_GROUP or (
            operation is LeaveOperation.DEFAULT and self._group_instance_id is None
        )
        member_id = self.generation.member_id
        can_leave = (
            self.coordinator is not None and self.state is not _S.UNJOINED and bool(member_id)
        )
        self._reset("consumer pro-actively leaving the group", keeps_member_id=False)
        if not leaves:
            return None
        if self._is_returned and isinstance(self._join, JoinGroup) and not member_id:
            self._reason_to_leave = truncate_reason(reason)
        return LeaveGroup(member_id, truncate_reason(reason)) if can_leave else None

    # What to do next

    def next_step(self, now: float, *, may_join: bool, needs_coordinator: bool = False) -> Step:
        """Return what to do at `now`, which is a `Wait` if there is nothing.

        `may_join` says that the user is in `poll` and has subscribed, `needs_coordinator` that
        something else, such as a commit, needs the coordinator.
        """
        step = self._step_of_a_member(now)
        if step is not None:
            return step
        needs_coordinator |= may_join or self.state in JOINED
        if self.failure is None:
            if self.coordinator is None:
                if needs_coordinator and now >= self._search_at:
                    return self._begin_search()
            elif (join := self._step_of_joining(now, may_join=may_join)) is not None:
                return join
        return Wait(self._wake_up_at(may_join=may_join, needs_coordinator=needs_coordinator))

    def _step_of_a_member(self, now: float) -> Heartbeat | LeaveGroup | None:
        """Return what keeps the member in the group, or takes it out (HeartbeatThread.run)."""
        if self.state not in JOINED or self.coordinator is None:
            return None
        if self._timer.has_session_expired(now):
            self.coordinator_lost(now)
            return None
        if self._timer.has_poll_expired(now):
            return self.leave("consumer poll timeout has expired.", LeaveOperation.DEFAULT)
        if self._heartbeat is None and self._timer.should_heartbeat(now):
            self._timer.sent(now)
            self._heartbeat = Heartbeat(self._next_number(), self.generation)
            return self._heartbeat
        return None

    def _step_of_joining(self, now: float, *, may_join: bool) -> Step | None:
        if self._join is None and may_join and self._rejoin_needed and now >= self._join_at:
            self._join = self._first_step_of_joining()
            self._is_returned = False
        # Only callbacks and the begin of a join have to wait for a `poll`.
        waits_for_poll = isinstance(self._join, CompleteJoin | PrepareJoin | JoinGroup)
        if self._join is None or self._is_returned or (waits_for_poll and not may_join):
            return None
        self._is_returned = True
        return self._join

    def _first_step_of_joining(self) -> PrepareJoin | JoinGroup:
        if self._prepare_needed:
            return PrepareJoin(self._next_number(), self.generation)
        self._transition(_S.PREPARING_REBALANCE)
        timeout = max(
            self._settings.request_timeout, self._settings.rebalance_timeout + _JOIN_TIMEOUT_LAPSE
        )
        return JoinGroup(self._next_number(), self.generation, self._rejoin_reason, timeout)

    def _wake_up_at(self, *, may_join: bool, needs_coordinator: bool) -> float:
        times = [inf]
        if self.coordinator is None:
            if needs_coordinator and self.failure is None:
                times.append(self._search_at)
        elif self.state in JOINED:
            times.append(self._timer.next_deadline)
            if self._heartbeat is None:
                times.append(self._timer.heartbeat_at)
        waits_to_join = may_join and self._rejoin_needed and self._join is None
        if waits_to_join and self.failure is None and self.coordinator is not None:
            times.append(self._join_at)
        return min(times)

    # The coordinator

    def coordinator_found(self, step: FindCoordinator, node: Node, now: float) -> None:
        """Use `node` as the coordinator."""
        if step == self._search:
            self._timer.reset_session(now)
        super().coordinator_found(step, node, now)

    def coordinator_not_found(self, step: FindCoordinator, code: int | None, now: float) -> None:
        """Retry the search after a back-off, or fail; `code` is None if there was no answer."""
        if not self._end_search(step):
            return
        if code is not None and group_action(ApiKey.FIND_COORDINATOR, code) is GroupAction.FATAL:
            self._fail(ApiKey.FIND_COORDINATOR, code)
        else:
            self._delay_search(now)

    def coordinator_lost(self, now: float, *, was_reached: bool = True) -> None:
        """Rediscover the coordinator; joining starts again after the back-off, with the same id."""
        super().coordinator_lost(now, was_reached=was_reached)
        if self._heartbeat is not None:
            self._heartbeat = None
            self._timer.failed(now)
        if self.awaits_others:
            self._retry_join("rebalance failed due to the loss of the coordinator", now)

    def generation_ended(self, reason: str, *, keeps_member_id: bool) -> None:
        """Join again within the next `poll`: an answer to OffsetCommit says that it has ended.

        The caller has checked that the commit was sent in the current generation. The member keeps
        its id if the coordinator may still know it.

        Source: AbstractCoordinator.resetStateOnResponseError.
        """
        self._reset(reason, keeps_member_id=keeps_member_id)

    # The outcomes of joining

    def join_prepared(self, step: PrepareJoin, *, is_done: bool = True) -> None:
        """Send JoinGroup next; if `is_done` is False, prepare again."""
        if step == self._join:
            self._join = None
            self._prepare_needed = not is_done or step.generation != self.generation

    def join_answered(
        self, step: JoinGroup, response: JoinGroupResponse, now: float
    ) -> LeaveGroup | None:
        """Apply the answer to JoinGroup; return a request to send if the member has left."""
        if step != self._join:
            return None
        self._failed_searches = 0
        reason, self._reason_to_leave = self._reason_to_leave, ""
        if reason and response.member_id:
            self._retry_join("the member left while it joined", now)
            return LeaveGroup(response.member_id, reason)
        code = response.error_code
        if response.protocol_type not in {None, self._settings.protocol_type}:
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        action = group_action(ApiKey.JOIN_GROUP, code)
        if action is not GroupAction.DONE:
            self._join_failed(ApiKey.JOIN_GROUP, code, step.generation, response.member_id, now)
        elif self.state is not _S.PREPARING_REBALANCE:
            # The member has left in the meantime.
            self._retry_join("the member left while it joined", now)
        else:
            self._transition(_S.COMPLETING_REBALANCE)
            self.generation = Generation(
                response.generation_id, response.member_id, response.protocol_name
            )
            self._timer.reset_timeouts(now)
            number = self._next_number()
            self._join = (
                PerformAssignment(
                    number, self.generation, response.members, response.skip_assignment
                )
                if response.leader == response.member_id
                else SyncGroup(number, self.generation)
            )
            self._is_returned = False
        return None

    def assignment_performed(
        self, step: PerformAssignment, assignments: Mapping[str, bytes]
    ) -> None:
        """Send the assignments, by member id, with SyncGroup next."""
        if step != self._join:
            return
        self._join = None
        if step.generation == self.generation:
            self._join = SyncGroup(self._next_number(), self.generation, assignments)
            self._is_returned = False

    def assignment_failed(self, step: PerformAssignment) -> bool:
        """Join again within the next `poll`: the assignor has raised, and `poll` raises that.

        Return False if the step is no longer current, so that the error does not matter.
        """
        is_current = step == self._join
        if is_current:
            self._join = None
            self.request_rejoin("rebalance failed due to the assignor")
        return is_current

    def join_abandoned(self, step: JoinGroup, now: float) -> None:
        """Join again after a back-off: JoinGroup could not be built, and `poll` raises why."""
        if step == self._join:
            self._retry_join("rebalance failed due to the assignor", now)

    def sync_answered(self, step: SyncGroup, response: SyncGroupResponse, now: float) -> None:
        """Apply the answer to SyncGroup; brokers may omit both parts of the protocol."""
        if step != self._join:
            return
        code = response.error_code
        if code == ErrorCode.NONE:
            is_current = self.state is _S.COMPLETING_REBALANCE and not self.generation.is_reset
            if response.protocol_type not in {None, self._settings.protocol_type} or (
                is_current and response.protocol_name not in {None, self.generation.protocol}
            ):
                code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            elif not is_current:
                code = ErrorCode.ILLEGAL_GENERATION
        if code != ErrorCode.NONE:
            self._join_failed(ApiKey.SYNC_GROUP, code, step.generation, "", now)
            return
        self._transition(_S.STABLE)
        self._failed_joins = 0
        self._rejoin_needed = False
        self._rejoin_reason = ""
        self._join = CompleteJoin(self._next_number(), self.generation, response.assignment)
        self._is_returned = False

    def join_completed(self, step: CompleteJoin, *, is_done: bool = True) -> None:
        """End the join; if `is_done` is False, the same assignment is applied again."""
        if step != self._join:
            return
        if is_done or step.generation != self.generation:
            self._join = None
            self._prepare_needed = True
        else:
            self._is_returned = False

    # The outcomes of heartbeats

    def heartbeat_answered(self, step: Heartbeat, code: int, now: float) -> None:
        """Apply the answer to a heartbeat."""
        if step != self._heartbeat:
            return
        self._heartbeat = None
        self._failed_searches = 0
        action = group_action(ApiKey.HEARTBEAT, code)
        is_unchanged = step.generation == self.generation
        match action:
            case GroupAction.DONE:
                self._timer.received(now)
            case GroupAction.REJOIN:
                # The session goes on during a rebalance; only a stable member has to react.
                if self.state is _S.STABLE:
                    self.request_rejoin("group is already rebalancing")
                self._timer.received(now)
            case GroupAction.FIND_COORDINATOR:
                self._timer.failed(now)
                self.coordinator_lost(now)
            case GroupAction.RETRY:
                self._timer.failed(now)
            case _ if not is_unchanged:
                self._timer.received(now)
            case _:
                self._reset_after(ApiKey.HEARTBEAT, code, action)
                self._timer.failed(now)
                if action is GroupAction.FENCED:
                    self._fail(ApiKey.HEARTBEAT, code)

    # How the state changes

    def _join_failed(
        self, api_key: ApiKey, code: int, sent: Generation, member_id: str, now: float
    ) -> None:
        action = group_action(api_key, code)
        self._join = None
        self._failed_joins += 1
        if self._failed_joins > _QUICK_JOINS:
            self._join_at = now + self._settings.backoff.initial
        if action is GroupAction.TAKE_MEMBER_ID:
            self.generation = Generation(member_id=member_id)
            self.request_rejoin(f"need to re-join with the given member-id: {member_id}")
            return
        reason = f"rebalance failed due to {error_name(code)}"
        if action in {GroupAction.REJOIN_AS_NEW, GroupAction.REJOIN_AS_MEMBER}:
            if sent == self.generation:
                self._reset_after(api_key, code, action)
        elif action is GroupAction.FIND_COORDINATOR:
            self.coordinator_lost(now)
        elif action is GroupAction.FATAL:
            self._fail(api_key, code)
        if action in {GroupAction.RETRY, GroupAction.FIND_COORDINATOR}:
            self._retry_join(reason, now)
        else:
            self.request_rejoin(reason)

    def _retry_join(self, reason: str, now: float) -> None:
        self._join = None
        self._reason_to_leave = ""
        self._join_at = now + self._settings.backoff.initial
        self.request_rejoin(reason)

    def _reset_after(self, api_key: ApiKey, code: int, action: GroupAction) -> None:
        self._reset(
            f"encountered {error_name(code)} from {api_key.name} response",
            keeps_member_id=action is GroupAction.REJOIN_AS_MEMBER,
        )

    def _reset(self, reason: str, *, keeps_member_id: bool) -> None:
        """End the generation (AbstractCoordinator.resetStateAndRejoin).

        A step that has been returned stays the current one until its outcome is known, so that no
        second join begins beside it.
        """
        self._transition(_S.UNJOINED)
        self.generation = (
            Generation(member_id=self.generation.member_id) if keeps_member_id else NO_GENERATION
        )
        if not self._is_returned:
            self._join = None
        self._prepare_needed = True
        self.request_rejoin(reason)

    def _fail(self, api_key: ApiKey, code: int) -> None:
        self._has_search_failed = api_key is ApiKey.FIND_COORDINATOR
        self._set_failure(api_key, code, GROUP_ADVICE.get(code))

    def _transition(self, target: ClassicMemberState) -> None:
        if target not in CLASSIC_TRANSITIONS[self.state]:
            raise IllegalStateError(
                f"invalid transition of group {self._settings.group_id!r} from "
                f"{self.state.name} to {target.name}"
            )
        self.state = target
