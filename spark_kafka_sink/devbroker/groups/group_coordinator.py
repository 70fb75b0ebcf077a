"""The coordinator of groups, which handles the requests of the members of classic groups.

The classic half of Kafka's GroupMetadataManager 4.3, with `group_joins` and `group_rebalances`; the
other half, groups of the new consumer protocol, is `consumer_groups`. JoinGroup and SyncGroup wait
for the other members: they return `Parked`, whose response is set later, possibly by a timer.
Offsets are in `group_offsets`. `replay_groups` reads all groups and offsets back from the log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.internal_topics import coordinator_partition
from spark_kafka_sink.devbroker.base.parked import Parked
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.groups.classic_group import ClassicGroup, Member
from spark_kafka_sink.devbroker.groups.consumer.consumer_group import ConsumerGroup
from spark_kafka_sink.devbroker.groups.consumer.consumer_group_records import (
    CONSUMER_GROUP_KEYS,
    encode_deleted_consumer_group,
    group_of,
    replay_record,
)
from spark_kafka_sink.devbroker.groups.consumer_groups import ConsumerGroups
from spark_kafka_sink.devbroker.groups.group_answers import join_error, synced
from spark_kafka_sink.devbroker.groups.group_joins import GroupJoins
from spark_kafka_sink.devbroker.groups.group_offsets import GroupOffsets
from spark_kafka_sink.devbroker.groups.group_rebalances import GroupRebalances
from spark_kafka_sink.devbroker.groups.group_records import (
    decode_group,
    decode_offset,
    encode_deleted_group,
    encode_group,
)
from spark_kafka_sink.devbroker.groups.group_state import GroupState
from spark_kafka_sink.devbroker.log.storage.consumer_group_schemas import GROUP_EPOCH_KEY
from spark_kafka_sink.devbroker.log.storage.coordinator_records import (
    GROUP_METADATA_KEY,
    GroupMetadataKey,
    decode_versioned,
    version_of,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.base.timers import Timers
    from spark_kafka_sink.devbroker.cluster.topic_changes import Topics
    from spark_kafka_sink.devbroker.groups.group_joins import JoiningClient
    from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorBatch, CoordinatorLog
    from spark_kafka_sink.protocol.messages.heartbeat import HeartbeatRequest
    from spark_kafka_sink.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
    from spark_kafka_sink.protocol.messages.leave_group import MemberIdentity
    from spark_kafka_sink.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

logger = logging.getLogger(__name__)


class GroupCoordinator:
    """The coordinator of all groups."""

    def __init__(
        self,
        settings: BrokerSettings,
        timers: Timers,
        *,
        changed: Callable[[Hashable], None],
        log: CoordinatorLog,
        topics: Topics,
    ) -> None:
        """Start without groups; `changed` is called with parked requests that have a response."""
        self._settings = settings
        self._groups: dict[str, ClassicGroup | ConsumerGroup] = {}
        self._log = log
        self.offsets = GroupOffsets(log)
        self._rebalances = GroupRebalances(settings, timers, changed=changed, log=log)
        self._joins = GroupJoins(settings, self._rebalances)
        #: Handles the groups of the new consumer protocol.
        self.consumer_groups = ConsumerGroups(
            settings, timers, groups=self._groups, topics=topics, log=log
        )

    def load(self, topics: Collection[str], now: float) -> None:
        """Replace all groups by those in the log; every member's session restarts.

        Offsets of other topics than `topics` are left over from deleted topics, and are deleted
        (GroupCoordinatorShard.replay).
        """
        self._groups.clear()
        self._groups.update(replay_groups(self._log, self.offsets))
        self.delete_topics(self.offsets.topics().difference(topics))
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup):
                self.consumer_groups.restart_sessions(group, now)
            else:
                for member in group.members.values():
                    self._rebalances.restart_session(group, member, now)

    def find(self, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        """Return a group, or None."""
        return self._groups.get(group_id)

    def find_classic(self, group_id: str) -> ClassicGroup | None:
        """Return a group of the classic protocol, or None."""
        group = self._groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def find_consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """Return a group of the new consumer protocol, or None."""
        group = self._groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def all(self) -> list[ClassicGroup | ConsumerGroup]:
        """Return all groups in the order of their creation."""
        return list(self._groups.values())

    def create(self, group_id: str) -> ClassicGroup:
        """Create an empty group of the classic protocol."""
        group = self._groups[group_id] = ClassicGroup(group_id)
        return group

    def delete(self, group_id: str) -> None:
        """Delete a group and its offsets.

        Raises RefusedError with GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP or NOT_COORDINATOR.
        """
        group = self._groups.get(group_id)
        if group is None:
            raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r} does not exist")
        if not group.is_empty:
            raise RefusedError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members")
        if isinstance(group, ConsumerGroup):
            self.offsets.delete_group(group_id, encode_deleted_consumer_group(group))
        else:
            self.offsets.delete_group(group_id, [encode_deleted_group(group_id)])
            group.transition_to(GroupState.DEAD)
        del self._groups[group_id]

    def delete_topics(self, topics: Collection[str]) -> None:
        """Delete all offsets of deleted topics.

        If the log cannot be written now, `check_new_topic` or the next `load` does it.
        """
        self.offsets.delete_topics(topics)
        try:
            self.offsets.write_deletions()
        except RefusedError as refused:
            logger.warning("cannot delete the offsets of deleted topics from disk yet: %s", refused)

    def check_new_topic(self) -> None:
        """Make sure that offsets of a deleted topic cannot apply to a new one of the same name.

        Raises RefusedError with KAFKA_STORAGE_ERROR.
        """
        try:
            self.offsets.write_deletions()
        except RefusedError as refused:
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, refused.message) from refused

    def moved(self, partition: int, now: float) -> None:
        """Fail the requests that wait for groups of a partition: its coordinator has moved.

        The groups do not change (Kafka reads them back from the log, and may lose members that have
        just joined); their members have a session timeout to come back (ClassicGroup.onUnloaded).
        """
        for group_id, group in self._groups.items():
            if coordinator_partition(group_id) != partition:
                continue
            if isinstance(group, ConsumerGroup):
                self.consumer_groups.restart_sessions(group, now)
                continue
            for member in group.members.values():
                if member.awaiting_join is not None:
                    response = join_error(member.member_id, ErrorCode.NOT_COORDINATOR)
                    self._rebalances.complete_join_of(group, member, response, now)
                self._rebalances.complete_sync(group, member, ErrorCode.NOT_COORDINATOR, now)

    # Joining.

    def join(
        self, request: JoinGroupRequest, client: JoiningClient, now: float
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
        return self._joins.join(group, request, client, now)

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
        return self.create(group_id)

    # The assignment.

    def sync(self, request: SyncGroupRequest, now: float) -> Parked[SyncGroupResponse]:
        """Return a member's part of the assignment, once the leader has sent it.

        Raises RefusedError.
        """
        group, member = self._find_member(request)
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
        _check_not_rebalancing(group)
        self._rebalances.received_sync(group, member)
        if group.state is GroupState.STABLE:
            parked.response = synced(group, member)
            return parked
        member.awaiting_sync = parked
        if group.leader_id == member.member_id:
            assignments = {a.member_id: a.assignment for a in request.assignments}
            for group_member in group.members.values():
                group_member.assignment = assignments.get(group_member.member_id, b"")
            self._rebalances.assigned(group, now)
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

    # Sessions.

    def heartbeat(self, request: HeartbeatRequest, now: float) -> None:
        """Restart a member's session.

        Raises RefusedError, with REBALANCE_IN_PROGRESS for a member that must rejoin.
        """
        group, member = self._find_member(request)
        self._rebalances.restart_session(group, member, now)
        _check_not_rebalancing(group)

    def leave(
        self, group_id: str, members: Iterable[MemberIdentity], now: float
    ) -> list[ErrorCode]:
        """Remove members; return an error code for each. Raises RefusedError."""
        _check_group_id(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise _unknown_member(group_id, "")
        if isinstance(group, ConsumerGroup):
            return self.consumer_groups.remove_members(group, members, now)
        codes = [self._leave_one(group, member) for member in members]
        if ErrorCode.NONE in codes:
            if group.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
                self._rebalances.rebalance_or_complete(group, now)
            else:
                self._rebalances.maybe_complete_join(group, now)
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
        self._rebalances.remove(group, member)
        return ErrorCode.NONE

    def restart_session(self, group: ClassicGroup, member: Member, now: float) -> None:
        """Restart a member's session: an offset commit counts as a heartbeat."""
        self._rebalances.restart_session(group, member, now)


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


