"""Points in time: seconds of a monotonic clock, which callers pass as arguments."""

from __future__ import annotations

from typing import Final

#: The time of an event that will not happen, or that needs no timer.
NEVER: Final = float("inf")
