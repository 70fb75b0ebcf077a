"""The handlers of one broker in a cluster that replicates.

A request is handled by the broker's process, the `BrokerNode` below it. What the handlers have done
with its replicas is sent to the other brokers at once, and in a cluster without faults their
responses come at once, too: so most requests that wait for replication are answered in one call.

If a handler's coordinator has written something, the response is held until that is replicated
(CoordinatorRuntime's and TransactionStateManager's delayed appends). The requests of other brokers
for this one's coordinators and leaders come in by `serve`, with the same handlers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from spark_kafka_sink.devbroker.base.authorizer import BROKERS
from spark_kafka_sink.devbroker.base.refusal import CloseConnectionError
from spark_kafka_sink.devbroker.base.timers import NEVER
from spark_kafka_sink.devbroker.broker import Broker
from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.broker_registration import Listener
from spark_kafka_sink.protocol.registry import RequestHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.cluster.broker_view import BrokerView
    from spark_kafka_sink.devbroker.cluster.replicated_coordinators import CoordinatorWrite
    from spark_kafka_sink.devbroker.lifecycle.broker_node import BrokerNode
    from spark_kafka_sink.devbroker.metadata.envelope import Envelope
    from spark_kafka_sink.devbroker.replication.broker_logs import BrokerLogs
    from spark_kafka_sink.protocol.schema import AnyRequest, ApiResponse

#: For how long a coordinator's write may be without its replicas (offsets.commit.timeout.ms), in
#: seconds.
_COORDINATOR_TIMEOUT: Final = 5.0


@dataclass(slots=True)
class _Held:
    """A request whose response waits, for its handler or for a coordinator's writes."""

    #: What the handler keeps of the request.
    kept: object = None
    is_handled: bool = False
    response: ApiResponse | None = None
    writes: list[CoordinatorWrite] = field(default_factory=list)
    until: float = NEVER


@dataclass(slots=True)
class _Served:
    """A request of another broker that waits."""

    envelope: Envelope
    arrived: float
    delayed: Delayed


