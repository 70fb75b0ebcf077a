"""Partitions and their replicas: which one leads, which are in sync, where they are.

Kafka's ReplicationControlManager. Each function reads the image, and returns the records that the
controller appends; it changes nothing itself. A request that cannot be granted raises RefusedError.
The deletion of a topic waits for no broker: one that is away deletes its replicas when it reads the
record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import UNCLEAN_LEADER_ELECTION, TopicConfig
from spark_kafka_sink.devbroker.controller.partition_change_builder import (
    Election,
    PartitionChangeBuilder,
    Reassignment,
)
from spark_kafka_sink.devbroker.metadata.records import (
    BROKER_RESOURCE,
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    BrokerChange,
    ConfigResource,
    MetadataRecord,
    PartitionChange,
    PartitionRecord,
    TopicIdPartition,
    UnregisterBroker,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import alter_partition as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from spark_kafka_sink.devbroker.metadata.image import MetadataImage, TopicImage

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
_EVERY_BROKER = ConfigResource(BROKER_RESOURCE, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The settings of a controller, named as Kafka's; times are in seconds."""

    #: How long a broker may be silent until it is fenced (broker.session.timeout.ms).
    broker_session_timeout: float = 9.0
    #: Whether a broker that has been fenced, because it was shut down in order, may start again
    #: before its session has ended. In Kafka it must wait.
    restarts_at_once: bool = False
    #: How often preferred leaders are elected (leader.imbalance.check.interval.seconds); None:
    #: never (auto.leader.rebalance.enable).
    leader_imbalance_check_interval: float | None = 300.0
    #: How often unclean leaders are elected (unclean.leader.election.interval.ms).
    unclean_leader_election_interval: float = 300.0
    #: How many partitions get a leader at once, at most, in either of these.
    max_elections: int = 1000
    num_partitions: int = 1
    default_replication_factor: int = 1
    #: The defaults of topics in the brokers' files.
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    #: How many producer ids a broker gets at once (ProducerIdsBlock).
    producer_id_block_size: int = 1000