# --- the replay of the log


def replay_groups(
    log: CoordinatorLog, offsets: GroupOffsets
) -> dict[str, ClassicGroup | ConsumerGroup]:
    """Read all groups and offsets back from `__consumer_offsets` (GroupCoordinatorShard.replay).

    An offset creates its group, which stays if the offset is deleted. Raises CorruptRecordError.
    """
    offsets.clear()
    groups: dict[str, ClassicGroup | ConsumerGroup] = {}

    def apply(batch: CoordinatorBatch) -> None:
        if batch.committed is not None:
            offsets.replay_end(batch.partition, batch.producer_id, committed=batch.committed)
            return
        for record in batch.records:
            key, value = record.key or b"", record.value
            if version_of(key) in CONSUMER_GROUP_KEYS:
                _replay_consumer_group(groups, key, value)
            elif version_of(key) != GROUP_METADATA_KEY:
                group_id, partition, committed = decode_offset(key, value)
                if committed is not None:
                    groups.setdefault(group_id, ClassicGroup(group_id))
                offsets.replay(group_id, partition, committed, batch.producer_id)
            elif value is None:
                groups.pop(decode_versioned(GroupMetadataKey, key).group, None)
            else:
                group = decode_group(key, value)
                groups[group.group_id] = group

    log.replay(apply)
    return groups


def _replay_consumer_group(
    groups: dict[str, ClassicGroup | ConsumerGroup], key: bytes, value: bytes | None
) -> None:
    """Apply a record of a consumer group, which replaces a classic one; raises DecodeError."""
    group_id = group_of(key)
    group = groups.get(group_id)
    if version_of(key) == GROUP_EPOCH_KEY and value is None:
        # The last record of a deleted group.
        if isinstance(group, ConsumerGroup):
            del groups[group_id]
        return
    if not isinstance(group, ConsumerGroup):
        if value is None:
            return
        group = groups[group_id] = ConsumerGroup(group_id)
    replay_record(group, key, value)
