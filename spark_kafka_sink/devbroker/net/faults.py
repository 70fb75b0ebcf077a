"""Injected faults: what a test makes the broker do instead of responding normally.

A hook is installed for one API and called with each of its requests, before the broker handles it.
It returns None, and the request is handled as usual, or one of the actions below, which the server
carries out. Hooks are called in the order in which they were installed; the first action wins. Each
hook counts its calls and actions, and can be limited to a number of actions.

    hook = broker.on("produce", CloseConnection(handled=True), times=1)
    ...
    assert 1 == hook.fired

With `handled` the broker handles the request, and only the response is affected. Three actions,
of `base.partition_faults`, affect some partitions of a response. Hooks run on the server's thread,
one request at a time, and must not block.

Faults of readers, and how to inject them:

- an error for a partition in the next three Fetches: PartitionError(code, [("orders", 0)]), times=3
- a follower that rejects a fetch: a function that returns PartitionError(OFFSET_OUT_OF_RANGE) if
  `context.node_id` is the follower's
- damaged, truncated or old batches, or others than those in the log: AlterRecords
- a response that is cut in the middle: Corrupt(lambda frame: frame[:100], close=True)
- a slow response: Delay(seconds, handled=True)
- a quota: Throttle(seconds)

`DevBroker` has more: it can elect unclean leaders, delete and recreate topics, and stop a follower
from replicating.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, get_args

from spark_kafka_sink import display
from spark_kafka_sink.devbroker.base.partition_faults import (
    AlterRecords,
    OmitPartitions,
    PartitionError,
    check_error_code,
    check_function,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.registry import RequestHeader

#: The bytes of size and correlation id.
_AFTER_CORRELATION_ID = 8
#: The APIs with the partitions that these actions affect.
_READS = frozenset({ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH})
_API_KEYS: dict[type, frozenset[ApiKey]] = {
    PartitionError: _READS,
    OmitPartitions: _READS,
    AlterRecords: frozenset({ApiKey.FETCH}),
}


@dataclass(frozen=True, slots=True)
class AnswerError:
    """Respond with an error code; with `handled`, only after handling the request.

    The records of a handled Produce that gets NOT_ENOUGH_REPLICAS_AFTER_APPEND were appended.

    `error_code` is one of `ErrorCode`. Raises ConfigError for any other value.

    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     hook = broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER), times=1)
    ...     with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    ...         metadata = producer.send("orders", b"a book").result(timeout=30)
    >>> hook.fired
    1
    """

    error_code: ErrorCode
    handled: bool = False

    def __post_init__(self) -> None:
        check_error_code(self.error_code)


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection; with `handled`, after handling the request: the response is lost.

    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     hook = broker.on(ApiKey.PRODUCE, CloseConnection(handled=True), times=1)
    ...     with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    ...         metadata = producer.send("orders", b"a book").result(timeout=30)
    >>> hook.fired
    1
    """

    handled: bool = False


@dataclass(frozen=True, slots=True)
class Delay:
    """Handle the request after a pause; later requests of the connection wait behind it.

    With `handled` the request is handled at once, and only the response is delayed.

    `seconds` is the length of the pause. Raises ConfigError unless it is finite and not negative.

    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     hook = broker.on(ApiKey.PRODUCE, Delay(0.05), times=1)
    ...     with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    ...         metadata = producer.send("orders", b"a book").result(timeout=30)
    >>> hook.fired
    1
    """

    seconds: float
    handled: bool = False

    def __post_init__(self) -> None:
        _check_seconds(self.seconds)


@dataclass(frozen=True, slots=True)
class NeverAnswer:
    """Send nothing more on this connection; with `handled`, after handling the request.

    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     hook = broker.on(ApiKey.PRODUCE, NeverAnswer(handled=True), times=1)
    ...     settings = {
    ...         "bootstrap.servers": broker.bootstrap_servers,
    ...         "request.timeout.ms": 300,
    ...         "delivery.timeout.ms": 30_000,
    ...     }
    ...     with KafkaProducer(settings) as producer:
    ...         metadata = producer.send("orders", b"a book").result(timeout=30)
    ...     len(broker.records("orders")[0])
    1
    """

    handled: bool = False


