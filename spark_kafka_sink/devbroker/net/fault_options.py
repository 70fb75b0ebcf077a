"""Faults as text, for the command line: `produce:drop-answer:3`.

The format is API:ACTION[:TIMES]. API is Kafka's name in any case, with `-` or `_` between words;
without TIMES the fault affects every request. An action's value follows a `=`:

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
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.partition_faults import (
    AlterRecords,
    OmitPartitions,
    PartitionError,
)
from spark_kafka_sink.devbroker.net.faults import (
    Action,
    AnswerError,
    CloseConnection,
    Corrupt,
    Delay,
    NeverAnswer,
    Throttle,
    api_named,
    check_action,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.protocol.api_keys import ApiKey


class FaultOption(NamedTuple):
    """The arguments for `Faults.on`."""

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
    """Parse a fault. Raises ConfigError, which says which word is wrong and what is allowed."""
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
