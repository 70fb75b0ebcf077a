"""The groups of the classic protocol: their members' requests, rebalances and sessions.

The classic half of Kafka's GroupMetadataManager 4.3; the other half, groups of the new consumer
protocol, is `consumer_groups`. JoinGroup and SyncGroup wait for the other members: they return
`Parked`, whose response is set later, possibly by a timer.

A rebalance has two phases. In the first all members join, or are removed after a timeout; the
group's next generation begins and is sent to every member, to the leader with the list of members.
In the second the leader sends the assignment, and every member receives its part.

A new group waits for more members for `group_initial_rebalance_delay_ms`, and again as long as some
join. A member is removed if it sends nothing for its session timeout, unless the coordinator owes
it a response. Each generation is written to the log, if there is one (`coordinator_log`), with its
members and their assignments.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.groups.classic_group import ClassicGroup, GroupState, Member, Parked
from spark_kafka_sink.devbroker.groups.consumer_group import ConsumerGroup
from spark_kafka_sink.devbroker.groups.group_records import (
    encode_deleted_consumer_group,
    encode_group,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from spark_kafka_sink.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_kafka_sink.devbroker.base.timers import Timer
    from spark_kafka_sink.devbroker.cluster.cluster_state import ClusterState
    from spark_kafka_sink.devbroker.groups.classic_group import RequestSender
    from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorLog
    from spark_kafka_sink.protocol.messages.heartbeat import HeartbeatRequest
    from spark_kafka_sink.protocol.messages.leave_group import MemberIdentity

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How long a new member, which does not know its id yet, waits for its join to complete.
_NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
#: Since this version of JoinGroup a new member receives an id first and rejoins with it (KIP-394).
_FIRST_VERSION_THAT_NEEDS_MEMBER_ID = 4
#: Since this version the response can make the leader skip the assignment (KIP-814).
_FIRST_VERSION_THAT_SKIPS_ASSIGNMENT = 9
#: Maximum number of protocols of a member. Clients have a few; Kafka, whose groups do not share one
#: thread, has no such limit.
MAX_PROTOCOLS = 100
_NO_GENERATION = -1


class ClassicGroups:
    """The classic groups among all groups."""

    def __init__(
        self,
        cluster: ClusterState,
        groups: dict[str, ClassicGroup | ConsumerGroup],
        log: CoordinatorLog,
    ) -> None:
        """Manage the classic groups in `groups`, which has the consumer groups too."""
        self._cluster = cluster
        self._settings = cluster.settings
        self._timers = cluster.timers
        self._groups = groups
        self._log = log

    # Joining.

    def join(
        self, request: JoinGroupRequest, client: RequestSender, now: float
    ) -> Parked[JoinGroupResponse]:
        """Add a member, or let it rejoin. Raises RefusedError.

        A new member creates its group, or turns one of the new protocol without members into a
        classic one, even if it is refused itself (GroupMetadataManager.classicGroupJoin).
        """
        _check_group_id(request.group_id)
        if not (
            self._settings.group_min_session_timeout_ms
            <= request.session_timeout_ms
            <= self._settings.group_max_session_timeout_ms
        ):
            raise RefusedError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session.timeout.ms is {request.session_timeout_ms} but must be between "
                f"group.min.session.timeout.ms, {self._settings.group_min_session_timeout_ms}, and "
                f"group.max.session.timeout.ms, {self._settings.group_max_session_timeout_ms}",
            )
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            raise RefusedError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {request.group_id!r} uses the new consumer protocol",
            )
        if not isinstance(group, ClassicGroup):
            if request.member_id:
                raise _unknown_member(request.group_id, request.member_id)
            group = self._replace_by_classic(request.group_id, group, now)
        return self._join(group, request, client, now)

    def _replace_by_classic(
        self, group_id: str, former: ConsumerGroup | None, now: float
    ) -> ClassicGroup:
        """Create an empty classic group, on disk as well. Raises RefusedError."""
        if self._log.is_durable:
            now_ms = int(now * 1000)
            records = [] if former is None else encode_deleted_consumer_group(former)
            # In one batch, so that a failure leaves the former group as it was.
            records.append(encode_group(ClassicGroup(group_id), now_ms=now_ms))
            self._log.append(group_id, records, now_ms=now_ms)
        group = self._groups[group_id] = ClassicGroup(group_id)
        return group

    def _join(
        self, group: ClassicGroup, request: JoinGroupRequest, client: RequestSender, now: float
    ) -> Parked[JoinGroupResponse]:
        if not self._accepts(group, request.member_id):
            group.remove(request.member_id)
            raise RefusedError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"group {request.group_id!r} is full (group.max.size)",
            )
        if len(request.protocols) > MAX_PROTOCOLS:
            raise RefusedError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the member has {len(request.protocols)} protocols, but at most {MAX_PROTOCOLS} "
                "are allowed",
            )
        if not group.supports(request.protocol_type, request.protocols):
            raise RefusedError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {request.group_id!r} does not support the protocols of the member",
            )
        if request.member_id in group.pending_members:
            return self._add_member(group, request.member_id, request, client, now)
        if request.member_id:
            return self._join_existing_member(group, request, now)
        instance_id = request.group_instance_id
        prefix = client.client_id if instance_id is None else instance_id
        member_id = f"{prefix}-{uuid.uuid4()}"
        if instance_id is not None and instance_id in group.static_members:
            return self._replace_static_member(group, member_id, request, client, now)
        if instance_id is not None or client.version < _FIRST_VERSION_THAT_NEEDS_MEMBER_ID:
            return self._add_member(group, member_id, request, client, now)
        # The member must rejoin with its new id within its session timeout.
        group.pending_members[member_id] = self._timers.schedule(
            now + request.session_timeout_ms / 1000,
            lambda then: self._expire_pending_member(group, member_id, then),
        )
        return Parked(join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED))

    def _join_existing_member(
        self, group: ClassicGroup, request: JoinGroupRequest, now: float
    ) -> Parked[JoinGroupResponse]:
        member = group.check_member(request.member_id, request.group_instance_id)
        unchanged = member.protocols == request.protocols
        is_leader = group.leader_id == member.member_id
        if unchanged and (
            group.state is GroupState.COMPLETING_REBALANCE
            or (group.state is GroupState.STABLE and not is_leader)
        ):
            # It may not have received the response to its first request. A leader that rejoins a
            # stable group requests a rebalance.
            return Parked(self._joined(group, member))
        _update_member(member, request)
        parked = member.awaiting_join = Parked()
        self._rebalance_or_complete(group, now)
        return parked

    def _replace_static_member(
        self,
        group: ClassicGroup,
        member_id: str,
        request: JoinGroupRequest,
        client: RequestSender,
        now: float,
    ) -> Parked[JoinGroupResponse]:
        """Replace a static member that was restarted."""
        former_leader = group.leader_id
        instance_id = request.group_instance_id or ""
        old, member = group.replace_static_member(instance_id, member_id)
        if old.awaiting_join is not None:
            self._answer(old.awaiting_join, join_error(old.member_id, ErrorCode.FENCED_INSTANCE_ID))
        if old.awaiting_sync is not None:
            self._answer(old.awaiting_sync, _sync_error(ErrorCode.FENCED_INSTANCE_ID))
        self.restart_session(group, member, now)
        _update_member(member, request)
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            try:
                self._keep(group, now)
            except RefusedError:
                # It keeps its old id and retries.
                _, back = group.replace_static_member(instance_id, old.member_id)
                back.protocols = old.protocols
                back.rebalance_timeout_ms = old.rebalance_timeout_ms
                back.session_timeout_ms = old.session_timeout_ms
                self.restart_session(group, back, now)
                raise
            if client.version >= _FIRST_VERSION_THAT_SKIPS_ASSIGNMENT:
                is_leader = group.leader_id == member_id
                return Parked(self._joined(group, member, skip_assignment=is_leader))
            # With the former leader's id in the response it does not consider itself leader.
            return Parked(self._joined(group, member, leader=former_leader))
        parked = member.awaiting_join = Parked()
        if group.state in {GroupState.COMPLETING_REBALANCE, GroupState.STABLE}:
            self._prepare_rebalance(group, now)
        else:
            self._maybe_complete_join(group, now)
        return parked

    def _add_member(
        self,
        group: ClassicGroup,
        member_id: str,
        request: JoinGroupRequest,
        client: RequestSender,
        now: float,
    ) -> Parked[JoinGroupResponse]:
        parked: Parked[JoinGroupResponse] = Parked()
        member = Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=client.client_id,
            client_host=client.client_host,
            rebalance_timeout_ms=_rebalance_timeout_ms(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            awaiting_join=parked,
        )
        state, previous_state = group.state, group.previous_state
        if state is GroupState.PREPARING_REBALANCE and previous_state is GroupState.EMPTY:
            group.new_member_added = True
        group.add(member, request.protocol_type)
        self.restart_session(group, member, now, timeout_ms=_NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(group, now)
        return parked

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        limit = self._settings.group_max_size
        member = group.members.get(member_id)
        match group.state:
            case GroupState.PREPARING_REBALANCE:
                is_waiting = member is not None and member.awaiting_join is not None
                return is_waiting or group.awaiting_join < limit
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                return member is not None or len(group.members) < limit
        return True

    # First phase: members join.

    def _rebalance_or_complete(self, group: ClassicGroup, now: float) -> None:
        """Start a rebalance, or complete one that only waited for this change."""
        if group.can_rebalance:
            self._prepare_rebalance(group, now)
        else:
            self._maybe_complete_join(group, now)

    def _prepare_rebalance(self, group: ClassicGroup, now: float) -> None:
        """Start a rebalance, in which all members must rejoin."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
                self._complete_sync(group, member, ErrorCode.REBALANCE_IN_PROGRESS, now)
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

    def _maybe_complete_join(self, group: ClassicGroup, now: float) -> None:
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
            self._complete_join_of(group, member, self._joined(group, member), now)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        if not group.members:
            try:
                self._keep(group, now)
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

    def _complete_join_of(
        self, group: ClassicGroup, member: Member, response: JoinGroupResponse, now: float
    ) -> None:
        """Complete a member's join, if it waits for one, and restart its session."""
        if member.awaiting_join is not None:
            self._answer(member.awaiting_join, response)
            member.awaiting_join = None
        self.restart_session(group, member, now)

    def _joined(
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

    def sync(self, request: SyncGroupRequest, now: float) -> Parked[SyncGroupResponse]:
        """Return a member's part of the assignment, once the leader has sent it.

        Raises RefusedError.
        """
        group, member = self._find_member(request)
        if any(
            None not in {stated, known} and stated != known
            for stated, known in (
                (request.protocol_type, group.protocol_type),
                (request.protocol_name, group.protocol_name),
            )
        ):
            raise RefusedError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {group.group_id!r} uses {group.protocol_type} {group.protocol_name}",
            )
        _check_not_rebalancing(group)
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            _cancel(group.sync_timer)
        if group.state is GroupState.STABLE:
            return Parked(_synced(group, member))
        parked = member.awaiting_sync = Parked()
        if group.leader_id == member.member_id:
            assignments = {a.member_id: a.assignment for a in request.assignments}
            for group_member in group.members.values():
                group_member.assignment = assignments.get(group_member.member_id, b"")
            self._assigned(group, now)
        return parked

    def _find_member(
        self, request: SyncGroupRequest | HeartbeatRequest
    ) -> tuple[ClassicGroup, Member]:
        """Return a group and a member of its current generation. Raises RefusedError."""
        _check_group_id(request.group_id)
        group = self._groups.get(request.group_id)
        # A member of the new protocol is not a member for requests of the classic one.
        if not isinstance(group, ClassicGroup) or not group.members:
            raise _unknown_member(request.group_id, request.member_id)
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation_id:
            raise RefusedError(
                ErrorCode.ILLEGAL_GENERATION,
                f"group {group.group_id!r} has generation {group.generation_id}, not "
                f"{request.generation_id}",
            )
        return group, member

    def _assigned(self, group: ClassicGroup, now: float) -> None:
        """Write the assignment, then send each member its part; on failure rebalance again."""
        try:
            self._keep(group, now)
        except RefusedError as refused:
            logger.warning("cannot store the assignment of group %s: %s", group.group_id, refused)
            for member in group.members.values():
                member.assignment = b""
                self._complete_sync(group, member, refused.error_code, now)
            self._rebalance_or_complete(group, now)
            return
        group.transition_to(GroupState.STABLE)
        for member in group.members.values():
            self._complete_sync(group, member, ErrorCode.NONE, now)

    def _complete_sync(
        self, group: ClassicGroup, member: Member, error_code: ErrorCode, now: float
    ) -> None:
        """Complete a member's sync, if it waits for one, and restart its session."""
        if member.awaiting_sync is None:
            return
        response = (
            _synced(group, member) if error_code is ErrorCode.NONE else _sync_error(error_code)
        )
        self._answer(member.awaiting_sync, response)
        member.awaiting_sync = None
        self.restart_session(group, member, now)

    def _expire_pending_sync(self, group: ClassicGroup, generation_id: int, now: float) -> None:
        """Remove the members that joined but never sent SyncGroup."""
        if generation_id != group.generation_id or not group.pending_sync:
            return
        for member_id in list(group.pending_sync):
            group.remove(member_id)
        self._rebalance_or_complete(group, now)

    # Sessions.

    def heartbeat(self, request: HeartbeatRequest, now: float) -> None:
        """Restart a member's session.

        Raises RefusedError, with REBALANCE_IN_PROGRESS for a member that must rejoin.
        """
        group, member = self._find_member(request)
        self.restart_session(group, member, now)
        _check_not_rebalancing(group)

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
        self._remove(group, member)
        if group.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            self._rebalance_or_complete(group, now)
        elif group.state is GroupState.PREPARING_REBALANCE and group.all_have_joined:
            self._complete_join(group, now)

    def _expire_pending_member(self, group: ClassicGroup, member_id: str, now: float) -> None:
        group.remove(member_id)
        if group.state is GroupState.PREPARING_REBALANCE and group.all_have_joined:
            self._complete_join(group, now)

    # Leaving.

    def leave(
        self, group_id: str, members: Iterable[MemberIdentity], now: float
    ) -> list[ErrorCode]:
        """Remove members; return an error code for each. Raises RefusedError."""
        _check_group_id(group_id)
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise _unknown_member(group_id, "")
        codes = [self._leave_one(group, member) for member in members]
        if ErrorCode.NONE in codes:
            if group.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
                self._rebalance_or_complete(group, now)
            else:
                self._maybe_complete_join(group, now)
        return codes

    def _leave_one(self, group: ClassicGroup, leaving: MemberIdentity) -> ErrorCode:
        member_id = leaving.member_id
        if not member_id:
            # Administrators remove static members by instance id.
            member_id = group.static_members.get(leaving.group_instance_id or "", "")
        elif member_id in group.pending_members:
            group.remove(member_id)
            return ErrorCode.NONE
        try:
            member = group.check_member(member_id, leaving.group_instance_id)
        except RefusedError as refused:
            return refused.error_code
        self._remove(group, member)
        return ErrorCode.NONE

    def _remove(self, group: ClassicGroup, member: Member) -> None:
        """Remove a member; its waiting requests fail with UNKNOWN_MEMBER_ID."""
        if member.awaiting_join is not None:
            self._answer(member.awaiting_join, join_error("", ErrorCode.UNKNOWN_MEMBER_ID))
            member.awaiting_join = None
        if member.awaiting_sync is not None:
            self._answer(member.awaiting_sync, _sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
            member.awaiting_sync = None
        group.remove(member.member_id)

    def _answer(self, parked: Parked[T], response: T) -> None:
        """Set the response of a parked request and wake it."""
        parked.response = response
        self._cluster.changed(parked)

    def _keep(self, group: ClassicGroup, now: float) -> None:
        """Write a group's generation. Raises RefusedError."""
        if self._log.is_durable:
            now_ms = int(now * 1000)
            self._log.append(group.group_id, [encode_group(group, now_ms=now_ms)], now_ms=now_ms)

    def restart(self, group: ClassicGroup, now: float) -> None:
        """Fail the requests that wait for a group, whose coordinator has stopped.

        The group does not change (Kafka reads it back from the log, and may lose members that have
        just joined); its members have a session timeout to come back (ClassicGroup.onUnloaded).
        """
        for member in group.members.values():
            if member.awaiting_join is not None:
                response = join_error(member.member_id, ErrorCode.NOT_COORDINATOR)
                self._complete_join_of(group, member, response, now)
            self._complete_sync(group, member, ErrorCode.NOT_COORDINATOR, now)

    def unload(self, group: ClassicGroup) -> None:
        """Fail the requests that wait for a group that another broker coordinates now."""
        for member in group.members.values():
            if member.awaiting_join is not None:
                response = join_error(member.member_id, ErrorCode.NOT_COORDINATOR)
                self._answer(member.awaiting_join, response)
                member.awaiting_join = None
            if member.awaiting_sync is not None:
                self._answer(member.awaiting_sync, _sync_error(ErrorCode.NOT_COORDINATOR))
                member.awaiting_sync = None
            _cancel(member.timer)
        for timer in (group.join_timer, group.sync_timer, *group.pending_members.values()):
            _cancel(timer)


def join_error(member_id: str, error_code: ErrorCode) -> JoinGroupResponse:
    """Return a JoinGroup response with an error."""
    return JoinGroupResponse(
        error_code=error_code,
        generation_id=_NO_GENERATION,
        protocol_name="",
        leader="",
        member_id=member_id,
        members=(),
    )


def _sync_error(error_code: ErrorCode) -> SyncGroupResponse:
    """Return a SyncGroup response with an error."""
    return SyncGroupResponse(error_code=error_code, assignment=b"")


def _synced(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    """Return a SyncGroup response with the member's part of the assignment."""
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def _update_member(member: Member, request: JoinGroupRequest) -> None:
    member.protocols = request.protocols
    member.rebalance_timeout_ms = _rebalance_timeout_ms(request)
    member.session_timeout_ms = request.session_timeout_ms


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    # Before version 1 one timeout served for both.
    timeout_ms = request.rebalance_timeout_ms
    return request.session_timeout_ms if timeout_ms < 0 else timeout_ms


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise RefusedError(ErrorCode.INVALID_GROUP_ID, "a group id cannot be empty")


def _unknown_member(group_id: str, member_id: str) -> RefusedError:
    return RefusedError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id!r} has no member {member_id!r}"
    )


def _check_not_rebalancing(group: ClassicGroup) -> None:
    if group.state is GroupState.PREPARING_REBALANCE:
        raise RefusedError(
            ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id!r} is rebalancing"
        )


def _cancel(timer: Timer | None) -> None:
    if timer is not None:
        timer.cancel()