@dataclass(frozen=True, slots=True)
class Throttle:
    """Handle the request and respond that it exceeded a quota (KIP-219).

    The response's throttle_time_ms is `seconds`, for which the connection is muted. The response to
    a Fetch has no partitions. Raises ConfigError unless `seconds` is finite and not negative.

    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     hook = broker.on(ApiKey.PRODUCE, Throttle(0.05), times=1)
    ...     with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    ...         metadata = producer.send("orders", b"a book").result(timeout=30)
    >>> hook.fired
    1
    """

    seconds: float

    def __post_init__(self) -> None:
        _check_seconds(self.seconds)


def _check_seconds(seconds: object) -> None:
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds < float("inf")
    ):
        raise ConfigError(f"seconds must be finite and not negative, not {seconds!r}")


def garbled(frame: bytes) -> bytes:
    """Return a response in which everything but size and correlation id is wrong."""
    return frame[:_AFTER_CORRELATION_ID] + bytes(b ^ 0xA5 for b in frame[_AFTER_CORRELATION_ID:])


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Handle the request and respond with other bytes; with `close`, close after them.

    Raises ConfigError if `alter` is not a function.

    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     hook = broker.on(ApiKey.PRODUCE, Corrupt(close=True), times=1)
    ...     with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    ...         metadata = producer.send("orders", b"a book").result(timeout=30)
    >>> hook.fired
    1
    """

    #: Receives the response's frame, including its size, and returns what to send in its place.
    alter: Callable[[bytes], bytes] = garbled
    close: bool = False

    def __post_init__(self) -> None:
        check_function(self.alter)


@dataclass(frozen=True, slots=True)
class AlterResponse:
    """Handle the request and respond with another message of the same type.

    Raises ConfigError if `alter` is not a function.

    >>> def without_topics(response):
    ...     return replace(response, topics=())
    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     broker.on(ApiKey.METADATA, AlterResponse(without_topics), times=1).fired
    0
    """

    #: Receives the response, an immutable dataclass, and returns what to send in its place.
    alter: Callable[[Any], Any]

    def __post_init__(self) -> None:
        check_function(self.alter)


Action: TypeAlias = (
    AnswerError
    | CloseConnection
    | Delay
    | NeverAnswer
    | Throttle
    | Corrupt
    | AlterResponse
    | PartitionError
    | OmitPartitions
    | AlterRecords
)

_ACTIONS = get_args(Action)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultContext:
    """What a hook receives besides the request.

    `header` is the header of the request.

    >>> def every_second(request, context):
    ...     return CloseConnection() if context.number % 2 == 0 else None
    >>> with DevBroker() as broker:
    ...     broker.on(ApiKey.PRODUCE, every_second).seen
    0
    """

    header: RequestHeader
    #: Seconds since 1970.
    now: float
    #: The broker that received the request.
    node_id: int
    #: The number of the broker's connection, from 1.
    connection_id: int
    #: The number of this request among those that the hook has received, from 1.
    number: int


Decide: TypeAlias = Callable[[Any, FaultContext], "Action | None"]


class Hook:
    """One hook and its counters; `remove` uninstalls it.

    It is a base of `FaultHook`, and of the hooks of the Schema Registry.
    """

    def __init__(self, hooks: Hooks, name: str, *, times: int | None, expect: bool) -> None:
        """Create a hook; raise ConfigError for a limit with which it could never act."""
        if times is not None and (isinstance(times, bool) or not isinstance(times, int)):
            raise ConfigError(f"times must be a whole number, not {times!r}")
        if times is not None and times < 1:
            raise ConfigError(f"times must be at least 1, not {times}")
        self._hooks = hooks
        self._name = name
        self._times = times
        self._expect = expect
        #: Requests with which the hook was called.
        self.seen = 0
        #: Requests on which it acted.
        self.fired = 0

    def __repr__(self) -> str:
        """Show how often the fault was injected."""
        times = display.counted(self.fired, "time")
        return f"<{type(self).__name__} for {self._name}: injected {times}>"

    def counted(self, decide: Callable[[int], Any]) -> Any:
        """Return what `decide` chooses, given the number of the request, and count it."""
        if self._times is not None and self.fired >= self._times:
            return None
        self.seen += 1
        action = decide(self.seen)
        if action is not None:
            self.fired += 1
        return action

    def remove(self) -> None:
        """Uninstall this hook; raise AssertionError if it was expected to act, and never did."""
        if self._hooks.remove(self):
            self.check()

    def check(self) -> None:
        """Raise AssertionError if the hook was expected to act, and never did."""
        if self._expect and not self.fired:
            requests = display.counted(self.seen, f"{self._name} request")
            raise AssertionError(
                f"an expected fault was never injected: the hook for {self._name} was asked "
                f"about {requests} and acted on none"
            )


class FaultHook(Hook):
    """One hook and its counters; `remove` uninstalls it.

    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     hook = broker.on(ApiKey.PRODUCE, CloseConnection(), times=1)
    ...     with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    ...         metadata = producer.send("orders", b"a book").result(timeout=30)
    >>> hook.fired
    1
    """

    def __init__(
        self,
        faults: Faults,
        api_key: ApiKey,
        decide: Decide,
        *,
        times: int | None,
        expect: bool,
    ) -> None:
        super().__init__(faults, api_key.name, times=times, expect=expect)
        self.api_key = api_key
        self._decide = decide

    def ask(
        self, request: object, header: RequestHeader, now: float, node_id: int, connection_id: int
    ) -> Action | None:
        """Return the action for one request."""

        def decide(number: int) -> Action | None:
            context = FaultContext(
                header=header,
                now=now,
                node_id=node_id,
                connection_id=connection_id,
                number=number,
            )
            return self._decide(request, context)

        action: Action | None = self.counted(decide)
        return action


class Hooks:
    """Some hooks."""

    def __init__(self) -> None:
        # Replaced as a whole, never modified: the server's thread may be iterating over it.
        self._hooks: tuple[Any, ...] = ()

    def remove(self, hook: Hook) -> bool:
        """Remove a hook; return whether it was there."""
        was_there = hook in self._hooks
        self._hooks = tuple(known for known in self._hooks if known is not hook)
        return was_there

    def check(self) -> None:
        """Raise AssertionError if a hook was expected to act, and never did."""
        for hook in self._hooks:
            hook.check()


class Faults(Hooks):
    """The hooks of a cluster's brokers."""

    def on(
        self,
        api: ApiKey | str,
        fault: Decide | Action,
        *,
        times: int | None = None,
        expect: bool = False,
    ) -> FaultHook:
        """Install a hook: a function of (request, FaultContext), or an action for every request.

        `times` limits the number of actions. With `expect`, the hook must act before it is removed,
        and before `check`. Raises ConfigError for arguments with which a hook could never act.
        """
        api_key = api if isinstance(api, ApiKey) else api_named(api)
        check_action(api_key, fault)
        decide = fault if callable(fault) else _always(fault)
        hook = FaultHook(self, api_key, decide, times=times, expect=expect)
        self._hooks = (*self._hooks, hook)
        return hook

    def decide(
        self, request: object, header: RequestHeader, now: float, node_id: int, connection_id: int
    ) -> Action | None:
        """Return the first action that a hook chooses for a request."""
        for hook in self._hooks:
            if hook.api_key == header.request_api_key:
                action: Action | None = hook.ask(request, header, now, node_id, connection_id)
                if action is not None:
                    return action
        return None


