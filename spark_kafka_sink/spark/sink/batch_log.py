"""A stream's report: a local file with one line of JSON per micro-batch.

- A line begins with the query id and the batch id, and reports the batch's latest commit. If Spark
  commits a batch again, the new line replaces the old one, so that each batch appears once.
- A line is appended with a single write and synced to disk. The next append cuts off a partial line
  that a crash left behind. A file system may expose part of a write, so a reader must ignore a line
  until its newline is there.
- Usually the batch follows that of the last line, and only that line is read. Otherwise (a replay,
  a checkpoint that was rolled back, another query's file) the file is rewritten atomically.
- Only a report is ever changed: symbolic links, devices, files with other lines, and partial lines
  that do not begin like a report's are refused. A new file has mode 0600.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from spark_kafka_sink.config.allow_lists import pinned_target
from spark_kafka_sink.spark.report_store import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAIL_BYTES: Final = 65_536
#: The start of every line, and so of any partial line that a crash left behind.
_LINE_START: Final = b'{"query_id": '


class BatchLog:
    """The report at one path; its methods raise OSError."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def check(self) -> None:
        """Raise OSError if `put` would refuse the file at the path; nothing is changed."""
        with (
            suppress(FileNotFoundError),
            pinned_target(self._path) as path,
            self._open(path, os.O_RDWR) as file,
        ):
            _last(file)

    def put(self, query_id: str | None, batch_id: int, report: dict[str, Any]) -> None:
        """Write the batch's line, replacing an existing one."""
        self._put(query_id, batch_id, report, replaces=True)

    def put_if_missing(self, query_id: str | None, batch_id: int, report: dict[str, Any]) -> None:
        """Write the batch's line unless there is one, which then has more detail."""
        self._put(query_id, batch_id, report, replaces=False)

    def _put(
        self, query_id: str | None, batch_id: int, report: dict[str, Any], *, replaces: bool
    ) -> None:
        line = json.dumps({"query_id": query_id, "batch_id": batch_id, **report}) + "\n"
        with pinned_target(self._path) as path:
            with self._open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND) as file:
                last = _last(file)
                if last is None or (last[0] == query_id and last[1] < batch_id):
                    _append(file, line)
                    return
                lines = list(_lines(file))
            others = [text for text, key in lines if key != (query_id, batch_id)]
            if len(others) < len(lines) and not replaces:
                return
            replace_file(path, "".join([*others, line]))

    def _open(self, path: Path, flags: int) -> IO[bytes]:
        """Open a regular file; links are not followed, and a pipe without a reader cannot block."""
        try:
            handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise OSError(f"{str(self._path)!r} is a symbolic link") from error
            raise
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(f"{str(self._path)!r} is not a regular file")
        return os.fdopen(handle, "rb+")


def _append(file: IO[bytes], line: str) -> None:
    file.truncate(_end_of_lines(file, _size(file)))
    rest = line.encode()
    while rest:
        # One write suffices unless the disk is full or a signal interrupts it.
        rest = rest[os.write(file.fileno(), rest) :]
    os.fsync(file.fileno())


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _end_of_lines(file: IO[bytes], size: int) -> int:
    """Return where the last complete line within the first `size` bytes ends."""
    end = size
    while end:
        start = max(end - _TAIL_BYTES, 0)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _last(file: IO[bytes]) -> tuple[str | None, int] | None:
    """Return query and batch of the last complete line, or None; OSError if it is not a report."""
    end = _end_of_lines(file, _size(file))
    file.seek(end)
    torn = file.read(len(_LINE_START))
    if not _LINE_START.startswith(torn):
        raise OSError("its last line is incomplete and not a micro-batch's report")
    if not end:
        return None
    before = _end_of_lines(file, end - 1)
    file.seek(before)
    return _key(file.read(end - before))


def _lines(file: IO[bytes]) -> Iterator[tuple[str, tuple[str | None, int]]]:
    file.seek(0)
    for line in file:
        if line.endswith(b"\n"):
            key = _key(line)
            yield line.decode(), key


def _key(line: bytes) -> tuple[str | None, int]:
    """Return the query and batch of a line; OSError if it is not a report's."""
    try:
        report = json.loads(line.decode())
        query_id, batch_id = report["query_id"], report["batch_id"]
    except (ValueError, RecursionError) as error:
        raise OSError(
            f"it has a line that is not a micro-batch's report: not JSON ({error})"
        ) from None
    except (TypeError, KeyError):
        raise OSError(
            "it has a line that is not a micro-batch's report: query_id or batch_id is missing"
        ) from None
    if isinstance(query_id, str | None) and type(batch_id) is int:
        return query_id, batch_id
    raise OSError(
        "it has a line that is not a micro-batch's report: query_id or batch_id has a wrong type"
    )
