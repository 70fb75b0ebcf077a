"""How members join a consumer group: new ones, rejoining ones, and static ones (KIP-345).

A part of Kafka's GroupMetadataManager 4.3 (`classicGroupJoin`). The effects of a join on the other
members are in `group_rebalances`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.parked import Parked
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.groups.classic_group import Member
from spark_kafka_sink.devbroker.groups.group_answers import join_error, sync_error
from spark_kafka_sink.devbroker.groups.group_state import GroupState
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.groups.classic_group import ClassicGroup
    from spark_kafka_sink.devbroker.groups.group_rebalances import GroupRebalances
    from spark_kafka_sink.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

#: How long a new member, which does not know its id yet, waits for its join to complete.
_NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
#: Since this version of JoinGroup a new member receives an id first and rejoins with it (KIP-394).
_FIRST_VERSION_THAT_NEEDS_MEMBER_ID = 4
#: Since this version the response can make the leader skip the assignment (KIP-814).
_FIRST_VERSION_THAT_SKIPS_ASSIGNMENT = 9


#: Maximum number of protocols of a member. Clients have a few; Kafka, whose groups do not share one
#: thread, has no such limit.
MAX_PROTOCOLS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Join:
    """A JoinGroup request that is being handled."""

    group: ClassicGroup
    request: JoinGroupRequest
    client: JoiningClient
    parked: Parked[JoinGroupResponse]
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningClient:
    """The sender of a JoinGroup request."""

    client_id: str
    client_host: str
    #: The version of the request.
    version: int


class GroupJoins:
    """Adds new and returning members to groups."""

    def __init__(self, settings: BrokerSettings, rebalances: GroupRebalances) -> None:
        """Create a handler that leaves the effects of joins to `rebalances`."""
        self._settings = settings
        self._rebalances = rebalances

    def join(
        self, group: ClassicGroup, request: JoinGroupRequest, client: JoiningClient, now: float
    ) -> Parked[JoinGroupResponse]:
        """Add a member to a group. Raises RefusedError."""
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
            self._rebalances.expect(group, member_id, request.session_timeout_ms, join.now)
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
            # It may not have received the response to its first request. A leader that rejoins a
            # stable group requests a rebalance.
            join.parked.response = self._rebalances.joined(group, member)
            return
        self._update_member(member, request)
        member.awaiting_join = join.parked
        self._rebalances.rebalance_or_complete(group, join.now)

    def _replace_static_member(self, join: _Join, member_id: str) -> None:
        """Replace a static member that was restarted."""
        group, now = join.group, join.now
        former_leader = group.leader_id
        old, member = group.replace_static_member(join.request.group_instance_id or "", member_id)
        if old.awaiting_join is not None:
            self._rebalances.answer(
                old.awaiting_join, join_error(old.member_id, ErrorCode.FENCED_INSTANCE_ID)
            )
        if old.awaiting_sync is not None:
            self._rebalances.answer(old.awaiting_sync, sync_error(ErrorCode.FENCED_INSTANCE_ID))
        self._rebalances.restart_session(group, member, now)
        self._update_member(member, join.request)
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            try:
                self._rebalances.keep(group, now)
            except RefusedError:
                # It keeps its old id and retries.
                _, back = group.replace_static_member(
                    join.request.group_instance_id or "", old.member_id
                )
                back.protocols = old.protocols
                back.rebalance_timeout_ms = old.rebalance_timeout_ms
                back.session_timeout_ms = old.session_timeout_ms
                self._rebalances.restart_session(group, back, now)
                raise
            if join.client.version >= _FIRST_VERSION_THAT_SKIPS_ASSIGNMENT:
                join.parked.response = self._rebalances.joined(
                    group, member, skip_assignment=group.leader_id == member_id
                )
            else:
                # With the former leader's id in the response it does not consider itself leader.
                join.parked.response = self._rebalances.joined(group, member, leader=former_leader)
            return
        member.awaiting_join = join.parked
        if group.state in {GroupState.COMPLETING_REBALANCE, GroupState.STABLE}:
            self._rebalances.prepare_rebalance(group, now)
        else:
            self._rebalances.maybe_complete_join(group, now)

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
        self._rebalances.restart_session(
            group, member, join.now, timeout_ms=_NEW_MEMBER_JOIN_TIMEOUT_MS
        )
        self._rebalances.rebalance_or_complete(group, join.now)

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


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    # Before version 1 one timeout served for both.
    timeout_ms = request.rebalance_timeout_ms
    return request.session_timeout_ms if timeout_ms < 0 else timeout_ms