def api_named(name: object) -> ApiKey:
    """Return the API with one of Kafka's names, in any case, with `-` or `_` between words.

    Raises ConfigError.
    """
    try:
        return ApiKey[name.upper().replace("-", "_")]  # type: ignore[attr-defined]
    except (AttributeError, KeyError):
        raise ConfigError(
            f"{name!r} is not an API of Kafka: name one, such as 'produce' or ApiKey.PRODUCE"
        ) from None


def check_action(api_key: ApiKey, fault: Decide | Action) -> None:
    """Raise ConfigError for a fault that is no action and no function, or has no effect on an API.

    A function must take a request and a context.
    """
    if isinstance(fault, type):
        raise ConfigError(f"a fault must not be a class: write {fault.__name__}(...)")
    if isinstance(fault, _ACTIONS):
        api_keys = _API_KEYS.get(type(fault))
        if api_keys is not None and api_key not in api_keys:
            names = ", ".join(sorted(key.name for key in api_keys))
            raise ConfigError(f"{type(fault).__name__} affects {names}, not {api_key.name}")
        return
    check_decide(fault)


def check_decide(fault: object) -> None:
    """Raise ConfigError unless a fault is a function that takes a request and a context."""
    if not callable(fault):
        raise ConfigError(
            "a fault must be an action, such as CloseConnection(), or a function that returns one, "
            f"not {fault!r}"
        )
    try:
        signature = inspect.signature(fault)
    except ValueError:
        return  # Some functions of C have none.
    try:
        signature.bind(None, None)
    except TypeError:
        raise ConfigError(
            f"the function of a fault must take two arguments, a request and its context, which "
            f"{fault!r} does not"
        ) from None