class ReplicationControl:
    """The rules of partitions, by an image."""

    def __init__(self, image: MetadataImage, topic_defaults: TopicConfig | None = None) -> None:
        """Use this image, which the controller keeps up to date.

        `topic_defaults` are the defaults of topics in the brokers' files.
        """
        self._image = image
        defaults = topic_defaults or TopicConfig()
        #: The settings that the controller reads.
        self._defaults = {
            MIN_INSYNC_REPLICAS: str(defaults.min_insync_replicas),
            UNCLEAN_LEADER_ELECTION: "false",
        }

    # Settings.

    def _setting(self, topic: str, name: str) -> str:
        for values in (self._image.topic_config(topic), self._image.config(_EVERY_BROKER)):
            if name in values:
                return values[name]
        return self._defaults[name]

    def allows_unclean_election(self, topic: str) -> bool:
        """Return whether a replica may lead a topic's partition although it may lack records."""
        return self._setting(topic, UNCLEAN_LEADER_ELECTION).lower() == "true"

    def min_isr(self, topic: TopicImage) -> int:
        """Return how many replicas must be in sync for writes with acks=all."""
        first = next(iter(topic.partitions.values()))
        return min(int(self._setting(topic.name, MIN_INSYNC_REPLICAS)), len(first.replicas))

    def clear_elr(self, topic: str | None) -> list[PartitionChange]:
        """Return the records for a change of min.insync.replicas, of one topic or of all.

        Replicas are eligible by the setting under which records were acknowledged.
        """
        return [
            PartitionChange(
                topic_id=partition.topic_id,
                partition=partition.partition,
                elr=(),
                last_known_elr=(),
            )
            for partition in self._image.partitions()
            if (partition.elr or partition.last_known_elr)
            and topic in {None, self._image.topics[partition.topic_id].name}
        ]

    # Brokers.

    def leads(self, node_id: int) -> bool:
        """Return whether a broker leads a partition."""
        return any(partition.leader == node_id for partition in self._image.partitions())

    def broker_fenced(self, node_id: int, broker_epoch: int) -> list[MetadataRecord]:
        """Return the records that fence a broker: it leads nothing, and is in sync nowhere."""
        return [
            *self._without(node_id),
            BrokerChange(node_id=node_id, broker_epoch=broker_epoch, fenced=True),
        ]

    def broker_unfenced(self, node_id: int, broker_epoch: int) -> list[MetadataRecord]:
        """Return the records that unfence a broker, which may now lead leaderless partitions."""
        leaderless = (each for each in self._image.partitions() if not each.has_leader)
        return [
            BrokerChange(node_id=node_id, broker_epoch=broker_epoch, fenced=False),
            *self._update(leaderless, added=node_id),
        ]

    def broker_shutting_down(self, node_id: int, broker_epoch: int) -> list[MetadataRecord]:
        """Return the records for a broker that hands over what it leads (controlled shutdown)."""
        change = BrokerChange(
            node_id=node_id, broker_epoch=broker_epoch, in_controlled_shutdown=True
        )
        return [change, *self._without(node_id)]

    def broker_restarted(self, node_id: int, *, cleanly: bool) -> list[MetadataRecord]:
        """Return the records for a new process of a broker, before it is registered.

        After an unclean shutdown the broker may have lost records that were acknowledged, so it is
        not eligible either (KIP-966).
        """
        if cleanly:
            return [*self._without(node_id)]
        affected = (
            each for each in self._image.partitions() if node_id in each.isr or node_id in each.elr
        )
        return [*self._update(affected, unclean=node_id)]

    def broker_unregistered(self, node_id: int, broker_epoch: int) -> list[MetadataRecord]:
        """Return the records for a broker that will not come back.

        As in Kafka, its replicas stay eligible, in case that it does.
        """
        return [
            *self._without(node_id),
            UnregisterBroker(node_id=node_id, broker_epoch=broker_epoch),
        ]

    def _without(self, node_id: int) -> list[PartitionChange]:
        in_sync = (each for each in self._image.partitions() if node_id in each.isr)
        return self._update(in_sync, removed=node_id)

    def _update(
        self,
        partitions: Iterable[PartitionRecord],
        *,
        removed: int = NO_LEADER,
        added: int = NO_LEADER,
        unclean: int = NO_LEADER,
    ) -> list[PartitionChange]:
        """Return the changes of partitions because of a broker (generateLeaderAndIsrUpdates).

        It is `removed` from what it leads and where it is in sync, `added` to those that may lead,
        or may have lost records in an `unclean` shutdown. The image does not know of it yet.
        """
        gone = {removed, unclean}

        def may_lead(node_id: int) -> bool:
            return node_id not in gone and (node_id == added or self._image.is_active(node_id))

        changes = []
        for partition in partitions:
            builder = self._builder(partition, may_lead, unclean_if_allowed=True)
            builder.isr = tuple(each for each in partition.isr if each not in gone)
            builder.unclean_shutdowns = (unclean,)
            changes.append(builder.build())
        return [change for change in changes if change is not None]

    def _builder(
        self,
        partition: PartitionRecord,
        may_lead: Callable[[int], bool] | None = None,
        *,
        unclean_if_allowed: bool = False,
    ) -> PartitionChangeBuilder:
        topic = self._image.topics[partition.topic_id]
        is_unclean = unclean_if_allowed and self.allows_unclean_election(topic.name)
        return PartitionChangeBuilder(
            partition=partition,
            is_acceptable_leader=may_lead or self._image.is_active,
            min_isr=self.min_isr(topic),
            election=Election.UNCLEAN if is_unclean else Election.ONLINE,
        )

    # In-sync replicas.

    def alter_partition(
        self, request: wire.AlterPartitionRequest, version: int
    ) -> tuple[list[MetadataRecord], wire.AlterPartitionResponse]:
        """Return the records and the response for a leader's wish to change the ISR (KIP-497)."""
        records: list[MetadataRecord] = []
        topics = []
        for topic in request.topics:
            results = []
            for wish in topic.partitions:
                try:
                    result = self._alter(request.broker_id, topic, wish, version, records)
                except RefusedError as refused:
                    result = wire.AlterPartitionResponsePartition(
                        partition_index=wish.partition_index, error_code=refused.error_code
                    )
                results.append(result)
            topics.append(
                wire.AlterPartitionResponseTopic(topic_id=topic.topic_id, partitions=tuple(results))
            )
        return records, wire.AlterPartitionResponse(topics=tuple(topics))

    def _alter(
        self,
        leader_id: int,
        topic: wire.AlterPartitionRequestTopic,
        wish: wire.AlterPartitionRequestPartition,
        version: int,
        records: list[MetadataRecord],
    ) -> wire.AlterPartitionResponsePartition:
        if topic.topic_id not in self._image.topics:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic.topic_id}")
        key = TopicIdPartition(topic.topic_id, wish.partition_index)
        partition = self._image.find_partition(key)
        if partition is None:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {key}")
        new_isr = (
            wish.new_isr_with_epochs
            if version >= _FIRST_VERSION_WITH_EPOCHS
            else tuple(wire.BrokerState(broker_id=each) for each in wish.new_isr)
        )
        self._check_wish(leader_id, partition, wish, new_isr)
        builder = self._builder(partition, unclean_if_allowed=True)
        builder.isr = tuple(each.broker_id for each in new_isr)
        builder.leader_recovery_state = wish.leader_recovery_state
        change = builder.build()
        if change is not None:
            records.append(change)
            partition = change.apply_to(partition)
            if change.leader not in {None, leader_id}:
                # The new ISR has completed a reassignment that removes the leader. The change
                # counts, and the error makes the old leader wait for new metadata.
                raise RefusedError(ErrorCode.NEW_LEADER_ELECTED, "the reassignment is complete")
        return wire.AlterPartitionResponsePartition(
            partition_index=wish.partition_index,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            isr=partition.isr,
            leader_recovery_state=partition.leader_recovery_state,
            partition_epoch=partition.partition_epoch,
        )

    def _check_wish(
        self,
        leader_id: int,
        partition: PartitionRecord,
        wish: wire.AlterPartitionRequestPartition,
        new_isr: Sequence[wire.BrokerState],
    ) -> None:
        """Raise RefusedError for a wish that cannot be granted (validateAlterPartitionData).

        Newer epochs than this controller's mean that another one has been elected.
        """
        node_ids = [each.broker_id for each in new_isr]
        is_recovering = wish.leader_recovery_state == RECOVERING
        checks = (
            (wish.leader_epoch > partition.leader_epoch, ErrorCode.NOT_CONTROLLER),
            (wish.partition_epoch > partition.partition_epoch, ErrorCode.NOT_CONTROLLER),
            (wish.leader_epoch < partition.leader_epoch, ErrorCode.FENCED_LEADER_EPOCH),
            (leader_id != partition.leader, ErrorCode.INVALID_REQUEST),
            (wish.partition_epoch < partition.partition_epoch, ErrorCode.INVALID_UPDATE_VERSION),
            (len(set(node_ids)) < len(node_ids), ErrorCode.INVALID_REQUEST),
            (not set(node_ids).issubset(partition.replicas), ErrorCode.INVALID_REQUEST),
            (partition.leader not in node_ids, ErrorCode.INVALID_REQUEST),
            (is_recovering and len(node_ids) > 1, ErrorCode.INVALID_REQUEST),
            (
                is_recovering and partition.leader_recovery_state == RECOVERED,
                ErrorCode.INVALID_REQUEST,
            ),
            (not all(map(self._may_be_in_sync, new_isr)), ErrorCode.INELIGIBLE_REPLICA),
        )
        for is_wrong, error_code in checks:
            if is_wrong:
                raise RefusedError(
                    error_code,
                    f"broker {leader_id} asks for the ISR {node_ids} of {partition.id} with leader "
                    f"epoch {wish.leader_epoch} and partition epoch {wish.partition_epoch}, which "
                    f"has {partition.leader_epoch} and {partition.partition_epoch}",
                )

    def _may_be_in_sync(self, state: wire.BrokerState) -> bool:
        broker = self._image.brokers.get(state.broker_id)
        return (
            broker is not None
            and broker.is_active
            and state.broker_epoch in {_ANY_EPOCH, broker.broker_epoch}
        )

    # Elections.

    def elect_leader(self, topic_name: str, index: int, election: Election) -> PartitionChange:
        """Return the change by which a client's election ends (ElectLeaders, KIP-460).

        Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION; ELECTION_NOT_NEEDED if the preferred
        replica leads already, or for an unclean election any; or PREFERRED_LEADER_NOT_AVAILABLE or
        ELIGIBLE_LEADERS_NOT_AVAILABLE.
        """
        partition = self._find(topic_name, index)
        is_preferred = election is Election.PREFERRED
        if partition.has_preferred_leader if is_preferred else partition.has_leader:
            raise RefusedError(
                ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
            )
        builder = self._builder(partition)
        builder.election = election
        change = builder.build()
        if change is None:
            if is_preferred:
                raise RefusedError(
                    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                    "The preferred leader was not available.",
                )
            raise RefusedError(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                "Eligible topic partition leaders are not available.",
            )
        return change

    def balance_leaders(self, most: int) -> list[MetadataRecord]:
        """Return the changes by which preferred replicas lead again, at most so many."""
        changes: list[MetadataRecord] = []
        for partition in self.imbalanced():
            builder = self._builder(partition)
            builder.election = Election.PREFERRED
            change = builder.build()
            if change is not None:
                changes.append(change)
                if len(changes) >= most:
                    break
        return changes

    def elect_unclean_leaders(self, most: int) -> list[MetadataRecord]:
        """Return the changes by which partitions without leader get one, at most so many."""
        changes: list[MetadataRecord] = []
        for partition in self.leaderless():
            change = self._builder(partition, unclean_if_allowed=True).build()
            if change is not None:
                changes.append(change)
                if len(changes) >= most:
                    break
        return changes

    def imbalanced(self) -> Iterable[PartitionRecord]:
        """Return the partitions that another replica than the preferred one leads."""
        return (each for each in self._image.partitions() if not each.has_preferred_leader)

    def leaderless(self) -> Iterable[PartitionRecord]:
        """Return the partitions without leader whose topics allow unclean elections."""
        return (
            each
            for each in self._image.partitions()
            if not each.has_leader
            and self.allows_unclean_election(self._image.topics[each.topic_id].name)
        )

    # Reassignments.

    def reassign(
        self,
        topic_name: str,
        index: int,
        replicas: Sequence[int] | None,
        *,
        may_change_replication_factor: bool = True,
    ) -> PartitionChange | None:
        """Return the change by which a partition's replicas begin to move (KIP-455).

        None as `replicas` cancels a reassignment. The rest follows as replicas come in sync. Raises
        RefusedError with UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT,
        NO_REASSIGNMENT_IN_PROGRESS or INVALID_REPLICATION_FACTOR.
        """
        partition = self._find(topic_name, index)
        if replicas is None:
            return self._cancel_reassignment(topic_name, partition)
        self.check_assignment(replicas)
        factor = len(set(partition.replicas).difference(partition.removing))
        if not may_change_replication_factor and len(replicas) != factor:
            raise RefusedError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {factor} to {len(replicas)}",
            )
        plan = Reassignment.plan(partition.replicas, replicas)
        builder = self._builder(partition)
        builder.replicas = plan.replicas
        # As in Kafka, a reassignment that adds or removes none keeps the lists of one before it.
        builder.removing = plan.removing or None
        builder.adding = plan.adding or None
        return builder.build()

    def _cancel_reassignment(
        self, topic_name: str, partition: PartitionRecord
    ) -> PartitionChange | None:
        if not partition.is_reassigning:
            raise RefusedError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
            )
        replicas = tuple(each for each in partition.replicas if each not in partition.adding)
        isr = tuple(each for each in partition.isr if each not in partition.adding)
        if not isr and not self.allows_unclean_election(topic_name):
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic_name}:{partition.partition} "
                "because it would require an unclean leader election.",
            )
        builder = self._builder(partition, unclean_if_allowed=True)
        builder.replicas = replicas
        builder.isr = isr or replicas[:1]
        builder.adding = builder.removing = ()
        return builder.build()

    def check_assignment(
        self, replicas: Sequence[int], replication_factor: int | None = None
    ) -> None:
        """Raise RefusedError with INVALID_REPLICA_ASSIGNMENT for replicas that cannot be.

        A partition must have at least one, each on another registered broker, and as many as the
        others of its topic.
        """
        if not replicas:
            problem = "includes an empty replica list."
        elif unknown := set(replicas).difference(self._image.brokers):
            problem = f"includes broker {min(unknown)}, but no such broker is registered."
        elif len(set(replicas)) < len(replicas):
            problem = f"includes a broker more than once: {list(replicas)}."
        elif replication_factor is not None and len(replicas) != replication_factor:
            problem = (
                f"includes a partition with {len(replicas)} replica(s), but this is not consistent "
                f"with previous partitions, which have {replication_factor} replica(s)."
            )
        else:
            return
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {problem}"
        )

    def _find(self, topic_name: str, index: int) -> PartitionRecord:
        topic = self._image.find_topic(topic_name)
        if topic is None:
            problem = f"No such topic as {topic_name}"
        elif index not in topic.partitions:
            problem = f"No such partition as {topic_name}-{index}"
        else:
            return topic.partitions[index]
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, problem)


_FIRST_VERSION_WITH_EPOCHS = 3
#: The epoch of a broker that is not to be compared.
_ANY_EPOCH = -1
