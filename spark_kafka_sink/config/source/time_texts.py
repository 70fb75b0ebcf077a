"""Times as Spark's options write them: `15m`, `30s`, `500ms` (its `JavaUtils.timeStringAsMs`)."""

from __future__ import annotations

import re
from typing import Final

from spark_kafka_sink.config.config_def import LONG_MAX

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


def milliseconds(text: str) -> int:
    """Return a time in milliseconds, rounded down; raise ValueError if the text is not a time."""
    found = _TIME.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS or len(found[1]) > _MOST_DIGITS:
        raise ValueError("must be a time such as 15m or 500ms")
    return min(int(found[1]) * _UNITS[found[2]] // 1_000, LONG_MAX)


class TimeText:
    """A validator of times."""

    def __str__(self) -> str:
        """Format it for the documentation."""
        return "a time with a unit (us, ms, s, m, min, h or d), or in ms"

    def problem(self, value: str) -> str | None:
        """Check that the text is a time."""
        try:
            milliseconds(value)
        except ValueError as error:
            return str(error)
        return None
