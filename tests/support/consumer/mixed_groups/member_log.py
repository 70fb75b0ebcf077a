"""What a member of a mixed group writes to its output: a JSON object in each line.

Members of all kinds write the same events; Java's are written by `GroupMember.java`:

- `assigned`: all partitions that are owned now, and the generation, if it is known
- `revoked`, `lost`: the partitions that are given up
- `records`: the partition, the generation, if it is known, and the numbers of the records
- `poll_failed` (only Java, where a later poll succeeds), `commit_failed`, `stalled`, `closed`

This module is used by the members' own processes, and imports little.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def write_event(what: str, **details: object) -> None:
    """Write an event, and flush it: what is committed afterwards must not be lost."""
    line = json.dumps({"event": what, "at": round(time.monotonic(), 3), **details})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def write_records(numbers: Iterable[int], partition: int, generation: int | None) -> None:
    """Write the numbers of records that `poll` has returned for a partition."""
    write_event("records", partition=partition, generation=generation, numbers=list(numbers))


class LogReader:
    """The events of a member that may still be writing, each returned once."""

    def __init__(self, path: Path) -> None:
        """Begin at the first line."""
        self._file = path.open("rb")
        self._rest = b""

    def new_events(self) -> list[dict[str, Any]]:
        """Return the complete lines that have come since the last call."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [json.loads(line) for line in lines if line]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
