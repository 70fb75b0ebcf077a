"""Consumer groups of the classic protocol: who is in, who leads, who has left or fallen silent.

The classic half of Kafka's GroupMetadataManager 4.3. A rebalance has two phases. In the first all
members join, or are removed when it takes too long; the group's next generation begins, and
everyone is told, the leader with the list of members. In the second the leader hands in the
assignment, and everyone gets their part. JoinGroup and SyncGroup wait for that: they are answered
with `Parked`, which is filled in later, perhaps by a timer.

A new group waits for `group_initial_rebalance_delay_ms` for more members, again and again while
some come. A member is removed when it is silent for its session timeout, unless the coordinator
owes it an answer. Offsets are in `group_offsets`. Each generation is written to the log, where
there is one (`coordinator_log`), with its members and their parts.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.devbroker.classic_group import ClassicGroup, Member
from spark_kafka_sink.devbroker.group_answers import join_error, sync_error, synced
from spark_kafka_sink.devbroker.group_log import encode_group, replay_groups
from spark_kafka_sink.devbroker.group_offsets import GroupOffsets
from spark_kafka_sink.devbroker.group_state import GroupState
from spark_kafka_sink.devbroker.internal_topics import coordinator_partition
from spark_kafka_sink.devbroker.parked import Parked
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from spark_kafka_sink.devbroker.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.coordinator_log import CoordinatorLog
    from spark_kafka_sink.devbroker.timers import Timer, Timers
    from spark_kafka_sink.protocol.messages.heartbeat import HeartbeatRequest
    from spark_kafka_sink.protocol.messages.leave_group import MemberIdentity
    from spark_kafka_sink.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: A member that does not know its id yet is forgotten after so long (5 minutes, in milliseconds).
_NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
#: Since this version of JoinGroup a new member first gets an id, and comes back with it (KIP-394).
_FIRST_VERSION_THAT_NEEDS_MEMBER_ID = 4
#: Since this version the leader can be told to leave the assignment as it is (KIP-814).
_FIRST_VERSION_THAT_SKIPS_ASSIGNMENT = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Join:
    """A JoinGroup request on its way."""

    group: ClassicGroup
    request: JoinGroupRequest
    client: JoiningClient
    parked: Parked[JoinGroupResponse]
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningClient:
    """Who sends a JoinGroup request."""

    client_id: str
    client_host: str
    #: Of the request.
    version: int


class GroupCoordinator:
    """Looks after every group."""

    def __init__(
        self,
        settings: BrokerSettings,
        timers: Timers,
        *,
        changed: Callable[[Hashable], None],
        log: CoordinatorLog,
    ) -> None:
        """Know no group; `changed` is told of parked requests that have been answered."""
        self._settings = settings
        self._timers = timers
        self._changed = changed
        self._groups: dict[str, ClassicGroup] = {}
        self._log = log
        self.offsets = GroupOffsets(log)

    def load(self, now: float) -> None:
        """Know what is in the log, and nothing else; members have a session's time to come back.

        GroupCoordinatorShard.replay.
        """
        self._groups = replay_groups(self._log, self.offsets)
        for group in self._groups.values():
            for member in group.members.values():
                self._restart_session(group, member, now)

    def _keep(self, group: ClassicGroup, now: float | None = None) -> None:
        """Write a group's generation down."""
        if self._log.is_durable:
            now_ms = None if now is None else int(now * 1000)
            record = encode_group(group, now_ms=now_ms or 0)
            self._log.append(group.group_id, [record], now_ms=now_ms)

    def find(self, group_id: str) -> ClassicGroup | None:
        """Return a group."""
        return self._groups.get(group_id)

    def all(self) -> list[ClassicGroup]:
        """Return every group, in the order in which they came."""
        return list(self._groups.values())

    def get_or_create(self, group_id: str) -> ClassicGroup:
        """Return a group; one that is new is empty."""
        return self._groups.setdefault(group_id, ClassicGroup(group_id))

    def delete(self, group_id: str) -> None:
        """Forget a group and its offsets.

        Raises RefusedError with GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP.
        """
        group = self._groups.get(group_id)
        if group is None:
            raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        if group.state is not GroupState.EMPTY:
            raise RefusedError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members")
        group.transition_to(GroupState.DEAD)
        del self._groups[group_id]
        self.offsets.delete_group(group_id)
        self._keep(group)

    def moved(self, partition: int, now: float) -> None:
        """Let those who wait ask anew: another broker coordinates the groups of a partition.

        The group stays as it is (Kafka's is read back from its log, and may lack who has only just
        joined); its members have as long to come back as a session lasts (ClassicGroup.onUnloaded).
        """
        for group_id, group in self._groups.items():
            if coordinator_partition(group_id) != partition:
                continue
            for member in group.members.values():
                if member.awaiting_join is not None:
                    response = join_error(member.member_id, ErrorCode.NOT_COORDINATOR)
                    self._complete_join_of(group, member, response, now)
                self._complete_sync(group, member, ErrorCode.NOT_COORDINATOR, now)

    # Joining.

    def join(
        self, request: JoinGroupRequest, client: JoiningClient, now: float
    ) -> Parked[JoinGroupResponse]:
        """Take a member in, or back. Raises RefusedError."""
        _check_group_id(request.group_id)
        if not (
            self._settings.group_min_session_timeout_ms
            <= request.session_timeout_ms
            <= self._settings.group_max_session_timeout_ms
        ):
            raise RefusedError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"a session timeout of {request.session_timeout_ms} ms is not within "
                f"{self._settings.group_min_session_timeout_ms} to "
                f"{self._settings.group_max_session_timeout_ms}",
            )
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise _unknown_member(request.group_id, request.member_id)
            group = self.get_or_create(request.group_id)
        if not self._accepts(group, request.member_id):
            group.remove(request.member_id)
            raise RefusedError(
                ErrorCode.GROUP_MAX_SIZE_REACHED, f"group {request.group_id!r} is full"
            )
        if not group.supports(request.protocol_type, request.protocols):
            raise RefusedError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {request.group_id!r} uses other protocols",
            )
        join = _Join(group=group, request=request, client=client, parked=Parked(), now=now)
        if not request.member_id:
            self._join_new_member(join)
        elif request.member_id in group.pending_members:
            self._add_member(join, request.member_id)
        else:
            self._join_existing_member(join)
        return join.parked

    def _join_new_member(self, join: _Join) -> None:
        group, request = join.group, join.request
        instance_id = request.group_instance_id
        prefix = join.client.client_id if instance_id is None else instance_id
        member_id = f"{prefix}-{uuid.uuid4()}"
        if instance_id is not None and instance_id in group.static_members:
            self._replace_static_member(join, member_id)
        elif instance_id is None and join.client.version >= _FIRST_VERSION_THAT_NEEDS_MEMBER_ID:
            group.pending_members[member_id] = self._timers.schedule(
                join.now + request.session_timeout_ms / 1000,
                lambda then: self._expire_pending_member(group, member_id, then),
            )
            join.parked.response = join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED)
        else:
            self._add_member(join, member_id)

    def _join_existing_member(self, join: _Join) -> None:
        group, request = join.group, join.request
        member = group.check_member(request.member_id, request.group_instance_id)
        unchanged = member.protocols == request.protocols
        is_leader = group.leader_id == member.member_id
        if unchanged and (
            group.state is GroupState.COMPLETING_REBALANCE
            or (group.state is GroupState.STABLE and not is_leader)
        ):
            # It may not have got the answer to its first request. A leader that joins again in a
            # stable group wants a rebalance.
            join.parked.response = self._joined(group, member)
            return
        self._update_member(member, request)
        member.awaiting_join = join.parked
        self._rebalance_or_complete(group, join.now)

    def _replace_static_member(self, join: _Join, member_id: str) -> None:
        """Let a static member that was restarted take its own place."""
        group, now = join.group, join.now
        former_leader = group.leader_id
        old, member = group.replace_static_member(join.request.group_instance_id or "", member_id)
        if old.awaiting_join is not None:
            self._answer(old.awaiting_join, join_error(old.member_id, ErrorCode.FENCED_INSTANCE_ID))
        if old.awaiting_sync is not None:
            self._answer(old.awaiting_sync, sync_error(ErrorCode.FENCED_INSTANCE_ID))
        self._restart_session(group, member, now)
        self._update_member(member, join.request)
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            self._keep(group, now)
            if join.client.version >= _FIRST_VERSION_THAT_SKIPS_ASSIGNMENT:
                join.parked.response = self._joined(
                    group, member, skip_assignment=group.leader_id == member_id
                )
            else:
                # It learns of the leader as it was, and so does not believe that it leads.
                join.parked.response = self._joined(group, member, leader=former_leader)
            return
        member.awaiting_join = join.parked
        if group.state in {GroupState.COMPLETING_REBALANCE, GroupState.STABLE}:
            self._prepare_rebalance(group, now)
        else:
            self._maybe_complete_join(group, now)

    def _add_member(self, join: _Join, member_id: str) -> None:
        group, request = join.group, join.request
        member = Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=join.client.client_id,
            client_host=join.client.client_host,
            rebalance_timeout_ms=_rebalance_timeout_ms(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            awaiting_join=join.parked,
        )
        if (group.state, group.previous_state) == (
            GroupState.PREPARING_REBALANCE,
            GroupState.EMPTY,
        ):
            group.new_member_added = True
        group.add(member, request.protocol_type)
        self._restart_session(group, member, join.now, timeout_ms=_NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(group, join.now)

    def _update_member(self, member: Member, request: JoinGroupRequest) -> None:
        member.protocols = request.protocols
        member.rebalance_timeout_ms = _rebalance_timeout_ms(request)
        member.session_timeout_ms = request.session_timeout_ms

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

    # A rebalance.

    def _rebalance_or_complete(self, group: ClassicGroup, now: float) -> None:
        if group.can_rebalance:
            self._prepare_rebalance(group, now)
        else:
            self._maybe_complete_join(group, now)

    def _prepare_rebalance(self, group: ClassicGroup, now: float) -> None:
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
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.all_have_joined
        ):
            self._complete_join(group, now)

    def _complete_join(self, group: ClassicGroup, now: float) -> None:
        """Begin the next generation with those who have joined."""
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
            self._keep(group, now)
        else:
            generation_id = group.generation_id
            _cancel(group.sync_timer)
            group.sync_timer = self._timers.schedule(
                now + group.rebalance_timeout_ms / 1000,
                lambda then: self._expire_pending_sync(group, generation_id, then),
            )

    def _joined(
        self,
        group: ClassicGroup,
        member: Member,
        *,
        skip_assignment: bool = False,
        leader: str | None = None,
    ) -> JoinGroupResponse:
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

    def _complete_join_of(
        self, group: ClassicGroup, member: Member, response: JoinGroupResponse, now: float
    ) -> None:
        if member.awaiting_join is not None:
            self._answer(member.awaiting_join, response)
            member.awaiting_join = None
        self._restart_session(group, member, now)

    # The assignment.

    def sync(self, request: SyncGroupRequest, now: float) -> Parked[SyncGroupResponse]:
        """Give a member its part of the assignment, which the leader brings.

        Raises RefusedError.
        """
        _check_group_id(request.group_id)
        group = self._groups.get(request.group_id)
        if group is None or group.state is GroupState.EMPTY:
            raise _unknown_member(request.group_id, request.member_id)
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation_id:
            raise _illegal_generation(group, request.generation_id)
        if (
            request.protocol_type is not None
            and request.protocol_type != group.protocol_type
            and group.protocol_type is not None
        ) or (
            request.protocol_name is not None
            and request.protocol_name != group.protocol_name
            and group.protocol_name is not None
        ):
            raise RefusedError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {group.group_id!r} uses {group.protocol_type} {group.protocol_name}",
            )
        parked: Parked[SyncGroupResponse] = Parked()
        if group.state is GroupState.PREPARING_REBALANCE:
            raise RefusedError(
                ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id!r} is being rebalanced"
            )
        self._received_sync(group, member)
        if group.state is GroupState.STABLE:
            parked.response = synced(group, member)
            return parked
        member.awaiting_sync = parked
        if group.leader_id == member.member_id:
            assignments = {a.member_id: a.assignment for a in request.assignments}
            for each in group.members.values():
                each.assignment = assignments.get(each.member_id, b"")
            group.transition_to(GroupState.STABLE)
            self._keep(group, now)
            for each in group.members.values():
                self._complete_sync(group, each, ErrorCode.NONE, now)
        return parked

    def _complete_sync(
        self, group: ClassicGroup, member: Member, error_code: ErrorCode, now: float
    ) -> None:
        if member.awaiting_sync is None:
            return
        response = synced(group, member) if error_code is ErrorCode.NONE else sync_error(error_code)
        self._answer(member.awaiting_sync, response)
        member.awaiting_sync = None
        self._restart_session(group, member, now)

    def _received_sync(self, group: ClassicGroup, member: Member) -> None:
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            _cancel(group.sync_timer)

    def _expire_pending_sync(self, group: ClassicGroup, generation_id: int, now: float) -> None:
        """Remove those who have joined and never asked for their part."""
        if generation_id != group.generation_id or not group.pending_sync:
            return
        for member_id in list(group.pending_sync):
            group.remove(member_id)
        self._rebalance_or_complete(group, now)

    # Sessions.

    def heartbeat(self, request: HeartbeatRequest, now: float) -> None:
        """Prolong a member's session.

        Raises RefusedError, with REBALANCE_IN_PROGRESS for a member that is to join again.
        """
        _check_group_id(request.group_id)
        group = self._groups.get(request.group_id)
        if group is None:
            raise _unknown_member(request.group_id, request.member_id)
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation_id:
            raise _illegal_generation(group, request.generation_id)
        self._restart_session(group, member, now)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise RefusedError(
                ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id!r} is being rebalanced"
            )

    def leave(
        self, group_id: str, members: Iterable[MemberIdentity], now: float
    ) -> list[ErrorCode]:
        """Let members go; give an error code for each. Raises RefusedError."""
        _check_group_id(group_id)
        group = self._groups.get(group_id)
        if group is None:
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
            # An administrator removes static members by name.
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

    def restart_session(self, group: ClassicGroup, member: Member, now: float) -> None:
        """Prolong a member's session: a commit of offsets counts as a heartbeat."""
        self._restart_session(group, member, now)

    def _restart_session(
        self, group: ClassicGroup, member: Member, now: float, *, timeout_ms: int | None = None
    ) -> None:
        _cancel(member.timer)
        if timeout_ms is None:
            timeout_ms = member.session_timeout_ms
        member.timer = self._timers.schedule(
            now + timeout_ms / 1000, lambda then: self._expire_session(group, member, then)
        )

    def _expire_session(self, group: ClassicGroup, member: Member, now: float) -> None:
        if member.has_satisfied_heartbeat:
            return
        logger.info("member %s of group %s is silent", member.member_id, group.group_id)
        self._remove(group, member)
        if group.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            self._rebalance_or_complete(group, now)
        elif group.state is GroupState.PREPARING_REBALANCE and group.all_have_joined:
            self._complete_join(group, now)

    def _expire_pending_member(self, group: ClassicGroup, member_id: str, now: float) -> None:
        group.remove(member_id)
        if group.state is GroupState.PREPARING_REBALANCE and group.all_have_joined:
            self._complete_join(group, now)

    def _remove(self, group: ClassicGroup, member: Member) -> None:
        """Remove a member; if it waits for a generation it is told to join anew."""
        if member.awaiting_join is not None:
            self._answer(member.awaiting_join, join_error("", ErrorCode.UNKNOWN_MEMBER_ID))
            member.awaiting_join = None
        if member.awaiting_sync is not None:
            self._answer(member.awaiting_sync, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
            member.awaiting_sync = None
        group.remove(member.member_id)

    def _answer(self, parked: Parked[T], response: T) -> None:
        parked.response = response
        self._changed(parked)


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    # Before version 1 there was one timeout for both.
    timeout_ms = request.rebalance_timeout_ms
    return request.session_timeout_ms if timeout_ms < 0 else timeout_ms


def _cancel(timer: Timer | None) -> None:
    if timer is not None:
        timer.cancel()


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise RefusedError(ErrorCode.INVALID_GROUP_ID, "a group id cannot be empty")


def _unknown_member(group_id: str, member_id: str) -> RefusedError:
    return RefusedError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id!r} has no member {member_id!r}"
    )


def _illegal_generation(group: ClassicGroup, generation_id: int) -> RefusedError:
    return RefusedError(
        ErrorCode.ILLEGAL_GENERATION,
        f"group {group.group_id!r} has generation {group.generation_id}, not {generation_id}",
    )