def _always(action: Action) -> Decide:
    def decide(request: object, context: FaultContext) -> Action:  # noqa: ARG001 - a Decide
        return action

    return decide


class FaultOption(NamedTuple):
    """A fault from the command line: the arguments for `Faults.on`."""

    api_key: ApiKey
    action: Action
    #: None for an unlimited number.
    times: int | None


_PLAIN: dict[str, Action] = {
    "close": CloseConnection(),
    "drop-answer": CloseConnection(handled=True),
    "never-answer": NeverAnswer(),
    "swallow-answer": NeverAnswer(handled=True),
    "corrupt": Corrupt(),
    "omit-partitions": OmitPartitions(),
    "corrupt-records": AlterRecords(),
}
_WITH_CODE: dict[str, Callable[[ErrorCode], Action]] = {
    "error": AnswerError,
    "late-error": lambda code: AnswerError(code, handled=True),
    "partition-error": PartitionError,
}
_WITH_SECONDS: dict[str, Callable[[float], Action]] = {
    "delay": Delay,
    "delay-answer": lambda seconds: Delay(seconds, handled=True),
    "throttle": Throttle,
}
ACTIONS = (
    *_PLAIN,
    *(f"{name}=CODE" for name in _WITH_CODE),
    *(f"{name}=SECONDS" for name in _WITH_SECONDS),
)


def parse_fault(text: str) -> FaultOption:
    """Parse a fault from the command line, such as `produce:drop-answer:3`.

    The format is API:ACTION[:TIMES]. API is Kafka's name in any case, with `-` or `_` between
    words; without TIMES the fault affects every request. An action's value follows a `=`:

        error=CODE          respond with the error (such as NOT_LEADER_OR_FOLLOWER), do nothing else
        late-error=CODE     handle the request, and respond with the error
        close               close the connection without handling the request
        drop-answer         handle the request, and close the connection without a response
        never-answer        do nothing, and send nothing more on the connection
        swallow-answer      handle the request, and send nothing more on the connection
        delay=SECONDS       handle the request later
        delay-answer=SECONDS  handle the request at once, and respond later
        throttle=SECONDS    handle the request, and respond that a quota was exceeded
        corrupt             handle the request, and respond with garbage
        partition-error=CODE  respond with the error for each partition of a read
        omit-partitions     handle a read, and respond without its partitions
        corrupt-records     handle a Fetch, and respond with damaged batches

    Raises ConfigError, which says which word is wrong and what is allowed.
    """
    api, _, rest = text.partition(":")
    action, _, times = rest.partition(":")
    try:
        api_key = api_named(api)
    except ConfigError as error:
        raise ConfigError(f"{text!r}: {error}") from None
    try:
        count = int(times) if times else None
    except ValueError:
        raise ConfigError(f"{text!r}: {times!r} is not a number of times") from None
    if count is not None and count < 1:
        raise ConfigError(f"{text!r}: the number of times must be at least 1, not {count}")
    parsed = _parse_action(text, action)
    try:
        check_action(api_key, parsed)
    except ConfigError as error:
        raise ConfigError(f"{text!r}: {error}") from None
    return FaultOption(api_key, parsed, count)


def _parse_action(text: str, action: str) -> Action:
    name, has_value, value = action.partition("=")
    if name in _PLAIN and not has_value:
        return _PLAIN[name]
    if name in _WITH_CODE:
        try:
            return _WITH_CODE[name](ErrorCode[value.upper()])
        except KeyError:
            raise ConfigError(f"{text!r}: {value!r} is not a Kafka error code") from None
    if name in _WITH_SECONDS:
        return _with_seconds(text, name, value)
    raise ConfigError(f"{text!r}: {action!r} is not one of {', '.join(ACTIONS)}")


def _with_seconds(text: str, name: str, value: str) -> Action:
    try:
        seconds = float(value)
    except ValueError:
        raise ConfigError(f"{text!r}: {value!r} is not a number of seconds") from None
    try:
        return _WITH_SECONDS[name](seconds)
    except ConfigError as error:
        raise ConfigError(f"{text!r}: {error}") from None
