"""Injected faults of the Schema Registry, as `net.faults` has them for the broker.

    hook = broker.schema_registry.on("GET /schemas/ids/{id}", AnswerStatus(500), times=2)

A hook is for the requests of one method whose paths match: a part in braces stands for any part,
`...` at the end for any further parts. `Delay`, `CloseConnection` and `NeverAnswer` are the
broker's actions; `AnswerStatus` takes the place of its `AnswerError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args
from urllib.parse import unquote

from spark_kafka_sink.devbroker.net.faults import (
    CloseConnection,
    Delay,
    Hook,
    Hooks,
    NeverAnswer,
    check_decide,
)
from spark_kafka_sink.devbroker.registry.rest_api import ROUTES, RestRequest
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_REST: Final = "..."
_LOWEST_STATUS: Final = 100
_HIGHEST_STATUS: Final = 599


@dataclass(frozen=True, slots=True)
class AnswerStatus:
    """Respond with a status of HTTP; with `handled`, only after handling the request.

    `status` is the status, `error_code` and `message` are in the body: by default the status and
    its phrase. Raises ConfigError for a number that is not a status.

    >>> with DevBroker(schema_registry=True) as broker:
    ...     hook = broker.schema_registry.on("GET /subjects", AnswerStatus(503), times=1)
    >>> hook.fired
    0
    """

    status: int
    error_code: int | None = None
    message: str | None = None
    handled: bool = False

    def __post_init__(self) -> None:
        if type(self.status) is not int or not _LOWEST_STATUS <= self.status <= _HIGHEST_STATUS:
            raise ConfigError(
                f"a status of HTTP is from {_LOWEST_STATUS} to {_HIGHEST_STATUS}, not "
                f"{self.status!r}"
            )

    @property
    def text(self) -> str:
        """The message of the response."""
        if self.message is not None:
            return self.message
        try:
            return HTTPStatus(self.status).phrase
        except ValueError:
            return "a fault was injected"


RegistryAction: TypeAlias = AnswerStatus | CloseConnection | Delay | NeverAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryFaultContext:
    """What a hook of the Schema Registry receives besides the request.

    >>> def every_second(request, context):
    ...     return AnswerStatus(500) if context.number % 2 == 0 else None
    >>> with DevBroker(schema_registry=True) as broker:
    ...     broker.schema_registry.on("GET /...", every_second).seen
    0
    """

    #: The number of the registry's connection, from 1.
    connection_id: int
    #: The number of this request among those that the hook has received, from 1.
    number: int


DecideRegistry: TypeAlias = Callable[[Any, RegistryFaultContext], "RegistryAction | None"]


class RegistryFaultHook(Hook):
    """One hook of the Schema Registry and its counters; `remove` uninstalls it.

    >>> with DevBroker(schema_registry=True) as broker:
    ...     broker.schema_registry.on("GET /subjects", AnswerStatus(503), times=1).fired
    0
    """

    def __init__(
        self,
        faults: RegistryFaults,
        path: str,
        decide: DecideRegistry,
        *,
        times: int | None,
        expect: bool,
    ) -> None:
        super().__init__(faults, path, times=times, expect=expect)
        method, _, pattern = path.partition(" ")
        self._method = method.upper()
        self._parts = _parts(pattern)
        self._decide = decide

    def matches(self, method: str, segments: Sequence[str]) -> bool:
        """Return whether the hook is for requests with a method and these parts of a path."""
        if method != self._method:
            return False
        parts = self._parts
        if parts[-1:] == (_REST,):
            parts = parts[:-1]
            segments = segments[: len(parts)]
        return len(parts) == len(segments) and all(
            _is_place(wanted) or _is_place(part) or wanted == part
            for wanted, part in zip(parts, segments, strict=True)
        )

    def ask(self, request: RestRequest, connection_id: int) -> RegistryAction | None:
        """Return the action for one request."""
        action: RegistryAction | None = self.counted(
            lambda number: self._decide(
                request, RegistryFaultContext(connection_id=connection_id, number=number)
            )
        )
        return action


class RegistryFaults(Hooks):
    """The hooks of a Schema Registry."""

    def on(
        self,
        path: str,
        fault: DecideRegistry | RegistryAction,
        *,
        times: int | None = None,
        expect: bool = False,
    ) -> RegistryFaultHook:
        """Install a hook; see `SchemaRegistry.on`."""
        if isinstance(fault, type):
            raise ConfigError(f"a fault must not be a class: write {fault.__name__}(...)")
        if isinstance(fault, get_args(RegistryAction)):
            action: RegistryAction = fault

            def decide(_: Any, __: RegistryFaultContext) -> RegistryAction | None:
                return action

        else:
            check_decide(fault)
            decide = fault  # type: ignore[assignment]  # what is no action is a function
        hook = RegistryFaultHook(self, path, decide, times=times, expect=expect)
        if not any(hook.matches(route.method, route.path) for route in ROUTES):
            raise ConfigError(
                f"{path!r} matches no request that the registry handles: write a method and a "
                "path, such as 'GET /schemas/ids/{id}'"
            )
        self._hooks = (*self._hooks, hook)
        return hook

    def decide(self, request: RestRequest, connection_id: int) -> RegistryAction | None:
        """Return the first action that a hook chooses for a request."""
        segments = request.segments
        if segments[:1] == ("contexts",) and segments[2:]:
            # The path within the context.
            segments = segments[2:]
        for hook in self._hooks:
            if hook.matches(request.method, segments):
                action: RegistryAction | None = hook.ask(request, connection_id)
                if action is not None:
                    return action
        return None


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part if _is_place(part) else unquote(part) for part in path.split("/") if part)


def _is_place(part: str) -> bool:
    return part.startswith("{") and part.endswith("}")
