"""The brokers of a cluster: registration, heartbeats, sessions, fencing and orderly shutdown.

Kafka's ClusterControlManager and BrokerHeartbeatManager. The image says which brokers are
registered, and which are fenced. This module holds what only the active controller knows, and a new
controller learns again: when each broker last sent a heartbeat, and how far it has read the
metadata log. A broker that sends none for the session timeout is fenced. Until then, only the same
process may register again under its id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.timers import NEVER
from spark_kafka_sink.devbroker.metadata.image import NOTHING_APPLIED
from spark_kafka_sink.devbroker.metadata.records import Endpoint, RegisterBroker
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.metadata.image import MetadataImage
    from spark_kafka_sink.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
    from spark_kafka_sink.protocol.messages.broker_registration import BrokerRegistrationRequest


class BrokerControlState(Enum):
    """The state of a broker in the eyes of the controller."""

    FENCED = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    SHUTDOWN_NOW = auto()

    @property
    def is_fenced(self) -> bool:
        """Whether the broker may lead nothing."""
        return self in {BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW}


class _Facts(NamedTuple):
    """What the next state of a broker depends on."""

    wants_fence: bool
    wants_shutdown: bool
    #: Whether it has read its own registration.
    is_caught_up: bool
    #: Whether it leads a partition.
    leads: bool
    #: Whether all active brokers know who leads instead of it.
    others_know: bool


_Row = tuple[Callable[[_Facts], bool], BrokerControlState]


def _otherwise(_facts: _Facts) -> bool:
    return True


#: The next state by the current one: that of the first row that applies
#: (BrokerHeartbeatManager.calculateNextBrokerState).
NEXT_STATES: Final[dict[BrokerControlState, tuple[_Row, ...]]] = {
    BrokerControlState.FENCED: (
        (lambda facts: facts.wants_shutdown, BrokerControlState.SHUTDOWN_NOW),
        (lambda facts: facts.wants_fence, BrokerControlState.FENCED),
        (lambda facts: facts.is_caught_up, BrokerControlState.UNFENCED),
        (_otherwise, BrokerControlState.FENCED),
    ),
    BrokerControlState.UNFENCED: (
        (
            lambda facts: facts.wants_fence and facts.wants_shutdown,
            BrokerControlState.SHUTDOWN_NOW,
        ),
        (lambda facts: facts.wants_fence, BrokerControlState.FENCED),
        (
            lambda facts: facts.wants_shutdown and facts.leads,
            BrokerControlState.CONTROLLED_SHUTDOWN,
        ),
        (lambda facts: facts.wants_shutdown, BrokerControlState.SHUTDOWN_NOW),
        (_otherwise, BrokerControlState.UNFENCED),
    ),
    BrokerControlState.CONTROLLED_SHUTDOWN: (
        (lambda facts: facts.leads, BrokerControlState.CONTROLLED_SHUTDOWN),
        (lambda facts: facts.others_know, BrokerControlState.SHUTDOWN_NOW),
        (_otherwise, BrokerControlState.CONTROLLED_SHUTDOWN),
    ),
}


class BrokerIdAndEpoch(NamedTuple):
    """One incarnation of a broker."""

    node_id: int
    broker_epoch: int


@dataclass(slots=True)
class _Progress:
    """How far a broker has read the metadata log."""

    metadata_offset: int = NOTHING_APPLIED
    #: The offset that all others must reach before the broker may shut down; None if it does not.
    shutdown_offset: int | None = None


class BrokerControl:
    """What the active controller knows of the brokers besides the image."""

    def __init__(
        self,
        image: MetadataImage,
        session_timeout: float,
        now: float,
        *,
        restarts_at_once: bool = False,
    ) -> None:
        """Begin a whole session for each registered broker that is not fenced.

        With `restarts_at_once`, a session ends when its broker is fenced.
        """
        self._restarts_at_once = restarts_at_once
        self._image = image
        self._session_timeout = session_timeout
        self._heard_at = {
            BrokerIdAndEpoch(broker.node_id, broker.broker_epoch): now
            for broker in image.brokers.values()
            if not broker.fenced
        }
        self._progress = {node_id: _Progress() for node_id in image.brokers}

    @property
    def deadline(self) -> float:
        """When the first session ends."""
        return min(self._heard_at.values(), default=NEVER) + self._session_timeout

    def check_epoch(self, node_id: int, broker_epoch: int) -> RegisterBroker:
        """Return the registration of a broker that has made a request.

        Raises RefusedError with STALE_BROKER_EPOCH if it is that of another incarnation.
        """
        broker = self._image.brokers.get(node_id)
        if broker is None:
            problem = f"No broker registration found for broker id {node_id}"
        elif broker.broker_epoch != broker_epoch:
            problem = f"Expected broker epoch {broker.broker_epoch}, but got {broker_epoch}"
        else:
            return broker
        raise RefusedError(ErrorCode.STALE_BROKER_EPOCH, problem)

    def register(
        self, request: BrokerRegistrationRequest, cluster_id: str, new_epoch: int, now: float
    ) -> RegisterBroker:
        """Return the registration that a broker has asked for.

        A process that registers again keeps its epoch and its state. Raises RefusedError with
        INCONSISTENT_CLUSTER_ID, or DUPLICATE_BROKER_REGISTRATION while the session of another
        process with this id lasts.
        """
        if request.cluster_id != cluster_id:
            raise RefusedError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"Expected cluster ID {cluster_id}, but got cluster ID {request.cluster_id}",
            )
        existing = self._image.brokers.get(request.broker_id)
        is_same = existing is not None and existing.incarnation_id == request.incarnation_id
        if (
            existing is not None
            and not is_same
            and not (self._restarts_at_once and existing.fenced)
            and self._has_session(existing, now)
        ):
            raise RefusedError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"Another broker is registered with id {request.broker_id}. If it was restarted, "
                "this resolves itself once the session of its last process has ended.",
            )
        if existing is None or not is_same:
            self._progress[request.broker_id] = _Progress()
        return RegisterBroker(
            node_id=request.broker_id,
            broker_epoch=existing.broker_epoch if existing and is_same else new_epoch,
            incarnation_id=request.incarnation_id,
            endpoints=tuple(
                Endpoint(each.name, each.host, each.port, each.security_protocol)
                for each in request.listeners
            ),
            rack=request.rack,
            fenced=existing.fenced if existing and is_same else True,
            in_controlled_shutdown=bool(existing and is_same and existing.in_controlled_shutdown),
        )

    def _has_session(self, broker: RegisterBroker, now: float) -> bool:
        heard_at = self._heard_at.get(BrokerIdAndEpoch(broker.node_id, broker.broker_epoch))
        return heard_at is not None and now < heard_at + self._session_timeout

    def next_state(
        self, request: BrokerHeartbeatRequest, now: float, *, leads: bool
    ) -> tuple[BrokerControlState, BrokerControlState]:
        """Return the current and the next state of a broker that has sent a heartbeat.

        Raises RefusedError as `check_epoch` does.
        """
        self._heard_at[BrokerIdAndEpoch(request.broker_id, request.broker_epoch)] = now
        broker = self.check_epoch(request.broker_id, request.broker_epoch)
        progress = self._progress[request.broker_id]
        if progress.shutdown_offset is not None:
            current = BrokerControlState.CONTROLLED_SHUTDOWN
        elif broker.fenced:
            current = BrokerControlState.FENCED
        else:
            current = BrokerControlState.UNFENCED
        facts = _Facts(
            wants_fence=request.want_fence,
            wants_shutdown=request.want_shut_down,
            is_caught_up=self.is_caught_up(request),
            leads=leads,
            others_know=(progress.shutdown_offset or 0) <= self._lowest_active_offset(),
        )
        following = next(state for applies, state in NEXT_STATES[current] if applies(facts))
        # As in Kafka, a broker that has just been unfenced counts from its next heartbeat on.
        progress.metadata_offset = (
            request.current_metadata_offset if following is current else NOTHING_APPLIED
        )
        if following.is_fenced:
            progress.shutdown_offset = None
        return current, following

    def is_caught_up(self, request: BrokerHeartbeatRequest) -> bool:
        """Return whether a broker has read its own registration."""
        registered_at = self._image.registration_offset(request.broker_id)
        return registered_at is not None and request.current_metadata_offset >= registered_at

    def begin_shutdown(self, node_id: int, offset: int) -> None:
        """Record that a broker may shut down once all others have read up to an offset."""
        progress = self._progress[node_id]
        if progress.shutdown_offset is None:
            progress.shutdown_offset = offset

    def forget(self, node_id: int) -> None:
        """Forget a broker that is not registered any more."""
        self._progress.pop(node_id, None)

    def _lowest_active_offset(self) -> float:
        return min(
            (
                progress.metadata_offset
                for node_id, progress in self._progress.items()
                if progress.shutdown_offset is None and self._image.is_active(node_id)
            ),
            default=NEVER,
        )

    def next_stale(self, now: float) -> int | None:
        """Return a broker to be fenced because its session has ended; None if there is none.

        As in Kafka, that may be one that is fenced already.
        """
        for incarnation, heard_at in sorted(self._heard_at.items(), key=lambda item: item[1]):
            if now < heard_at + self._session_timeout:
                break
            del self._heard_at[incarnation]
            broker = self._image.brokers.get(incarnation.node_id)
            if broker is not None and broker.broker_epoch == incarnation.broker_epoch:
                self._progress[broker.node_id].shutdown_offset = None
                return broker.node_id
        return None
