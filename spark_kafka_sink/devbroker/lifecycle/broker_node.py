"""A broker of a cluster that replicates, without IO: its replicas, its metadata, its controller.

The node passes each message to the core that it is for, and tells the cores of each other's news:
the metadata that were fetched decide the roles of the replicas, and their offset is in the next
heartbeat. Metadata from before this process's registration are not acted on, because they may say
that this broker leads what the last process led.

`handle`, `failed` and `tick` return what to send; requests to the controller are addressed to the
broker that this one takes for it. Time is an argument, in seconds.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.devbroker.base.timers import NEVER
from spark_kafka_sink.devbroker.controller.controller import Controller
from spark_kafka_sink.devbroker.controller.controller_host import ControllerHost
from spark_kafka_sink.devbroker.controller.replication_control import ControllerSettings
from spark_kafka_sink.devbroker.lifecycle.broker_lifecycle import (
    BrokerIdentity,
    BrokerLifecycle,
    BrokerState,
    LifecycleSettings,
)
from spark_kafka_sink.devbroker.lifecycle.forwarder import Forwarder, ForwardingSettings
from spark_kafka_sink.devbroker.lifecycle.producer_ids import ProducerIdBlocks
from spark_kafka_sink.devbroker.metadata.envelope import (
    CONTROLLER,
    Envelope,
    ForwardedRequest,
    ForwardedResponse,
)
from spark_kafka_sink.devbroker.metadata.image import (
    NOTHING_APPLIED,
    MetadataDelta,
    MetadataImage,
)
from spark_kafka_sink.devbroker.metadata.metadata_fetcher import (
    MetadataFetcher,
    MetadataFetchSettings,
)
from spark_kafka_sink.devbroker.metadata.quorum import FetchMetadataResponse
from spark_kafka_sink.devbroker.replication.follower_fetcher import ReplicationSettings
from spark_kafka_sink.devbroker.replication.replica_manager import ReplicaManager
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from spark_kafka_sink.protocol.messages.allocate_producer_ids import AllocateProducerIdsResponse
from spark_kafka_sink.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse
from spark_kafka_sink.protocol.messages.broker_registration import BrokerRegistrationResponse
from spark_kafka_sink.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    import random
    import uuid
    from collections.abc import Callable, Collection, Iterator

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.metadata.envelope import Request, Response
    from spark_kafka_sink.devbroker.metadata.quorum import MetadataQuorum
    from spark_kafka_sink.devbroker.replication.replica_manager import ReplicaLogs
    from spark_kafka_sink.protocol.messages.broker_registration import Listener
    from spark_kafka_sink.protocol.schema import AnyRequest

    #: Called with the response, or None if the broker cannot be reached, and the time.
    OnPeerResponse = Callable[[Response | None, float], None]

_NONE = -1
#: The messages between the coordinators and handlers of brokers.
_OF_PEERS = (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


#: After which time a request without a response is given up (request.timeout.ms).
_REQUEST_TIMEOUT: Final = 30.0


class _Sent(NamedTuple):
    on_response: OnPeerResponse
    expires_at: float


class PeerRequests:
    """The requests of a broker's coordinators and handlers to other brokers, and the responses.

    The first write of a transaction to a partition asks the transaction coordinator, with
    AddPartitionsToTxn (AddPartitionsToTxnManager). That later sends its markers to the leaders,
    with WriteTxnMarkers (TransactionMarkerChannelManager). A broker sends them to itself as well.
    """

    def __init__(self, node_id: int, numbers: Iterator[int]) -> None:
        """Send the requests of this broker, with these correlation ids."""
        self._node_id = node_id
        self._numbers = numbers
        self._outgoing: list[Envelope] = []
        self._sent: dict[int, _Sent] = {}

    @property
    def deadline(self) -> float:
        """When `expire` must be called at the latest."""
        # They have the same timeout, so the first one sent expires first.
        return next((each.expires_at for each in self._sent.values()), NEVER)

    def ask(
        self, receiver: int, request: AnyRequest, on_response: OnPeerResponse, now: float
    ) -> None:
        """Send a request with the next step."""
        number = next(self._numbers)
        self._sent[number] = _Sent(on_response, now + _REQUEST_TIMEOUT)
        self._outgoing.append(Envelope(self._node_id, receiver, number, request))

    def respond(self, envelope: Envelope, response: Response) -> None:
        """Send the response to a request of another broker with the next step."""
        self._outgoing.append(envelope.response(response))

    def handle(self, correlation_id: int, response: Request | Response | None, now: float) -> None:
        """Pass on a response, or None if the request has failed, unless it was given up."""
        sent = self._sent.pop(correlation_id, None)
        if sent is not None:
            sent.on_response(response, now)  # type: ignore[arg-type]  # the caller has responses

    def expire(self, now: float) -> None:
        """Fail the requests that have no response in time."""
        while now >= self.deadline:
            self.handle(next(iter(self._sent)), None, now)

    def take_outgoing(self) -> list[Envelope]:
        """Return what is to be sent now."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The settings of all cores."""

    replication: ReplicationSettings = field(default_factory=ReplicationSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    lifecycle: LifecycleSettings = field(default_factory=LifecycleSettings)
    metadata: MetadataFetchSettings = field(default_factory=MetadataFetchSettings)
    forwarding: ForwardingSettings = field(default_factory=ForwardingSettings)
    #: The settings of topics that do not have their own; None for Kafka's defaults.
    topic_defaults: TopicConfig | None = None


class BrokerNode:
    """One process of a broker, from its start until its end."""

    def __init__(
        self,
        identity: BrokerIdentity,
        nodes: Collection[int],
        logs: ReplicaLogs,
        quorum: MetadataQuorum,
        *,
        new_uuid: Callable[[], uuid.UUID],
        rng: random.Random,
        settings: NodeSettings | None = None,
    ) -> None:
        """Begin with nothing but the logs; `nodes` are the ids of all brokers of the cluster."""
        settings = settings or NodeSettings()
        self.node_id = identity.node_id
        self._incarnation_id = identity.incarnation_id
        self.image = MetadataImage()
        self._numbers = itertools.count()
        self.replicas = ReplicaManager(
            self.node_id,
            logs,
            self.image,
            settings=settings.replication,
            topic_defaults=settings.topic_defaults,
            numbers=self._numbers,
        )
        self.controller = ControllerHost(
            Controller(
                self.node_id,
                identity.cluster_id,
                quorum,
                new_uuid=new_uuid,
                rng=rng,
                settings=settings.controller,
            )
        )
        #: Called with each change of the metadata, once the replicas have taken their roles.
        self.on_metadata: Callable[[MetadataDelta, float], None] | None = None
        self.lifecycle = BrokerLifecycle(identity, settings.lifecycle)
        self._fetcher = MetadataFetcher(self.node_id, self.image, nodes, settings.metadata)
        self._forwarder = Forwarder(self.node_id, self._numbers, settings.forwarding)
        #: The ids for idempotent and transactional producers.
        self.producer_ids = ProducerIdBlocks(self.node_id)
        #: What this broker's coordinators and handlers ask of others.
        self.peers = PeerRequests(self.node_id, self._numbers)
        #: Called with the requests of others for this broker's coordinators and handlers.
        self.on_request: Callable[[Envelope, float], None] | None = None
        #: Called at the end of each step, so that what waits for replicas goes on.
        self.on_step: Callable[[float], None] | None = None
        self._metadata_number = _NONE
        self._lifecycle_number = _NONE
        self._producer_ids_number = _NONE
        #: Whether this process has read its own registration.
        self._knows_itself = False

    @property
    def deadline(self) -> float:
        """When `tick` must be called at the latest, if nothing happens before."""
        return min(
            self.lifecycle.deadline,
            self._fetcher.deadline,
            self._forwarder.deadline,
            self.producer_ids.deadline,
            self.peers.deadline,
            self.replicas.deadline,
            self.controller.deadline,
        )

    @property
    def controller_id(self) -> int:
        """The broker that this one takes for the controller, -1 for none."""
        return self._fetcher.controller_id

    @property
    def controller_epoch(self) -> int:
        """The latest epoch of the controller that this broker knows."""
        return max(self._fetcher.controller_epoch, self.controller.controller.epoch or 0)

    @property
    def may_stop(self) -> bool:
        """Whether the controller has let this broker go, or there is nothing to wait for."""
        return self.lifecycle.state is BrokerState.SHUTTING_DOWN

    def tick(self, now: float) -> list[Envelope]:
        """Do what is due."""
        outgoing = self.controller.tick(now) if now >= self.controller.deadline else []
        if now >= self.replicas.deadline:
            outgoing += self.replicas.tick(now)
        self.peers.expire(now)
        return self._send(outgoing, now)

    def forward(self, envelope: Envelope, request: ForwardedRequest, now: float) -> list[Envelope]:
        """Send a client's request to the controller; its response goes back to the envelope."""
        self._forwarder.forward(envelope, request, now)
        return self._send([], now)

    def handle(self, envelope: Envelope, now: float) -> list[Envelope]:
        """Handle a message."""
        outgoing = self.controller.handle(envelope, now)
        if outgoing is not None:
            return self._send(outgoing, now)
        match envelope.message:
            case BrokerRegistrationResponse() | BrokerHeartbeatResponse() as response:
                if envelope.correlation_id == self._lifecycle_number:
                    self._lifecycle_number = _NONE
                    self.lifecycle.handle(response, now)
                    if isinstance(response, BrokerRegistrationResponse) and not response.error_code:
                        self.replicas.registered(self.lifecycle.epoch)
                outgoing = []
            case AllocateProducerIdsResponse() as response:
                if envelope.correlation_id == self._producer_ids_number:
                    self._producer_ids_number = _NONE
                    self.producer_ids.handle(response, now)
                outgoing = []
            case FetchMetadataResponse() as response:
                outgoing = self._fetched(envelope, response, now)
            case message if isinstance(message, _OF_PEERS):
                self._handle_peers(envelope, now)
                outgoing = []
            case ForwardedResponse() as response:
                outgoing = self._forwarder.handle(envelope.correlation_id, response, now)
            case _:
                outgoing = self.replicas.handle(envelope, now)
        return self._send(outgoing, now)

    def _handle_peers(self, envelope: Envelope, now: float) -> None:
        """Handle a message between the coordinators and handlers of brokers."""
        message = envelope.message
        if isinstance(message, (WriteTxnMarkersResponse, AddPartitionsToTxnResponse)):
            self.peers.handle(envelope.correlation_id, message, now)
        elif self.on_request is not None:
            self.on_request(envelope, now)

    def control(self, change: Callable[[Controller], None], now: float) -> list[Envelope]:
        """Make a change by this broker's controller that no message asks for."""
        change(self.controller.controller)
        return self._send(self.controller.tick(now), now)

    def collect(self, now: float) -> list[Envelope]:
        """Return what to send because of what clients have done with the replicas."""
        return self._send(self.replicas.collect(now), now)

    def failed(self, correlation_id: int, now: float) -> list[Envelope]:
        """Handle that a request could not be sent, or its connection was closed."""
        outgoing: list[Envelope] = []
        if correlation_id == self._lifecycle_number:
            self._lifecycle_number = _NONE
            self.lifecycle.fail(now)
        elif correlation_id == self._metadata_number:
            self._metadata_number = _NONE
            self._fetcher.fail(now)
        elif correlation_id == self._producer_ids_number:
            self._producer_ids_number = _NONE
            self.producer_ids.fail(now)
        else:
            self._forwarder.fail(correlation_id, now)
            self.peers.handle(correlation_id, None, now)
            outgoing = self.replicas.failed(correlation_id, now)
        return self._send(outgoing, now)

    def advertise(self, listeners: tuple[Listener, ...], now: float) -> list[Envelope]:
        """Register again, with other addresses."""
        self.lifecycle.advertise(listeners, now)
        return self._send([], now)

    def begin_controlled_shutdown(self, now: float) -> list[Envelope]:
        """Request that others lead instead of this broker; then `may_stop` is true."""
        self.lifecycle.begin_controlled_shutdown(now)
        return self._send([], now)

    def stop(self, now: float) -> list[Envelope]:
        """End the lease of the controller, and store the high watermarks.

        The owner closes the logs then, and records that it did so, with the broker's epoch.
        """
        outgoing = self.controller.resign(now)
        self.replicas.checkpoint()
        return outgoing

    # Between the cores.

    def _send(self, outgoing: list[Envelope], now: float) -> list[Envelope]:
        """Add what the other cores ask; send what is for the controller to it."""
        if self.on_step is not None:
            self.on_step(now)
            outgoing += self.replicas.collect(now)
            outgoing += self.peers.take_outgoing()
        fetch = self._fetcher.next_request(now)
        if fetch is not None:
            self._metadata_number = next(self._numbers)
            outgoing.append(
                Envelope(self.node_id, fetch.receiver, self._metadata_number, fetch.request)
            )
        offset = self.image.offset if self._knows_itself else NOTHING_APPLIED
        request: Request | None = self.lifecycle.next_request(offset, now)
        if request is not None:
            self._lifecycle_number = next(self._numbers)
            outgoing.append(Envelope(self.node_id, CONTROLLER, self._lifecycle_number, request))
        request = self.producer_ids.next_request(self.lifecycle.epoch, now)
        if request is not None:
            self._producer_ids_number = next(self._numbers)
            outgoing.append(Envelope(self.node_id, CONTROLLER, self._producer_ids_number, request))
        outgoing += self._forwarder.outgoing(now)
        controller_id = self._fetcher.controller_id
        return [
            each._replace(receiver=controller_id) if each.receiver == CONTROLLER else each
            for each in outgoing
        ]

    def _fetched(
        self, envelope: Envelope, response: FetchMetadataResponse, now: float
    ) -> list[Envelope]:
        """Apply fetched metadata, and take the roles that they say."""
        is_expected = envelope.correlation_id == self._metadata_number
        if is_expected:
            self._metadata_number = _NONE
        known = self._fetcher.controller_id
        delta = self._fetcher.handle(envelope.sender, response, now, is_expected=is_expected)
        if self._fetcher.controller_id != known:
            self.lifecycle.controller_changed(now)
            self._forwarder.controller_changed(now)
        if delta is None:
            return []
        if not self._knows_itself:
            registered = self.image.brokers.get(self.node_id)
            if registered is None or registered.incarnation_id != self._incarnation_id:
                return []
            self._knows_itself = True
            # All partitions are news for this process.
            partitions = dict.fromkeys(each.id for each in self.image.partitions())
            delta = MetadataDelta(partitions=partitions, brokers=set(self.image.brokers))
            outgoing = self._apply(delta, now)
            self.replicas.remove_strays()
            self.lifecycle.ready(now)
            return outgoing
        return self._apply(delta, now)

    def _apply(self, delta: MetadataDelta, now: float) -> list[Envelope]:
        """Take the roles that changed metadata say, then tell who serves clients."""
        outgoing = self.replicas.apply(delta, now)
        if self.on_metadata is not None:
            self.on_metadata(delta, now)
        if any(self._shuts_down(node_id) for node_id in delta.brokers):
            # It may stop once the controller knows that all others have read this.
            self.lifecycle.send_soon(now)
        return outgoing

    def _shuts_down(self, node_id: int) -> bool:
        broker = self.image.brokers.get(node_id)
        return node_id != self.node_id and broker is not None and broker.in_controlled_shutdown
