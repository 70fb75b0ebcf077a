"""The brokers of a cluster that replicates, in one process, and the links between them.

Messages arrive at once and in order, unless their link is slow or cut: a cut link loses them
silently, as a firewall does. A broker that does not run refuses them, as a closed port does; what
its clients have asked is answered with None, which stands for a closed connection. Messages to a
broker that is paused wait, as in the buffers of its sockets. So tests decide what fails, and a
cluster without faults needs no time for its messages.

No IO and no clock: the owner calls `tick` when `deadline` is due. Times are in seconds.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.timers import NEVER
from spark_kafka_sink.devbroker.metadata.envelope import (
    Envelope,
    ForwardedRequest,
    ForwardedResponse,
)
from spark_kafka_sink.devbroker.metadata.quorum import FetchMetadataRequest
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.schema import ApiRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spark_kafka_sink.devbroker.controller.controller import Controller
    from spark_kafka_sink.devbroker.lifecycle.broker_node import BrokerNode
    from spark_kafka_sink.devbroker.metadata.quorum import MetadataQuorum
    from spark_kafka_sink.protocol.messages.broker_registration import Listener

    #: Called with the response, or None if the broker has ended before it.
    OnResponse = Callable[[ForwardedResponse | None], None]

#: The sender of clients' requests.
CLIENT: Final = -2
_REQUESTS: Final = (ApiRequest, FetchMetadataRequest, ForwardedRequest)


class _Asked(NamedTuple):
    """A request of a client without a response yet."""

    node_id: int
    on_response: OnResponse


class _Sent(NamedTuple):
    """A message on its way."""

    envelope: Envelope
    #: The process that it was sent to: the next one of the same broker has another connection.
    receiver: BrokerNode | None


class BrokerCluster:
    """Runs brokers, and carries their messages."""

    def __init__(self, quorum: MetadataQuorum) -> None:
        """Begin without brokers; `quorum` is theirs."""
        self.quorum = quorum
        #: The running brokers by id, also those that are paused.
        self.nodes: dict[int, BrokerNode] = {}
        #: The messages that wait for each broker that is paused.
        self._held: dict[int, list[_Sent]] = {}
        self._cuts: set[frozenset[int]] = set()
        self._delays: dict[frozenset[int], float] = {}
        self._arrived: deque[_Sent] = deque()
        self._on_their_way: list[tuple[float, int, _Sent]] = []
        self._numbers = itertools.count()
        self._asked: dict[int, _Asked] = {}

    @property
    def awake(self) -> dict[int, BrokerNode]:
        """The running brokers by id, without those that are paused."""
        return {node_id: node for node_id, node in self.nodes.items() if node_id not in self._held}

    @property
    def deadline(self) -> float:
        """When `tick` must be called at the latest."""
        return min(
            min((node.deadline for node in self.awake.values()), default=NEVER),
            self._on_their_way[0][0] if self._on_their_way else NEVER,
        )

    # Brokers.

    def start(self, node: BrokerNode, now: float) -> None:
        """Run a new process of a broker that is not running."""
        self.quorum.start(node.node_id)
        self.nodes[node.node_id] = node
        self._send(node.tick(now), now)
        self._deliver(now)

    def kill(self, node_id: int, now: float) -> None:
        """End the process of a broker at once; its logs remain."""
        del self.nodes[node_id]
        self.quorum.stop(node_id)
        self._arrived += self._held.pop(node_id, [])
        for number, asked in list(self._asked.items()):
            if asked.node_id == node_id:
                del self._asked[number]
                asked.on_response(None)
        self._deliver(now)

    def pause(self, node_id: int) -> None:
        """Make a broker do nothing until `resume`, as SIGSTOP does."""
        self._held.setdefault(node_id, [])

    def resume(self, node_id: int, now: float) -> None:
        """Continue a broker that is paused, with the next `tick`: clients may come before that."""
        for sent in self._held.pop(node_id, []):
            heapq.heappush(self._on_their_way, (now, next(self._numbers), sent))

    def shut_down(self, node_id: int, now: float) -> None:
        """Begin a controlled shutdown; once the node `may_stop`, its owner calls `stop`."""
        self._send(self.nodes[node_id].begin_controlled_shutdown(now), now)
        self._deliver(now)

    def stop(self, node_id: int, now: float) -> None:
        """End the process of a broker in order; its owner closes the logs then."""
        self._send(self.nodes[node_id].stop(now), now)
        self._deliver(now)
        self.kill(node_id, now)

    def advertise(self, node_id: int, listeners: tuple[Listener, ...], now: float) -> None:
        """Register a broker again, with other addresses."""
        self._send(self.nodes[node_id].advertise(listeners, now), now)
        self._deliver(now)

    # Links.

    def cut(self, first: int, second: int) -> None:
        """Drop all messages between two brokers from now on."""
        self._cuts.add(frozenset((first, second)))

    def delay(self, first: int, second: int, seconds: float) -> None:
        """Make all messages between two brokers take longer from now on."""
        self._delays[frozenset((first, second))] = seconds

    def heal(self) -> None:
        """Make all links work at once again; messages that are on their way still take longer."""
        self._cuts.clear()
        self._delays.clear()

    # Messages.

    def forward(
        self, node_id: int, request: ForwardedRequest, on_response: OnResponse, now: float
    ) -> None:
        """Send a client's request to the controller, by way of a broker.

        `on_response` may be called before this returns. A broker that does not run gives None.
        """
        node = self.nodes.get(node_id)
        if node is None:
            on_response(None)
            return
        number = next(self._numbers)
        self._asked[number] = _Asked(node_id, on_response)
        envelope = Envelope(CLIENT, node_id, number, request)
        self._send(node.forward(envelope, request, now), now)
        self._deliver(now)

    def control(self, change: Callable[[Controller], None], now: float) -> None:
        """Make a change by the controller that no message asks for.

        Raises RefusedError with NOT_CONTROLLER while none is active, and whatever `change` raises.
        """
        for node in self.awake.values():
            if node.controller.controller.is_active:
                self._send(node.control(change, now), now)
                self._deliver(now)
                return
        raise RefusedError(ErrorCode.NOT_CONTROLLER, "there is no controller at the moment")

    def collect(self, node_id: int, now: float) -> None:
        """Send what a broker has to send because of what clients have done with its replicas."""
        self._send(self.nodes[node_id].collect(now), now)
        self._deliver(now)

    def tick(self, now: float) -> None:
        """Do what is due, at all brokers."""
        while self._on_their_way and self._on_their_way[0][0] <= now:
            self._arrived.append(heapq.heappop(self._on_their_way)[2])
        for node in self.awake.values():
            if node.deadline <= now:
                self._send(node.tick(now), now)
        self._deliver(now)

    def _send(self, outgoing: Iterable[Envelope], now: float) -> None:
        for envelope in outgoing:
            sent = _Sent(envelope, self.nodes.get(envelope.receiver))
            delay = self._delays.get(_link(envelope), 0.0)
            if delay:
                heapq.heappush(self._on_their_way, (now + delay, next(self._numbers), sent))
            else:
                self._arrived.append(sent)

    def _deliver(self, now: float) -> None:
        """Pass on what has arrived, and what is sent because of that."""
        while self._arrived:
            envelope, receiver = self._arrived.popleft()
            message = envelope.message
            if envelope.receiver == CLIENT:
                asked = self._asked.pop(envelope.correlation_id, None)
                if asked is not None and isinstance(message, ForwardedResponse):
                    asked.on_response(message)
            elif _link(envelope) in self._cuts:
                continue
            elif receiver is not None and receiver is self.nodes.get(envelope.receiver):
                if envelope.receiver in self._held:
                    self._held[envelope.receiver].append(_Sent(envelope, receiver))
                    continue
                self._send(receiver.handle(envelope, now), now)
            else:
                self._refuse(envelope, now)

    def _refuse(self, envelope: Envelope, now: float) -> None:
        sender = self.nodes.get(envelope.sender)
        if sender is not None and isinstance(envelope.message, _REQUESTS):
            self._send(sender.failed(envelope.correlation_id, now), now)


def _link(envelope: Envelope) -> frozenset[int]:
    return frozenset((envelope.sender, envelope.receiver))
