"""A stream's report: a local file with one line of JSON for each micro-batch.

- A line begins with the query's id and the batch's, and is what the batch's last commit told: one
  that Spark has committed again replaces its line, so that each batch is there once.
- A line is appended and forced to the disk; what a crash has torn off is cut away by the next one.
- Usually the batch comes after the last line's, and only that one is read. Otherwise (a replay, a
  checkpoint that was rolled back, another query's file) the file is written anew, whole or not at
  all.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.spark.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAIL_BYTES: Final = 65_536


class BatchLog:
    """See the module; raises OSError."""

    def __init__(self, path: str) -> None:
        """Open nothing yet."""
        self._path = Path(path)

    def put(self, query_id: str | None, batch_id: int, report: dict[str, Any]) -> None:
        """Have the batch's line say this."""
        self._put(query_id, batch_id, report, replaces=True)

    def put_if_missing(self, query_id: str | None, batch_id: int, report: dict[str, Any]) -> None:
        """Have a line for the batch; one that there is knows more of it."""
        self._put(query_id, batch_id, report, replaces=False)

    def _put(
        self, query_id: str | None, batch_id: int, report: dict[str, Any], *, replaces: bool
    ) -> None:
        line = json.dumps({"query_id": query_id, "batch_id": batch_id, **report}) + "\n"
        last = self._last()
        if last is None or (last[0] == query_id and last[1] < batch_id):
            self._append(line)
            return
        lines = list(self._lines())
        others = [text for text, key in lines if key != (query_id, batch_id)]
        if len(others) < len(lines) and not replaces:
            return
        replace_file(self._path, "".join([*others, line]))

    def _append(self, line: str) -> None:
        with self._path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            file.truncate(self._whole_bytes(size))
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def _whole_bytes(self, size: int) -> int:
        """Give the length of the file without what was torn off behind its last line."""
        with self._path.open("rb") as file:
            end = size
            while end:
                start = max(end - _TAIL_BYTES, 0)
                file.seek(start)
                found = file.read(end - start).rfind(b"\n")
                if found >= 0:
                    return start + found + 1
                end = start
        return 0

    def _last(self) -> tuple[str | None, int] | None:
        """Give query and batch of the last line; None of an empty file."""
        if not self._path.exists():
            return None
        size = self._whole_bytes(self._path.stat().st_size)
        if not size:
            return None
        before = self._whole_bytes(size - 1)
        with self._path.open("rb") as file:
            file.seek(before)
            return _key(file.read(size - before).decode())

    def _lines(self) -> Iterator[tuple[str, tuple[str | None, int]]]:
        with self._path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield line, _key(line)


def _key(line: str) -> tuple[str | None, int]:
    """Read whose a line is; OSError for a file that is none of ours, which stays as it is."""
    try:
        found = json.loads(line)
        return found["query_id"], int(found["batch_id"])
    except (ValueError, TypeError, KeyError) as error:
        raise OSError(f"there is a line that is no micro-batch's report: {error!r}") from error
