"""What a member owns and what it is to own, by topic id, and the names of these topics."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.reconciliation.member_values import NO_ASSIGNMENT, LocalAssignment
from spark_kafka_sink.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID


@dataclass(frozen=True, slots=True)
class Resolved:
    """The part of the target assignment whose topics have known names."""

    assignment: LocalAssignment
    #: The same partitions by name, sorted.
    partitions: tuple[TopicPartition, ...]


class TargetAssignment:
    """The target assignment and the reconciled one."""

    def __init__(self) -> None:
        """Start without assignments and names."""
        #: What the member has reconciled, and owns.
        self.current = NO_ASSIGNMENT
        self._target = NO_ASSIGNMENT
        self._metadata_names: Mapping[UUID, str] = MappingProxyType({})
        #: The names of owned topics, which metadata may no longer have.
        self._owned_names: dict[UUID, str] = {}

    @property
    def topic_ids(self) -> frozenset[UUID]:
        """The topics of the target assignment."""
        return frozenset(self._target.partitions)

    @property
    def unresolved_topic_ids(self) -> frozenset[UUID]:
        """The topics of the target assignment without a known name."""
        return frozenset(each for each in self._target.partitions if self._name(each) is None)

    @property
    def is_reconciled(self) -> bool:
        """Whether the member owns exactly the target assignment."""
        return self.current == self._target

    def set_target(self, partitions: Mapping[UUID, tuple[int, ...]]) -> None:
        """Replace the target assignment, unless the partitions are the same.

        Source: LocalAssignment.updateWith.
        """
        wanted = {topic_id: tuple(sorted(them)) for topic_id, them in partitions.items()}
        if self._target.is_none or wanted != self._target.partitions:
            self._target = LocalAssignment(self._target.local_epoch + 1, wanted)

    def set_topic_names(self, names: Mapping[UUID, str]) -> None:
        """Replace the names of topics that the metadata have."""
        self._metadata_names = names

    def resolve(self) -> Resolved:
        """Return the part of the target assignment with known names.

        Source: AbstractMembershipManager.findResolvableAssignmentAndTriggerMetadataUpdate.
        """
        assignment, partitions = {}, []
        for topic_id, numbers in self._target.partitions.items():
            name = self._name(topic_id)
            if name is not None:
                self._owned_names[topic_id] = name
                assignment[topic_id] = numbers
                partitions += [TopicPartition(name, number) for number in numbers]
        return Resolved(
            LocalAssignment(self._target.local_epoch, assignment), tuple(sorted(partitions))
        )

    def forget_names_except(self, topic_ids: Mapping[UUID, object]) -> None:
        """Keep only the names of these topics."""
        self._owned_names = {
            topic_id: name for topic_id, name in self._owned_names.items() if topic_id in topic_ids
        }

    def clear(self) -> None:
        """Forget both assignments."""
        self.current = self._target = NO_ASSIGNMENT
        self._owned_names.clear()

    def _name(self, topic_id: UUID) -> str | None:
        return self._metadata_names.get(topic_id) or self._owned_names.get(topic_id)
