"""The sink's reports of micro-batches, read from the file that `reportPath` names.

The file is read from its end, where the report of the micro-batch that has just finished is. It is
opened each time, because the sink may have replaced it, and its last line counts only once it ends
with a newline.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIRST_WINDOW: Final = 65_536
#: How far from the end a report is searched; a micro-batch of 10,000 partitions takes a megabyte.
_FARTHEST: Final = 4 * 1024 * 1024


class ReportFile:
    """The reports in the file at a `path`, on the machine of the driver.

    >>> listener = KafkaStreamListener(JsonLogExporter(), reports=ReportFile("/tmp/orders.jsonl"))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def __call__(self, query_id: str, batch_id: int) -> Mapping[str, Any] | None:
        """Return the report of the micro-batch `batch_id` of the query `query_id`, or None.

        It is None for a query that has not written the last line, and for a micro-batch whose line
        is more than 4 MiB from the end.

        Raises OSError if the file cannot be read, and ValueError if it has other lines.
        """
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                window = _FIRST_WINDOW
                while True:
                    start = max(size - window, 0)
                    file.seek(start)
                    lines = file.read(size - start).split(b"\n")
                    # The last piece has no newline yet; the first one may have lost its beginning.
                    complete = lines[1 if start else 0 : -1]
                    report, is_settled = _find(complete, query_id, batch_id)
                    if is_settled or not start or window >= _FARTHEST:
                        return report
                    window *= 4
        except FileNotFoundError:
            return None


def _find(
    lines: list[bytes], query_id: str, batch_id: int
) -> tuple[Mapping[str, Any] | None, bool]:
    """Return the report in these lines, and whether earlier lines need not be searched."""
    for line in reversed(lines):
        report = json.loads(line)
        if not isinstance(report, dict) or "batch_id" not in report:
            raise ValueError("a line of the report is not about a micro-batch")
        if report.get("query_id") != query_id or report["batch_id"] < batch_id:
            return None, True
        if report["batch_id"] == batch_id:
            return report, True
    return None, False
