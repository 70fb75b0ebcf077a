"""Durations as texts: in ISO 8601 (`auto.offset.reset`), and with a unit (options of Spark)."""

from __future__ import annotations

import re
from typing import Final

from spark_kafka_sink.config.config_def import LONG_MAX

#: The form that java.time.Duration.parse accepts, in either case.
_DURATION: Final = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?[0-9]+)D)?"
    r"(?P<time>T(?:(?P<hours>[-+]?[0-9]+)H)?(?:(?P<minutes>[-+]?[0-9]+)M)?"
    r"(?:(?P<seconds>[-+]?[0-9]+)(?:[.,](?P<fraction>[0-9]{0,9}))?S)?)?",
    re.IGNORECASE,
)
_NANOSECONDS: Final = 1_000_000_000
_SECONDS: Final = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}

_TIME: Final = re.compile(r"([0-9]+)([a-z]*)")
#: Microseconds in each unit; a number alone is in milliseconds.
_UNITS: Final = {
    "us": 1,
    "": 1_000,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
#: More digits than any time has: Python limits the number of digits that it parses.
_MOST_DIGITS: Final = 19


def duration_ns(text: str) -> int | None:
    """Return the nanoseconds of a duration, such as PT36H; None for a text that Java refuses."""
    match = _DURATION.fullmatch(text)
    if match is None or (match["time"] or "").upper() == "T":
        return None
    parts = {name: match[name] for name in _SECONDS if match[name] is not None}
    if not parts:
        return None
    fraction = int((match["fraction"] or "").ljust(9, "0"))
    if parts.get("seconds", "").startswith("-"):
        fraction = -fraction
    seconds = sum(int(number) * _SECONDS[name] for name, number in parts.items())
    # Java's Duration counts its seconds in 64 bits.
    if abs(seconds) > LONG_MAX or any(abs(int(part)) > LONG_MAX for part in parts.values()):
        return None
    nanoseconds = seconds * _NANOSECONDS + fraction
    return -nanoseconds if match["sign"] == "-" else nanoseconds


def milliseconds(text: str) -> int:
    """Return a time in milliseconds, rounded down; raise ValueError if the text is not a time.

    Times are as Spark's options write them: `15m`, `30s`, `500ms` (its `JavaUtils.timeStringAsMs`).
    """
    match = _TIME.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS or len(match[1]) > _MOST_DIGITS:
        raise ValueError("must be a time such as 15m or 500ms")
    return min(int(match[1]) * _UNITS[match[2]] // 1_000, LONG_MAX)


class TimeText:
    """A validator of times."""

    def __str__(self) -> str:
        return "a time with a unit (us, ms, s, m, min, h or d), or in ms"

    def problem(self, value: str) -> str | None:
        """Check that the text is a time."""
        try:
            milliseconds(value)
        except ValueError as error:
            return str(error)
        return None
