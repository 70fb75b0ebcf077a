"""The arguments of a consumer's methods, checked: a mistake is raised where it was made."""

from __future__ import annotations

import re
import threading

from spark_kafka_sink.errors import ConfigError

_LISTENER = ("on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost")


def seconds_of(timeout: float) -> float:
    """Return a timeout in seconds, as much as a thread can wait."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout is a number of seconds, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout is {timeout}, but must not be negative")
    return min(timeout, threading.TIMEOUT_MAX / 2)


def pattern_of(pattern: object) -> re.Pattern[str]:
    """Return a compiled regular expression."""
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str):
        raise TypeError(f"pattern is a regular expression as text, not {pattern!r}")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"pattern is not a regular expression: {error}") from error


def check_listener(listener: object) -> None:
    """Raise TypeError for an object without the methods of a ConsumerRebalanceListener."""
    missing = [name for name in _LISTENER if not callable(getattr(listener, name, None))]
    if listener is not None and missing:
        raise TypeError(
            f"the listener has no method {missing[0]}: derive its class from "
            "ConsumerRebalanceListener"
        )


def check_callback(callback: object) -> None:
    """Raise TypeError for a callback that cannot be called."""
    if callback is not None and not callable(callback):
        raise TypeError(f"callback is a function of offsets and error, not {callback!r}")
