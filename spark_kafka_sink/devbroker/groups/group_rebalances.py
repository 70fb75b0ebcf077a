"""Rebalances and sessions of consumer groups: the effects of membership and time.

A part of Kafka's GroupMetadataManager 4.3; the requests of members are in `group_coordinator`. A
rebalance has two phases. In the first all members join, or are removed after a timeout; the group's
next generation begins and is sent to every member, to the leader with the list of members. In the
second the leader sends the assignment, and every member receives its part.

A new group waits for more members for `group_initial_rebalance_delay_ms`, and again as long as some
join. A member is removed if it sends nothing for its session timeout, unless the coordinator owes
it a response. Each generation is written to the log, if there is one (`coordinator_log`), with its
members and their assignments.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.groups.group_answers import join_error, sync_error, synced
from spark_kafka_sink.devbroker.groups.group_records import encode_group
from spark_kafka_sink.devbroker.groups.group_state import GroupState
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.join_group import JoinGroupResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.base.parked import Parked
    from spark_kafka_sink.devbroker.base.timers import Timer, Timers
    from spark_kafka_sink.devbroker.groups.classic_group import ClassicGroup, Member
    from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorLog

logger = logging.getLogger(__name__)

T = TypeVar("T")


class GroupRebalances:
    """Moves every group from one generation to the next."""

    def __init__(
        self,
        settings: BrokerSettings,
        timers: Timers,
        *,
        changed: Callable[[Hashable], None],
        log: CoordinatorLog,
    ) -> None:
        """Start without timers; `changed` is called with parked requests that have a response."""
        self._settings = settings
        self._timers = timers
        self._changed = changed
        self._log = log

    # First phase: members join.

    def rebalance_or_complete(self, group: ClassicGroup, now: float) -> None:
        """Start a rebalance, or complete one that only waited for this change."""
        if group.can_rebalance:
            self.prepare_rebalance(group, now)
        else:
            self.maybe_complete_join(group, now)

    def prepare_rebalance(self, group: ClassicGroup, now: float) -> None:
        """Start a rebalance, in which all members must rejoin."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
                self.complete_sync(group, member, ErrorCode.REBALANCE_IN_PROGRESS, now)
        group.pending_sync.clear()
        _cancel(group.sync_timer)
        is_initial = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE)
        if not is_initial:
            if group.all_have_joined:
                self._complete_join(group, now)
            else:
                self._schedule_join(group, now)
            return
        delay_ms = self._settings.group_initial_rebalance_delay_ms
        remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        self._wait_for_more_members(group, delay_ms, remaining_ms, now)

    def _wait_for_more_members(
        self, group: ClassicGroup, delay_ms: int, remaining_ms: int, now: float
    ) -> None:
        def complete(then: float) -> None:
            if group.new_member_added and remaining_ms:
                group.new_member_added = False
                self._wait_for_more_members(
                    group,
                    min(self._settings.group_initial_rebalance_delay_ms, remaining_ms),
                    max(remaining_ms - delay_ms, 0),
                    then,
                )
            else:
                self._complete_join(group, then)

        _cancel(group.join_timer)
        group.join_timer = self._timers.schedule(now + delay_ms / 1000, complete)
        # Without a delay the first member need not wait for the next tick.
        if not delay_ms:
            self._timers.run_due(now)

    def _schedule_join(self, group: ClassicGroup, now: float) -> None:
        _cancel(group.join_timer)
        group.join_timer = self._timers.schedule(
            now + group.rebalance_timeout_ms / 1000, lambda then: self._complete_join(group, then)
        )

    def maybe_complete_join(self, group: ClassicGroup, now: float) -> None:
        """Begin the next generation if all members have joined."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.all_have_joined
        ):
            self._complete_join(group, now)

    def _complete_join(self, group: ClassicGroup, now: float) -> None:
        """Begin the next generation with the members that have joined."""
        _cancel(group.join_timer)
        for member in list(group.members.values()):
            if member.awaiting_join is None and member.group_instance_id is None:
                group.remove(member.member_id)
        if group.state is GroupState.DEAD:
            return
        if group.members and not group.elect_joined_leader():
            self._schedule_join(group, now)
            return
        group.begin_generation()
        for member in group.members.values():
            self.complete_join_of(group, member, self.joined(group, member), now)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        if not group.members:
            try:
                self.keep(group, now)
            except RefusedError as refused:
                # After a restart the previous members are restored, and then time out.
                logger.warning("cannot record that group %s is empty: %s", group.group_id, refused)
        else:
            generation_id = group.generation_id
            _cancel(group.sync_timer)
            group.sync_timer = self._timers.schedule(
                now + group.rebalance_timeout_ms / 1000,
                lambda then: self._expire_pending_sync(group, generation_id, then),
            )

    def complete_join_of(
        self, group: ClassicGroup, member: Member, response: JoinGroupResponse, now: float
    ) -> None:
        """Complete a member's join, if it waits for one, and restart its session."""
        if member.awaiting_join is not None:
            self.answer(member.awaiting_join, response)
            member.awaiting_join = None
        self.restart_session(group, member, now)

    def joined(
        self,
        group: ClassicGroup,
        member: Member,
        *,
        skip_assignment: bool = False,
        leader: str | None = None,
    ) -> JoinGroupResponse:
        """Return a response with the generation; `leader` overrides the group's own."""
        leader = leader or group.leader_id or ""
        return JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=leader,
            skip_assignment=skip_assignment,
            member_id=member.member_id,
            members=group.described_members() if leader == member.member_id else (),
        )

    # Second phase: members receive their assignments.

    def assigned(self, group: ClassicGroup, now: float) -> None:
        """Write the assignment, then send each member its part; on failure rebalance again."""
        try:
            self.keep(group, now)
        except RefusedError as refused:
            logger.warning("cannot store the assignment of group %s: %s", group.group_id, refused)
            for member in group.members.values():
                member.assignment = b""
                self.complete_sync(group, member, refused.error_code, now)
            self.rebalance_or_complete(group, now)
            return
        group.transition_to(GroupState.STABLE)
        for member in group.members.values():
            self.complete_sync(group, member, ErrorCode.NONE, now)

    def complete_sync(
        self, group: ClassicGroup, member: Member, error_code: ErrorCode, now: float
    ) -> None:
        """Complete a member's sync, if it waits for one, and restart its session."""
        if member.awaiting_sync is None:
            return
        response = synced(group, member) if error_code is ErrorCode.NONE else sync_error(error_code)
        self.answer(member.awaiting_sync, response)
        member.awaiting_sync = None
        self.restart_session(group, member, now)

    def received_sync(self, group: ClassicGroup, member: Member) -> None:
        """Record that a member has sent SyncGroup."""
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            _cancel(group.sync_timer)

    def _expire_pending_sync(self, group: ClassicGroup, generation_id: int, now: float) -> None:
        """Remove the members that joined but never sent SyncGroup."""
        if generation_id != group.generation_id or not group.pending_sync:
            return
        for member_id in list(group.pending_sync):
            group.remove(member_id)
        self.rebalance_or_complete(group, now)

    # Sessions.

    def expect(
        self, group: ClassicGroup, member_id: str, session_timeout_ms: int, now: float
    ) -> None:
        """Add a pending member, which must rejoin with its new id within its session timeout."""
        group.pending_members[member_id] = self._timers.schedule(
            now + session_timeout_ms / 1000,
            lambda then: self._expire_pending_member(group, member_id, then),
        )

    def restart_session(
        self, group: ClassicGroup, member: Member, now: float, *, timeout_ms: int | None = None
    ) -> None:
        """Restart a member's session, with its own timeout or with `timeout_ms`."""
        _cancel(member.timer)
        if timeout_ms is None:
            timeout_ms = member.session_timeout_ms
        member.timer = self._timers.schedule(
            now + timeout_ms / 1000, lambda then: self._expire_session(group, member, then)
        )

    def _expire_session(self, group: ClassicGroup, member: Member, now: float) -> None:
        if member.has_satisfied_heartbeat:
            return
        logger.info(
            "the session of member %s of group %s has expired", member.member_id, group.group_id
        )
        self.remove(group, member)
        if group.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            self.rebalance_or_complete(group, now)
        elif group.state is GroupState.PREPARING_REBALANCE and group.all_have_joined:
            self._complete_join(group, now)

    def _expire_pending_member(self, group: ClassicGroup, member_id: str, now: float) -> None:
        group.remove(member_id)
        if group.state is GroupState.PREPARING_REBALANCE and group.all_have_joined:
            self._complete_join(group, now)

    def remove(self, group: ClassicGroup, member: Member) -> None:
        """Remove a member; its waiting requests fail with UNKNOWN_MEMBER_ID."""
        if member.awaiting_join is not None:
            self.answer(member.awaiting_join, join_error("", ErrorCode.UNKNOWN_MEMBER_ID))
            member.awaiting_join = None
        if member.awaiting_sync is not None:
            self.answer(member.awaiting_sync, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
            member.awaiting_sync = None
        group.remove(member.member_id)

    def answer(self, parked: Parked[T], response: T) -> None:
        """Set the response of a parked request and wake it."""
        parked.response = response
        self._changed(parked)

    def keep(self, group: ClassicGroup, now: float) -> None:
        """Write a group's generation. Raises RefusedError."""
        if self._log.is_durable:
            now_ms = int(now * 1000)
            self._log.append(group.group_id, [encode_group(group, now_ms=now_ms)], now_ms=now_ms)


def _cancel(timer: Timer | None) -> None:
    if timer is not None:
        timer.cancel()
