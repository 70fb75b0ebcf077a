"""The controller: one broker of the cluster is it, and changes the metadata (QuorumController).

Every broker has one; all but one are on standby. `tick` takes and renews the lease of the quorum,
and does what is due. Each call of `handle` is one event of Kafka's event queue: it decides by the
current image, appends the records to the metadata log, applies them to the image, and only then
responds. Calls come one at a time, and the log is durable at once, so no event waits for another.

A controller that has been replaced notices that at the latest when it appends. It has then changed
nothing, responds with NOT_CONTROLLER, and is on standby. No sockets, no threads; time is an
argument, in seconds.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.timers import NEVER
from spark_kafka_sink.devbroker.controller.broker_control import BrokerControl, BrokerControlState
from spark_kafka_sink.devbroker.controller.config_control import ConfigControl
from spark_kafka_sink.devbroker.controller.partition_requests import (
    alter_reassignments,
    elect_leaders,
    list_reassignments,
)
from spark_kafka_sink.devbroker.controller.replication_control import (
    ControllerSettings,
    ReplicationControl,
)
from spark_kafka_sink.devbroker.controller.topic_control import TopicControl
from spark_kafka_sink.devbroker.metadata.image import MetadataImage
from spark_kafka_sink.devbroker.metadata.metadata_replicas import MetadataReplicas
from spark_kafka_sink.devbroker.metadata.quorum import (
    NO_CONTROLLER,
    FetchMetadataRequest,
    FetchMetadataResponse,
    NotControllerError,
)
from spark_kafka_sink.devbroker.metadata.records import (
    ConfigResource,
    MetadataRecord,
    PartitionChange,
    ProducerIds,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from spark_kafka_sink.protocol.messages.alter_configs import AlterConfigsRequest
from spark_kafka_sink.protocol.messages.alter_partition import AlterPartitionRequest
from spark_kafka_sink.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from spark_kafka_sink.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from spark_kafka_sink.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from spark_kafka_sink.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from spark_kafka_sink.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from spark_kafka_sink.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from spark_kafka_sink.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    TopicData,
)
from spark_kafka_sink.protocol.messages.elect_leaders import ElectLeadersRequest
from spark_kafka_sink.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
)
from spark_kafka_sink.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)

if TYPE_CHECKING:
    import random
    import uuid
    from collections.abc import Callable, Mapping, Sequence

    from spark_kafka_sink.devbroker.metadata.quorum import MetadataQuorum
    from spark_kafka_sink.devbroker.metadata.records import TopicIdPartition
    from spark_kafka_sink.protocol.schema import AnyRequest, ApiResponse

logger = logging.getLogger(__name__)

_MAX_PRODUCER_ID: Final = 2**63 - 1
#: How many records a response to a fetch of metadata has at most.
_FETCH_LIMIT: Final = 10_000


class Controller:
    """The controller in one broker: active or on standby."""

    def __init__(
        self,
        node_id: int,
        cluster_id: str,
        quorum: MetadataQuorum,
        *,
        new_uuid: Callable[[], uuid.UUID],
        rng: random.Random,
        settings: ControllerSettings | None = None,
    ) -> None:
        """Begin on standby; `new_uuid` returns the ids of topics, `rng` places replicas."""
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._quorum = quorum
        self._settings = settings or ControllerSettings()
        #: The metadata as this controller last knew them; current while it is active.
        self.image = MetadataImage()
        self._replication = ReplicationControl(self.image, self._settings.topic_defaults)
        self._topics = TopicControl(
            image=self.image,
            replication=self._replication,
            settings=self._settings,
            new_uuid=new_uuid,
            rng=rng,
        )
        self._configs = ConfigControl(
            image=self.image,
            replication=self._replication,
            topic_defaults=self._settings.topic_defaults,
        )
        self._epoch: int | None = None
        self._brokers = self._broker_control(0.0)
        #: The brokers that have fetched metadata from this controller.
        self._replicas = MetadataReplicas()
        self._check_lease_at = 0.0
        self._balance_at = NEVER
        self._elect_uncleanly_at = NEVER

    @property
    def is_active(self) -> bool:
        """Whether this is the controller, as far as it knows."""
        return self._epoch is not None

    @property
    def epoch(self) -> int | None:
        """The epoch of this controller while it is active."""
        return self._epoch

    @property
    def deadline(self) -> float:
        """When `tick` must be called at the latest."""
        if self._epoch is None:
            return self._quorum.turn_of(self._node_id)
        return min(
            self._check_lease_at,
            self._brokers.deadline,
            self._balance_at,
            self._elect_uncleanly_at,
        )

    # Time.

    def tick(self, now: float) -> None:
        """Take or keep the lease; fence brokers and elect leaders when it is time."""
        if self._epoch is None:
            self._epoch = self._quorum.acquire(self._node_id, now)
            if self._epoch is None:
                return
            self._activate(now)
        elif not self._keeps_lease(now):
            self._epoch = None
            return
        self._check_lease_at = now + self._quorum.lease / 4
        try:
            self._do_what_is_due(now)
        except NotControllerError:
            self._epoch = None
        except RefusedError as error:
            # As Kafka's controller does after a failed append; the next one begins with all it has.
            logger.warning("the controller resigns: %s", error)
            self.resign(now)

    def _activate(self, now: float) -> None:
        self.image.apply(self._quorum.read(self.image.offset + 1, self._quorum.end_offset))
        self._brokers = self._broker_control(now)
        self._replicas = MetadataReplicas(self._quorum.running, now)
        self._balance_at = self._elect_uncleanly_at = NEVER
        self._schedule(now)

    def _broker_control(self, now: float) -> BrokerControl:
        settings = self._settings
        return BrokerControl(
            self.image,
            settings.broker_session_timeout,
            now,
            restarts_at_once=settings.restarts_at_once,
        )

    def _keeps_lease(self, now: float) -> bool:
        quorum = self._quorum
        since = now - quorum.lease
        reached = sum(
            node_id == self._node_id or self._replicas.fetched_since(node_id, since)
            for node_id in quorum.running
        )
        if self._epoch is not None and reached * 2 > len(quorum.running):
            return quorum.renew(self._epoch, now)
        return now < quorum.lease_ends_at and quorum.controller_epoch == self._epoch

    def resign(self, now: float) -> None:
        """End the lease because this broker shuts down, so that another takes over at once."""
        if self._epoch is not None:
            self._quorum.resign(self._epoch, now)
            self._epoch = None

    def _do_what_is_due(self, now: float) -> None:
        # One at a time: the next one sees what the first has changed.
        while (node_id := self._brokers.next_stale(now)) is not None:
            epoch = self.image.brokers[node_id].broker_epoch
            self._commit(self._replication.broker_fenced(node_id, epoch), now)
        most = self._settings.max_elections
        if now >= self._elect_uncleanly_at:
            self._elect_uncleanly_at = NEVER
            changes = self._replication.elect_unclean_leaders(most)
            if len(changes) == most:
                self._elect_uncleanly_at = now
            self._commit(changes, now)
        if now >= self._balance_at:
            self._balance_at = NEVER
            changes = self._replication.balance_leaders(most)
            if len(changes) == most:
                self._balance_at = now
            self._commit(changes, now)

    def _schedule(self, now: float) -> None:
        """Plan elections if there is something to elect, and none is planned."""
        settings = self._settings
        if self._elect_uncleanly_at == NEVER and any(self._replication.leaderless()):
            self._elect_uncleanly_at = now + settings.unclean_leader_election_interval
        if (
            settings.leader_imbalance_check_interval is not None
            and self._balance_at == NEVER
            and any(self._replication.imbalanced())
        ):
            self._balance_at = now + settings.leader_imbalance_check_interval

    def _commit(self, records: Sequence[MetadataRecord], now: float) -> None:
        """Append records and apply them; raises NotControllerError if another one is active."""
        if self._epoch is None:
            raise NotControllerError(f"broker {self._node_id} is not the controller")
        if records:
            self._quorum.append(self._epoch, records)
            self.image.apply(records)
        self._schedule(now)

    # Requests between brokers, and of clients.

    def note_fetch(self, request: FetchMetadataRequest, now: float) -> None:
        """Record that a broker has asked for metadata, so this controller reaches it."""
        self._replicas.fetched(request.node_id, request.offset, self.image.offset + 1, now)

    def read_metadata(self, request: FetchMetadataRequest) -> FetchMetadataResponse:
        """Return records of the metadata log, or only who the controller is."""
        if self._epoch is None:
            holder = self._quorum.controller_id
            return FetchMetadataResponse(
                # This one's own lease is over, if it was the last.
                controller_id=NO_CONTROLLER if holder == self._node_id else holder,
                controller_epoch=self._quorum.controller_epoch,
                offset=request.offset,
            )
        # One that was replaced, and does not know it yet, has nothing newer.
        known = max(0, self.image.offset + 1 - request.offset)
        return FetchMetadataResponse(
            controller_id=self._node_id,
            controller_epoch=self._epoch,
            offset=request.offset,
            records=self._quorum.read(request.offset, min(known, _FETCH_LIMIT)),
        )

    def handle(self, request: AnyRequest, now: float, version: int | None = None) -> ApiResponse:
        """Handle one request; `version` is by default the latest.

        A top-level error is in the response, if that has a place for it. Otherwise it is raised, as
        RefusedError with NOT_CONTROLLER.
        """
        try:
            return self._handle(request, now, request.versions.max if version is None else version)
        except NotControllerError as error:
            self._epoch = None
            refused = RefusedError(ErrorCode.NOT_CONTROLLER, str(error))
        except RefusedError as error:
            refused = error
        if isinstance(request, _WITHOUT_TOP_LEVEL_ERROR):
            raise refused
        failed: Callable[..., ApiResponse] = type(request).response_class()
        empty = _EMPTY_RESULTS.get(type(request))
        return failed(error_code=refused.error_code, **({} if empty is None else {empty: ()}))

    def _handle(self, request: AnyRequest, now: float, version: int) -> ApiResponse:
        if self._epoch is None:
            raise NotControllerError(f"broker {self._node_id} is not the controller")
        match request:
            case BrokerHeartbeatRequest():
                return self._heartbeat(request, now)
            case AlterPartitionRequest():
                self._brokers.check_epoch(request.broker_id, request.broker_epoch)
                records, response = self._replication.alter_partition(request, version)
                self._commit(records, now)
                return response
            case BrokerRegistrationRequest():
                return self._register(request, now)
            case AllocateProducerIdsRequest():
                return self._allocate_producer_ids(request, now)
            case DescribeQuorumRequest() | ListPartitionReassignmentsRequest():
                return self._read(request, now)
            case _:
                return self._change(request, now)

    def _change(self, request: AnyRequest, now: float) -> ApiResponse:
        """Change topics or partitions as a client asks, all that is possible in one step."""
        records: list[MetadataRecord] = []
        response: ApiResponse
        match request:
            case CreateTopicsRequest():
                response = CreateTopicsResponse(topics=self._topics.create(request.topics, records))
            case CreatePartitionsRequest():
                response = CreatePartitionsResponse(
                    results=self._topics.grow(request.topics, records)
                )
            case DeleteTopicsRequest():
                response = DeleteTopicsResponse(responses=self._topics.delete(request, records))
            case ElectLeadersRequest():
                response = elect_leaders(request, self._replication, self.image, records)
            case AlterPartitionReassignmentsRequest():
                response = alter_reassignments(request, self._replication, records)
            case IncrementalAlterConfigsRequest():
                response = self._configs.alter(request, records)
            case AlterConfigsRequest():
                response = self._configs.replace(request, records)
            case _:
                raise TypeError(f"{type(request).__name__} is not a request for the controller")
        self._commit([] if getattr(request, "validate_only", False) else records, now)
        return response

    def _register(
        self, request: BrokerRegistrationRequest, now: float
    ) -> BrokerRegistrationResponse:
        before = self.image.brokers.get(request.broker_id)
        broker = self._brokers.register(request, self._cluster_id, self._quorum.end_offset, now)
        records: list[MetadataRecord] = []
        if before is None or before.incarnation_id != broker.incarnation_id:
            records += self._replication.broker_restarted(
                broker.node_id,
                cleanly=before is not None and request.previous_broker_epoch == before.broker_epoch,
            )
        self._commit([*records, broker], now)
        return BrokerRegistrationResponse(broker_epoch=broker.broker_epoch)

    def _heartbeat(self, request: BrokerHeartbeatRequest, now: float) -> BrokerHeartbeatResponse:
        node_id, epoch = request.broker_id, request.broker_epoch
        replication = self._replication
        current, following = self._brokers.next_state(
            request, now, leads=replication.leads(node_id)
        )
        is_caught_up = self._brokers.is_caught_up(request)
        records: list[MetadataRecord] = []
        if following is not current:
            if following.is_fenced:
                records = replication.broker_fenced(node_id, epoch)
            elif following is BrokerControlState.UNFENCED:
                records = replication.broker_unfenced(node_id, epoch)
            else:
                records = replication.broker_shutting_down(node_id, epoch)
        self._commit(records, now)
        if following is BrokerControlState.CONTROLLED_SHUTDOWN:
            self._brokers.begin_shutdown(node_id, self.image.offset)
        return BrokerHeartbeatResponse(
            is_caught_up=is_caught_up,
            is_fenced=following.is_fenced,
            should_shut_down=following is BrokerControlState.SHUTDOWN_NOW,
        )

    def _read(
        self, request: DescribeQuorumRequest | ListPartitionReassignmentsRequest, now: float
    ) -> ApiResponse:
        """Describe what moves, or the metadata log, for which a broker asks with nothing else."""
        if isinstance(request, ListPartitionReassignmentsRequest):
            return list_reassignments(request, self.image)
        [topic] = request.topics
        described = self._replicas.describe(
            sorted(self.image.brokers),
            self._node_id,
            self._quorum.controller_epoch,
            self.image.offset + 1,
            now,
        )
        return DescribeQuorumResponse(
            error_message="",
            topics=(TopicData(topic_name=topic.topic_name, partitions=(described,)),),
        )

    def _allocate_producer_ids(
        self, request: AllocateProducerIdsRequest, now: float
    ) -> AllocateProducerIdsResponse:
        self._brokers.check_epoch(request.broker_id, request.broker_epoch)
        first, size = self.image.next_producer_id, self._settings.producer_id_block_size
        if first > _MAX_PRODUCER_ID - size:
            raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, "Exhausted all producer ids")
        record = ProducerIds(
            node_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            next_producer_id=first + size,
        )
        self._commit([record], now)
        return AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=size)

    # Calls without a message of their own; each raises RefusedError.

    def alter_configs(
        self, resource: ConfigResource, changes: Mapping[str, str | None], now: float
    ) -> None:
        """Set valid settings of a topic or of brokers, or remove those that are None."""
        self._commit_or_refuse(self._configs.records(resource, changes), now)

    def lead(
        self, partition: TopicIdPartition, node_id: int, now: float, *, uncleanly: bool = False
    ) -> None:
        """Make an in-sync replica the leader, or another one `uncleanly`, in a new leader epoch.

        No client can request that. Raises RefusedError with UNKNOWN_TOPIC_OR_PARTITION, or with
        INVALID_REPLICA_ASSIGNMENT if the broker may not lead the partition.
        """
        known = self.image.find_partition(partition)
        if known is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {partition} does not exist"
            )
        name = f"{self.image.topics[partition.topic_id].name}-{partition.partition}"
        problem = None
        if not uncleanly and node_id not in known.isr:
            problem = f"is not in the ISR, {known.isr}"
        elif node_id not in known.replicas or not self.image.is_active(node_id):
            problem = "is not one of the running replicas"
        if problem is not None:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{name}: broker {node_id} {problem}"
            )
        change = PartitionChange(
            topic_id=partition.topic_id, partition=partition.partition, leader=node_id
        )
        if uncleanly:
            change = replace(change, isr=(node_id,), elr=(), last_known_elr=())
        elif node_id == known.leader:
            return
        self._commit_or_refuse([change], now)

    def unregister_broker(self, node_id: int, now: float) -> None:
        """Remove a broker that will not come back (UnregisterBroker)."""
        broker = self.image.brokers.get(node_id)
        if broker is None:
            raise RefusedError(
                ErrorCode.BROKER_ID_NOT_REGISTERED,
                f"Broker ID {node_id} is not currently registered",
            )
        records = self._replication.broker_unregistered(node_id, broker.broker_epoch)
        self._commit_or_refuse(records, now)
        self._brokers.forget(node_id)

    def _commit_or_refuse(self, records: Sequence[MetadataRecord], now: float) -> None:
        try:
            self._commit(records, now)
        except NotControllerError as error:
            self._epoch = None
            raise RefusedError(ErrorCode.NOT_CONTROLLER, str(error)) from error


#: The field with the results of a response, which is empty if the whole request fails.
_EMPTY_RESULTS: Final[dict[type[AnyRequest], str]] = {
    AlterPartitionReassignmentsRequest: "responses",
    DescribeQuorumRequest: "topics",
    ElectLeadersRequest: "replica_election_results",
    ListPartitionReassignmentsRequest: "topics",
}
#: Requests whose responses have no error of their own, only one for each topic or resource.
_WITHOUT_TOP_LEVEL_ERROR = (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)
