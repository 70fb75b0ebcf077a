"""The coordinator of all groups and their offsets (Kafka's GroupCoordinatorShard).

Groups of the classic protocol are in `classic_groups`, those of the new consumer protocol in
`consumer_groups`, offsets in `group_offsets`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_names import coordinator_partition
from spark_kafka_sink.devbroker.groups.classic_group import ClassicGroup, GroupState
from spark_kafka_sink.devbroker.groups.classic_groups import ClassicGroups
from spark_kafka_sink.devbroker.groups.consumer_group import ConsumerGroup
from spark_kafka_sink.devbroker.groups.consumer_groups import ConsumerGroups
from spark_kafka_sink.devbroker.groups.group_offsets import GroupOffsets
from spark_kafka_sink.devbroker.groups.group_records import (
    encode_deleted_consumer_group,
    encode_deleted_group,
    replay_groups,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from spark_kafka_sink.devbroker.cluster.cluster_state import ClusterState
    from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorLog
    from spark_kafka_sink.protocol.messages.leave_group import MemberIdentity

logger = logging.getLogger(__name__)


class GroupCoordinator:
    """The coordinator of all groups."""

    def __init__(self, cluster: ClusterState, log: CoordinatorLog) -> None:
        self._groups: dict[str, ClassicGroup | ConsumerGroup] = {}
        self._log = log
        self.offsets = GroupOffsets(log)
        self.classic_groups = ClassicGroups(cluster, self._groups, log)
        self.consumer_groups = ConsumerGroups(cluster, self._groups, log)

    def load(self, topics: Collection[str], now: float) -> None:
        """Replace all groups by those in the log; every member's session restarts.

        Offsets of other topics than `topics` are left over from deleted topics, and are deleted
        (GroupCoordinatorShard.replay).
        """
        self._groups.clear()
        self.offsets.clear()
        self._load(replay_groups(self._log, self.offsets), topics, now)

    def load_partition(self, partition: int, topics: Collection[str], now: float) -> None:
        """Load the groups of a partition that this broker begins to lead; see `load`."""
        self._load(replay_groups(self._log, self.offsets, partition), topics, now)

    def _load(
        self,
        groups: Mapping[str, ClassicGroup | ConsumerGroup],
        topics: Collection[str],
        now: float,
    ) -> None:
        self._groups.update(groups)
        self.delete_topics(self.offsets.topics().difference(topics))
        for group in groups.values():
            if isinstance(group, ConsumerGroup):
                self.consumer_groups.restart_sessions(group, now)
            else:
                for member in group.members.values():
                    self.classic_groups.restart_session(group, member, now)

    def unload_partition(self, partition: int) -> None:
        """Forget the groups of a partition that another broker leads now.

        What their members wait for fails with NOT_COORDINATOR.
        """
        for group_id in [each for each in self._groups if coordinator_partition(each) == partition]:
            group = self._groups.pop(group_id)
            if isinstance(group, ConsumerGroup):
                self.consumer_groups.unload(group)
            else:
                self.classic_groups.unload(group)
        self.offsets.unload(partition)

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

    def restart(self, now: float) -> None:
        """Continue with the same groups after the broker has stopped and started again."""
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup):
                self.consumer_groups.restart_sessions(group, now)
            else:
                self.classic_groups.restart(group, now)

    def leave(
        self, group_id: str, members: Iterable[MemberIdentity], now: float
    ) -> list[ErrorCode]:
        """Remove members; return an error code for each. Raises RefusedError."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return self.consumer_groups.remove_members(group, members, now)
        return self.classic_groups.leave(group_id, members, now)