class ReplicatedBroker(Broker):
    """One broker of a cluster that replicates, running or not."""

    def __init__(
        self,
        node_id: int,
        settings: BrokerSettings,
        collect: Callable[[int, float], None],
        advertise: Callable[[int, tuple[Listener, ...]], None],
    ) -> None:
        """Create a broker that does not run.

        `collect` sends what its handlers have caused, and `advertise` registers other addresses.
        """
        super().__init__(settings=replace(settings, node_id=node_id))
        #: What the broker knows of the cluster while it does not run: nothing.
        self._unknown = self.cluster
        self._collect = collect
        self._advertise = advertise
        #: The address of each listener, which clients and other brokers see.
        self.addresses: dict[str, tuple[str, int]] = {}
        self._node: BrokerNode | None = None
        self._view: BrokerView | None = None
        self._logs: BrokerLogs | None = None
        self._served: list[_Served] = []
        #: What has changed since the dispatcher has looked, and since a request was handled.
        self._changed: set[Hashable] = set()
        self._news: set[Hashable] = set()

    def start(self, node: BrokerNode, view: BrokerView, logs: BrokerLogs) -> None:
        """Handle requests with a new process of the broker."""
        self._node, self._view, self._logs = node, view, logs
        self.cluster = view
        self._served.clear()
        node.on_request = self.serve
        node.on_step = self._step

    def stop(self) -> None:
        """Forget the process, which has ended."""
        self._changed |= self.cluster.take_changed()
        self._node = self._view = self._logs = None
        self.cluster = self._unknown
        self._served.clear()

    def advertise(self, host: str, port: int, *, listener: str | None = None) -> None:
        """Register the address of a listener, at once or with the start of the broker."""
        if listener is None:
            return
        self.addresses[listener] = (host, port)
        if self._node is not None:
            self._advertise(self.node_id, self.listeners)

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The listeners with their addresses, as they are registered."""
        return tuple(
            Listener(name=name, host=host, port=port, security_protocol=0)
            for name, (host, port) in self.addresses.items()
        )

    @property
    def deadline(self) -> float:
        """When `tick` must be called at the latest."""
        timers = [] if self._logs is None else [self._logs.timers, self.cluster.timers]
        due = [timer for each in timers if (timer := each.next_deadline) is not None]
        return min([*due, *(each.delayed.until for each in self._served)], default=NEVER)

    def tick(self, now: float) -> float | None:
        """Run the timers that are due by `now`."""
        if self._logs is not None:
            self._logs.timers.run_due(now)
        return super().tick(now)

    def take_changed(self) -> set[Hashable]:
        """Return what has changed since the last call."""
        self._note_changes()
        changed, self._changed = self._changed, set()
        return changed

    def _note_changes(self) -> set[Hashable]:
        changed = self.cluster.take_changed()
        self._changed |= changed
        self._news |= changed
        return changed

    # The requests of clients.

    def handle(
        self,
        header: RequestHeader,
        request: AnyRequest,
        now: float,
        *,
        kept: object = None,
        **context: Any,
    ) -> ApiResponse | Delayed | None:
        """Handle a request; see `Broker.handle`. Without a process, raises CloseConnectionError."""
        view = self._view
        if view is None:
            raise CloseConnectionError(f"broker {self.node_id} is not running")
        held = kept if isinstance(kept, _Held) else _Held()
        while True:
            self._news = set()
            outcome = self._handle(view, held, header, request, now, **context)
            self._collect(self.node_id, now)
            self._note_changes()
            if not isinstance(outcome, Delayed) or outcome.watched.isdisjoint(self._news):
                return outcome

    def _handle(
        self,
        view: BrokerView,
        held: _Held,
        header: RequestHeader,
        request: AnyRequest,
        now: float,
        **context: Any,
    ) -> ApiResponse | Delayed | None:
        """Call the handler, or check whether what its coordinator has written is replicated."""
        if not held.is_handled:
            outcome = super().handle(header, request, now, kept=held.kept, **context)
            held.writes += view.take_writes()
            if isinstance(outcome, Delayed):
                held.kept = outcome.kept
                return Delayed(outcome.until, outcome.watched, held)
            held.is_handled = True
            held.response = outcome
            held.until = now + _COORDINATOR_TIMEOUT
        if not held.writes:
            return held.response
        return self._replicated(view, held, header, request, now)

    def _replicated(
        self,
        view: BrokerView,
        held: _Held,
        header: RequestHeader,
        request: AnyRequest,
        now: float,
    ) -> ApiResponse | Delayed | None:
        waiting = []
        for write in held.writes:
            code = view.check_replicated(write)
            if code is None:
                waiting.append(write)
            elif code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                return self.error_response(header, request, ErrorCode.NOT_COORDINATOR, now)
            elif code is not ErrorCode.NONE:
                return self.error_response(
                    header, request, ErrorCode.COORDINATOR_NOT_AVAILABLE, now
                )
        held.writes = waiting
        if not waiting:
            return held.response
        if now >= held.until:
            return self.error_response(header, request, ErrorCode.COORDINATOR_NOT_AVAILABLE, now)
        return Delayed(held.until, view.watched(waiting), held)

    # The requests of other brokers.

    def serve(self, envelope: Envelope, now: float) -> None:
        """Handle a request of another broker, or of this one to itself."""
        self._serve(envelope, now, now, None)

    def _serve(self, envelope: Envelope, arrived: float, now: float, kept: object) -> None:
        view = self._view
        if view is None:
            return
        request = cast("AnyRequest", envelope.message)
        header = RequestHeader(
            request_api_key=request.api_key,
            request_api_version=request.versions.max,
            correlation_id=envelope.correlation_id,
            client_id="",
        )
        held = kept if isinstance(kept, _Held) else _Held()
        outcome = self._handle(view, held, header, request, now, arrived=arrived, principal=BROKERS)
        if isinstance(outcome, Delayed):
            self._served.append(_Served(envelope, arrived, outcome))
        elif outcome is not None and self._node is not None:
            self._node.peers.respond(envelope, outcome)

    def _step(self, now: float) -> None:
        """Continue what waits for this broker's replicas."""
        view = self._view
        if view is None:
            return
        changed = self._note_changes()
        view.send_markers(now)
        served, self._served = self._served, []
        for each in served:
            if now >= each.delayed.until or not each.delayed.watched.isdisjoint(changed):
                self._serve(each.envelope, each.arrived, now, each.delayed.kept)
            else:
                self._served.append(each)
