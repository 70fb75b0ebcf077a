"""The life of a broker in the eyes of the controller (Kafka's BrokerLifecycleManager).

A process registers, and from then on sends heartbeats. The controller fences it until it has read
its own registration in the metadata log, and whenever its heartbeats stop. A broker that shuts down
in order says so in its heartbeats, and stops when the controller has moved what it leads.

One request is in flight at a time. After a failure the next one waits, each time twice as long, up
to the session timeout. No IO: `next_request` returns what to send. Times are in seconds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.base.timers import NEVER
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from spark_kafka_sink.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Listener,
)

if TYPE_CHECKING:
    import uuid

logger = logging.getLogger(__name__)

_UNKNOWN_EPOCH = -1
#: The first heartbeats follow each other quickly, so that a broker starts quickly.
_STARTING_INTERVAL: Final = 0.01
#: A short wait after the first response to a broker that shuts down, which has little to move.
_SHUTDOWN_INTERVAL: Final = 0.05
_MOST_DOUBLINGS: Final = 16


class BrokerState(Enum):
    """The state of a broker's process, as it sees itself (Kafka's BrokerState)."""

    #: It has not read its registration.
    STARTING = auto()
    #: It has, and takes its roles.
    RECOVERY = auto()
    #: It was unfenced, and serves clients.
    RUNNING = auto()
    #: It has asked the controller to move what it leads.
    PENDING_CONTROLLED_SHUTDOWN = auto()
    #: It may end.
    SHUTTING_DOWN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleSettings:
    """The times of a broker's life, with Kafka's names and defaults; in seconds."""

    #: broker.heartbeat.interval.ms
    heartbeat_interval: float = 2.0
    #: broker.session.timeout.ms
    session_timeout: float = 9.0
    #: When a process that could not register gives up (initial.broker.registration.timeout.ms).
    initial_registration_timeout: float = 60.0
    #: The wait after the first failure.
    resend_backoff: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """What a process says of itself when it registers."""

    node_id: int
    cluster_id: str
    #: Chosen by the process when it starts.
    incarnation_id: uuid.UUID
    listeners: tuple[Listener, ...] = ()
    rack: str | None = None
    #: The epoch of the last process with this id, if that was shut down in order; else -1.
    previous_epoch: int = _UNKNOWN_EPOCH


class BrokerLifecycle:
    """Registers one process, and keeps its session alive."""

    def __init__(self, identity: BrokerIdentity, settings: LifecycleSettings | None = None) -> None:
        """Begin with the registration, at the first `next_request`."""
        self._identity = identity
        self._settings = settings or LifecycleSettings()
        self.state = BrokerState.STARTING
        #: Given by the controller at the registration; -1 before that.
        self.epoch = _UNKNOWN_EPOCH
        self._is_ready = False
        #: Whether to register again, with other addresses.
        self._has_moved = False
        self._is_in_flight = False
        self._is_urgent = False
        self._send_at = 0.0
        self._expires_at = NEVER
        self._give_up_at: float | None = None
        self._failures = 0
        self._shutdown_answered = False

    @property
    def is_registered(self) -> bool:
        """Whether the controller has given this process an epoch."""
        return self.epoch != _UNKNOWN_EPOCH

    @property
    def is_shutting_down(self) -> bool:
        """Whether the broker has stopped, or asks the controller to let it."""
        return self.state in {BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.SHUTTING_DOWN}

    @property
    def deadline(self) -> float:
        """When `next_request` must be called at the latest."""
        if self.state is BrokerState.SHUTTING_DOWN:
            return NEVER
        due = self._expires_at if self._is_in_flight else self._send_at
        return due if self._give_up_at is None else min(due, self._give_up_at)

    def next_request(
        self, metadata_offset: int, now: float
    ) -> BrokerRegistrationRequest | BrokerHeartbeatRequest | None:
        """Return the request to send now; None to wait.

        `metadata_offset` is that of the last applied record of the metadata log, -1 before this
        process has applied its registration.
        """
        if self.state is BrokerState.SHUTTING_DOWN:
            return None
        if self._give_up_at is None and not self.is_registered:
            self._give_up_at = now + self._settings.initial_registration_timeout
        if self._give_up_at is not None and now >= self._give_up_at:
            logger.error(
                "broker %d stops: it could not register with the controller", self._identity.node_id
            )
            self.state = BrokerState.SHUTTING_DOWN
            return None
        if self._is_in_flight and now >= self._expires_at:
            self.fail(now)
        if self._is_in_flight or now < self._send_at:
            return None
        self._is_in_flight = True
        self._is_urgent = False
        # So that a second request is in time before the session ends.
        self._expires_at = now + self._settings.session_timeout / 2
        if self.is_registered and not self._has_moved:
            return self._heartbeat(metadata_offset)
        return self._registration()

    def _registration(self) -> BrokerRegistrationRequest:
        identity = self._identity
        return BrokerRegistrationRequest(
            broker_id=identity.node_id,
            cluster_id=identity.cluster_id,
            incarnation_id=identity.incarnation_id,
            listeners=identity.listeners,
            rack=identity.rack,
            previous_broker_epoch=identity.previous_epoch,
        )

    def _heartbeat(self, metadata_offset: int) -> BrokerHeartbeatRequest:
        return BrokerHeartbeatRequest(
            broker_id=self._identity.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=metadata_offset,
            want_fence=not self._is_ready,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
        )

    def fail(self, now: float) -> None:
        """Handle that the request could not be sent, or was not answered in time."""
        doublings = min(self._failures, _MOST_DOUBLINGS)
        settings = self._settings
        delay = min(settings.resend_backoff * 2**doublings, settings.session_timeout)
        self._failures += 1
        self._is_urgent = False
        self._schedule(now, delay)

    def handle(
        self, response: BrokerRegistrationResponse | BrokerHeartbeatResponse, now: float
    ) -> None:
        """Handle the response to the request in flight."""
        if response.error_code != ErrorCode.NONE:
            logger.info(
                "the controller refused a request of broker %d: %s",
                self._identity.node_id,
                ErrorCode(response.error_code).name,
            )
            self.fail(now)
            return
        self._failures = 0
        if isinstance(response, BrokerRegistrationResponse):
            self.epoch = response.broker_epoch
            self._has_moved = False
            self._give_up_at = None
            self._schedule(now, 0.0)
        else:
            self._schedule(now, self._heartbeat_answered(response))

    def _heartbeat_answered(self, response: BrokerHeartbeatResponse) -> float:
        """Change the state; return how long to wait before the next heartbeat."""
        interval = self._settings.heartbeat_interval
        match self.state:
            case BrokerState.STARTING:
                if response.is_caught_up:
                    self.state = BrokerState.RECOVERY
                return min(_STARTING_INTERVAL, interval)
            case BrokerState.RECOVERY if not response.is_fenced:
                self.state = BrokerState.RUNNING
            case BrokerState.PENDING_CONTROLLED_SHUTDOWN:
                if response.should_shut_down:
                    self.state = BrokerState.SHUTTING_DOWN
                elif not self._shutdown_answered:
                    self._shutdown_answered = True
                    return min(_SHUTDOWN_INTERVAL, interval)
        return interval

    def _schedule(self, now: float, delay: float) -> None:
        self._is_in_flight = False
        self._send_at = now if self._is_urgent else now + delay

    def send_soon(self, now: float) -> None:
        """Send the next request at once, or as soon as the one in flight is answered."""
        self._is_urgent = True
        if not self._is_in_flight:
            self._send_at = now

    def controller_changed(self, now: float) -> None:
        """Send to the new controller at once: the failures so far say nothing of it."""
        self._failures = 0
        self.send_soon(now)

    def advertise(self, listeners: tuple[Listener, ...], now: float) -> None:
        """Register again with other addresses: the broker keeps its epoch."""
        self._identity = replace(self._identity, listeners=listeners)
        self._has_moved = True
        self.send_soon(now)

    def ready(self, now: float) -> None:
        """Request to be unfenced: the broker has taken all its roles."""
        if not self._is_ready:
            self._is_ready = True
            self.send_soon(now)

    def begin_controlled_shutdown(self, now: float) -> None:
        """Request that others lead instead of this broker, or stop at once if it leads nothing.

        A broker that was not unfenced yet leads nothing.
        """
        if self.state is BrokerState.RUNNING:
            self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
            self.send_soon(now)
        elif self.state is not BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self.state = BrokerState.SHUTTING_DOWN
