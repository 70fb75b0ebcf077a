"""Faults as words, for the command line: `produce:drop-answer:3`.

API:ACTION[:TIMES], where the API is named as Kafka does, in any case and with `-` or `_` between
its words; without TIMES it happens to every request. Actions that want a value have it behind `=`:

    error=CODE          answer with an error of Kafka's (NOT_LEADER_OR_FOLLOWER) and do nothing
    late-error=CODE     do what was asked, and answer with the error
    close               close the connection and do nothing
    drop-answer         do what was asked, and close the connection without an answer
    never-answer        do nothing and say nothing more on the connection
    swallow-answer      do what was asked, and say nothing more on the connection
    delay=SECONDS       do it later
    delay-answer=SECONDS  do it at once, and answer later
    throttle=SECONDS    do it, and answer that a quota was exceeded
    corrupt             do it, and answer with nonsense
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.faults import (
    Action,
    AnswerError,
    CloseConnection,
    Corrupt,
    Delay,
    NeverAnswer,
    Throttle,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable


class FaultOption(NamedTuple):
    """What `Faults.on` is to be told."""

    api_key: ApiKey
    action: Action
    #: None: always.
    times: int | None


_PLAIN: dict[str, Action] = {
    "close": CloseConnection(),
    "drop-answer": CloseConnection(handled=True),
    "never-answer": NeverAnswer(),
    "swallow-answer": NeverAnswer(handled=True),
    "corrupt": Corrupt(),
}
_WITH_CODE: dict[str, Callable[[ErrorCode], Action]] = {
    "error": AnswerError,
    "late-error": lambda code: AnswerError(code, handled=True),
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
    """Read a fault. Raises ConfigError that says which word is wrong, and what it may be."""
    api, _, rest = text.partition(":")
    action, _, times = rest.partition(":")
    try:
        api_key = ApiKey[api.upper().replace("-", "_")]
    except KeyError:
        raise ConfigError(f"{text!r}: there is no API {api!r}") from None
    try:
        count = int(times) if times else None
    except ValueError:
        raise ConfigError(f"{text!r}: {times!r} is not a number of times") from None
    if count is not None and count < 1:
        raise ConfigError(f"{text!r}: a fault cannot happen {count} times")
    return FaultOption(api_key, _parse_action(text, action), count)


def _parse_action(text: str, action: str) -> Action:
    name, has_value, value = action.partition("=")
    if name in _PLAIN and not has_value:
        return _PLAIN[name]
    if name in _WITH_CODE:
        try:
            return _WITH_CODE[name](ErrorCode[value.upper()])
        except KeyError:
            raise ConfigError(f"{text!r}: {value!r} is no error code of Kafka's") from None
    if name in _WITH_SECONDS:
        return _WITH_SECONDS[name](_parse_seconds(text, value))
    raise ConfigError(f"{text!r}: {action!r} is none of {', '.join(ACTIONS)}")


def _parse_seconds(text: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        raise ConfigError(f"{text!r}: {value!r} is not a number of seconds") from None
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"{text!r}: it cannot take {value} seconds")
    return seconds
