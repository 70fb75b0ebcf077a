"""Import this before asyncio to make its debug mode cheap.

In debug mode asyncio notes for each callback, coroutine, future and task where it was made, by ten
frames or by the whole stack, with the text of their lines. That took a quarter of the time of the
tests with event loops. After this import it notes four frames: up to three are asyncio's own.
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import FrameType

FRAMES = 4


def _extract_few(frame: FrameType | None = None) -> traceback.StackSummary:
    """Return the innermost frames from `frame`, or from the caller; their text is not read."""
    frame = frame or sys._getframe(1)
    places: list[traceback.FrameSummary] = []
    while frame is not None and len(places) < FRAMES:
        code = frame.f_code
        places.append(
            traceback.FrameSummary(
                code.co_filename, frame.f_lineno, code.co_name, lookup_line=False
            )
        )
        frame = frame.f_back
    return traceback.StackSummary.from_list(reversed(places))


# Futures and tasks are of C code, which takes this function once, when asyncio is imported: if it
# has been before, they note the whole stack, as usual.
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(traceback, "extract_stack", _extract_few)
    import asyncio.constants
    import asyncio.format_helpers

# Callbacks.
asyncio.format_helpers.extract_stack = _extract_few  # type: ignore[assignment]
# Coroutines.
asyncio.constants.DEBUG_STACK_DEPTH = FRAMES  # type: ignore[attr-defined]
