"""The latest reports, kept on the driver's machine for as long as the application runs.

A write commits in a Python process of the driver, which is not the user's process, and under Spark
Connect not even on the user's machine. So `commit` leaves the report in a file, and the user's
session asks for it through the data source (`request`): Spark asks a data source for its schema on
the driver's machine, without a job, and the reports are in the schema's metadata.

- The files are in the directory of Spark's block manager, which belongs to one application and is
  deleted when it ends. Directories have mode 0700 and files 0600.
- Batches are kept by the session that wrote, as far as Spark tells sessions apart (under Spark
  Connect; in classic Spark all sessions of an application share them), streams by query id.
- Each report is a file of its own, complete before it has its name, so that writers that run at
  the same time need no lock. The oldest are removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

#: How many reports are kept of a session's batches, and of each query.
KEPT: Final = 50
#: The number of queries, and of sessions, whose reports are kept.
KEPT_GROUPS: Final = 50
#: The name of the data source.
FORMAT: Final = "pykafka"
#: The option of a read that asks for reports; its value is a request.
REQUEST_OPTION: Final = "__reports"
#: The column, and the entry of its metadata, in the answer.
ANSWER: Final = "reports"
_LOCAL_DIRECTORIES: Final = "SPARK_LOCAL_DIRS"
_SESSION: Final = "SPARK_JOB_ARTIFACT_UUID"
_NAME: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_PRINTED: Final = "printed"
_SAID: Final = "said"


def replace_file(target: Path, text: str, *, durable: bool = True) -> None:
    """Replace `target` with `text`; raises OSError, which leaves `target` unchanged.

    With `durable`, the text survives a crash of the machine; the file has mode 0600.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        Path(temporary).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def driver_directory(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of a directory of this application, which need not exist.

    None outside of the Python processes that Spark starts.
    """
    directories = environ.get(_LOCAL_DIRECTORIES, "")
    return Path(directories.split(",")[0]) / name if directories else None


def session_name(environ: Mapping[str, str]) -> str:
    """Return the session of this process, as far as Spark tells sessions apart."""
    return environ.get(_SESSION, "default")


class ReportStore:
    """The reports of one application; its methods raise OSError."""

    def __init__(self, root: Path, session: str) -> None:
        self._root = root
        self._session = session

    @classmethod
    def of_driver(cls, environ: Mapping[str, str] = os.environ) -> ReportStore | None:
        """Return the store of the application to which this process belongs; None outside Spark."""
        root = driver_directory("spark-kafka-sink-reports", environ)
        return None if root is None else cls(root, session_name(environ))

    def put(self, query_id: str | None, report: Mapping[str, Any], *, now_ns: int) -> None:
        """Keep a report, and remove the oldest; `now_ns` orders the reports of a group.

        A report is newer than those before it, although the clock may have been set back.
        """
        group = self._group(query_id)
        self._root.mkdir(mode=0o700, exist_ok=True)
        try:
            group.mkdir(mode=0o700)
        except FileExistsError:
            pass
        else:
            self._remove_oldest_groups()
        earlier = _reports(group)
        order = max(now_ns, _order(earlier[-1]) + 1) if earlier else now_ns
        name = f"{order:020d}-{uuid.uuid4().hex}.json"
        replace_file(group / name, json.dumps(report), durable=False)
        for path in earlier[: max(len(earlier) + 1 - KEPT, 0)]:
            path.unlink(missing_ok=True)

    def newest(
        self,
        query_id: str | None,
        *,
        limit: int,
        report_id: str | None = None,
        batch_id: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return at most `limit` reports, the oldest of them first.

        With `report_id` only its reports count, and with `batch_id` only those of a micro-batch.
        """
        reports: list[dict[str, Any]] = []
        for path in reversed(_reports(self._group(query_id))):
            if len(reports) == limit:
                break
            # It may have been removed meanwhile, as one of the oldest.
            with suppress(FileNotFoundError):
                report = json.loads(path.read_text("utf-8"))
                if report_id in (None, report.get("report_id")) and (
                    batch_id in (None, report.get("batch_id"))
                ):
                    reports.append(report)
        return reports[::-1]

    def batches(self, query_id: str) -> set[int]:
        """Return the numbers of the micro-batches of a query that have a report."""
        return {report["batch_id"] for report in self.newest(query_id, limit=KEPT)}

    def printed(self, query_id: str) -> dict[str, Any]:
        """Return what `set_printed` has stored; empty if there is nothing."""
        try:
            return dict(json.loads((self._group(query_id) / _PRINTED).read_text("utf-8")))
        except FileNotFoundError:
            return {}

    def set_printed(self, query_id: str, state: Mapping[str, Any]) -> None:
        """Store what was printed last about a query that has a report."""
        replace_file(self._group(query_id) / _PRINTED, json.dumps(state), durable=False)

    def is_first(self, name: str) -> bool:
        """Return whether this is the first call with this name in the application."""
        self._root.mkdir(mode=0o700, exist_ok=True)
        try:
            (self._root / f"{_SAID}-{name}").touch(mode=0o600, exist_ok=False)
        except FileExistsError:
            return False
        return True

    def answer(self, request: str) -> str:
        """Return the reports that a `request` asks for, as JSON."""
        parsed = json.loads(request)
        return json.dumps(
            self.newest(
                parsed["query_id"],
                limit=parsed["limit"],
                report_id=parsed["report_id"],
                batch_id=parsed.get("batch_id"),
            )
        )

    def _group(self, query_id: str | None) -> Path:
        name = self._session if query_id is None else query_id
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not an id of Spark's")
        return self._root / f"{'batches' if query_id is None else 'query'}-{name}"

    def _remove_oldest_groups(self) -> None:
        for path in oldest_first(self._root)[:-KEPT_GROUPS]:
            shutil.rmtree(path, ignore_errors=True)


def request(
    query_id: str | None, *, limit: int, report_id: str | None, batch_id: int | None = None
) -> str:
    """Return a request for reports; each is different, since Spark Connect caches plans."""
    return json.dumps(
        {
            "query_id": query_id,
            "limit": limit,
            "report_id": report_id,
            "batch_id": batch_id,
            "request": uuid.uuid4().hex,
        }
    )


def ask(session: SparkSession, request_json: str) -> list[dict[str, Any]]:
    """Return the reports that a request asks for, from the driver of a session, by no job."""
    schema = session.read.format(FORMAT).option(REQUEST_OPTION, request_json).load().schema
    reports: list[dict[str, Any]] = json.loads(schema[ANSWER].metadata[ANSWER])
    return reports


def _reports(group: Path) -> list[Path]:
    """Return the files of a group, oldest first; temporary files begin with a dot."""
    with suppress(FileNotFoundError):
        return sorted(
            path
            for path in group.iterdir()
            if path.suffix == ".json" and not path.name.startswith(".")
        )
    return []


def _order(report: Path) -> int:
    """Return the number by which the reports of a group are ordered."""
    return int(report.name.partition("-")[0])


def oldest_first(directory: Path) -> list[Path]:
    """Return what is in a directory, by the times of changes."""
    found = []
    for path in directory.iterdir():
        # Another writer may remove it now.
        with suppress(FileNotFoundError):
            found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found)]
