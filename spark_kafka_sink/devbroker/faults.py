"""Faults on purpose: what a test makes the broker do instead of answering.

A hook is set for one API and asked about each of its requests, before the broker handles it. It
returns None, and the request is handled as ever, or one of the actions below, which the server
carries out. Hooks are asked in the order in which they were set; the first action counts. Each hook
counts what it has seen and done, and can be limited to a number of actions.

    hook = broker.on(ApiKey.PRODUCE, CloseConnection(handled=True), times=1)
    ...
    assert 1 == hook.fired

`handled` means that the broker does what was asked, and only the answer is not what it should be.
Hooks run on the server's thread, one request at a time, and must not block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.api_keys import ApiKey
    from spark_kafka_sink.protocol.error_codes import ErrorCode
    from spark_kafka_sink.protocol.headers import RequestHeader


#: Bytes of size and correlation id.
_AFTER_CORRELATION_ID = 8


@dataclass(frozen=True, slots=True)
class AnswerError:
    """Answer with an error code; with `handled`, only after doing what was asked.

    A Produce that is handled and then answered by NOT_ENOUGH_REPLICAS_AFTER_APPEND has appended.
    """

    error_code: ErrorCode
    handled: bool = False


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection; with `handled`, after doing what was asked: the answer is lost."""

    handled: bool = False


@dataclass(frozen=True, slots=True)
class Delay:
    """Handle the request after a pause; later requests of the connection wait behind it.

    With `handled` it is done at once, and answered after the pause.
    """

    seconds: float
    handled: bool = False


@dataclass(frozen=True, slots=True)
class NeverAnswer:
    """Say nothing more on this connection; with `handled`, after doing what was asked."""

    handled: bool = False


@dataclass(frozen=True, slots=True)
class Throttle:
    """Do what was asked and answer that it was too much, as a quota does (KIP-219).

    The answer's throttle_time_ms is `seconds`, for which the connection is not listened to.
    """

    seconds: float


def garbled(frame: bytes) -> bytes:
    """Return an answer of which size and correlation id are right, and nothing else is."""
    return frame[:_AFTER_CORRELATION_ID] + bytes(b ^ 0xA5 for b in frame[_AFTER_CORRELATION_ID:])


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Do what was asked and answer with other bytes; with `close`, close behind them."""

    #: Is given the answer's frame, its size in front, and returns what is sent in its place.
    alter: Callable[[bytes], bytes] = garbled
    close: bool = False


Action: TypeAlias = AnswerError | CloseConnection | Delay | NeverAnswer | Throttle | Corrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultContext:
    """What a hook is told beside the request."""

    header: RequestHeader
    #: Seconds since 1970.
    now: float
    #: The broker that was asked.
    node_id: int
    #: Counts the broker's connections from 1.
    connection_id: int
    #: Counts the requests that this hook has seen, from 1.
    number: int


Decide: TypeAlias = Callable[[Any, FaultContext], "Action | None"]


class FaultHook:
    """One hook: what it has seen and done, and a way to end it."""

    def __init__(self, faults: Faults, api_key: ApiKey, decide: Decide, times: int | None) -> None:
        """Begin with nothing seen."""
        self._faults = faults
        self.api_key = api_key
        self._decide = decide
        self._times = times
        #: Requests that the hook was asked about.
        self.seen = 0
        #: Requests on which it acted.
        self.fired = 0

    def ask(
        self, request: object, header: RequestHeader, now: float, node_id: int, connection_id: int
    ) -> Action | None:
        """Decide about one request."""
        if self._times is not None and self.fired >= self._times:
            return None
        self.seen += 1
        action = self._decide(
            request,
            FaultContext(
                header=header,
                now=now,
                node_id=node_id,
                connection_id=connection_id,
                number=self.seen,
            ),
        )
        if action is not None:
            self.fired += 1
        return action

    def remove(self) -> None:
        """Ask this hook no more."""
        self._faults.remove(self)


class Faults:
    """The hooks of a cluster's brokers."""

    def __init__(self) -> None:
        """Begin with none."""
        # Replaced as a whole, never changed: the server's thread may be going through it.
        self._hooks: tuple[FaultHook, ...] = ()

    def on(self, api_key: ApiKey, fault: Decide | Action, *, times: int | None = None) -> FaultHook:
        """Set a hook: a function of (request, FaultContext), or an action for every request.

        `times` limits how often it acts. Raises ConfigError if that is less than 1.
        """
        if times is not None and times < 1:
            raise ConfigError(f"a fault cannot happen {times} times")
        decide = fault if callable(fault) else _always(fault)
        hook = FaultHook(self, api_key, decide, times)
        self._hooks = (*self._hooks, hook)
        return hook

    def remove(self, hook: FaultHook) -> None:
        """Forget a hook; forgetting it twice does nothing."""
        self._hooks = tuple(known for known in self._hooks if known is not hook)

    def decide(
        self, request: object, header: RequestHeader, now: float, node_id: int, connection_id: int
    ) -> Action | None:
        """Ask the hooks about one request."""
        for hook in self._hooks:
            if hook.api_key == header.request_api_key:
                action = hook.ask(request, header, now, node_id, connection_id)
                if action is not None:
                    return action
        return None


def _always(action: Action) -> Decide:
    def decide(request: object, context: FaultContext) -> Action:  # noqa: ARG001 - a Decide
        return action

    return decide
