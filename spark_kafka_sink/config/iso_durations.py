"""Durations in ISO 8601, as `auto.offset.reset` has them (java.time.Duration.parse)."""

from __future__ import annotations

import re
from typing import Final

#: The form that java.time.Duration.parse accepts, in either case.
_DURATION: Final = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?[0-9]+)D)?"
    r"(?P<time>T(?:(?P<hours>[-+]?[0-9]+)H)?(?:(?P<minutes>[-+]?[0-9]+)M)?"
    r"(?:(?P<seconds>[-+]?[0-9]+)(?:[.,](?P<fraction>[0-9]{0,9}))?S)?)?",
    re.IGNORECASE,
)
_NANOSECONDS: Final = 1_000_000_000
_SECONDS: Final = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
#: Java's Duration counts its seconds in 64 bits.
_MOST_SECONDS: Final = 2**63 - 1


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
    if abs(seconds) > _MOST_SECONDS or any(
        abs(int(part)) > _MOST_SECONDS for part in parts.values()
    ):
        return None
    nanoseconds = seconds * _NANOSECONDS + fraction
    return -nanoseconds if match["sign"] == "-" else nanoseconds
