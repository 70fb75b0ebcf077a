"""What a stream prints: at most once a minute, the sum of what it has written since."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.spark.sink.write_report import WriteReport

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

#: The seconds between two lines of a query.
EVERY_SECONDS: Final = 60.0


def next_lines(
    state: Mapping[str, Any], report: WriteReport, *, now: float, is_full: bool
) -> tuple[str | None, dict[str, Any]]:
    """Return what to print after a batch with rows, or None; and the state for the next batch.

    The state, which is empty at first, can be stored as JSON. `now` is in seconds since 1970; a
    clock that was set back does not silence a stream.
    """
    advice = None if state.get("is_advised") else report.advice
    # How many tasks there are is a question about each batch, and not about a sum. A summary needs
    # no partitions; there may be thousands of them.
    report = replace(report if is_full else report.condensed(), task_seconds=None)
    waiting = state.get("waiting")
    total, first = report, report.batch_id
    if waiting is not None:
        try:
            total, first = WriteReport.from_record(waiting).merged(report), state["first_batch"]
        except (TypeError, KeyError, ValueError):
            # Another version of this package has stored it; only a line is lost.
            logger.info("the state of the last lines cannot be read", exc_info=True)
    printed_at = state.get("printed_at")
    if printed_at is not None and 0 <= now - printed_at < EVERY_SECONDS:
        return None, {**state, "waiting": total.to_record(), "first_batch": first}
    batches = (
        f"batch {first}" if first == report.batch_id else f"batches {first} to {report.batch_id}"
    )
    lines = total.to_text() if is_full else total.summary()
    lines = lines.replace("Kafka: ", f"Kafka: {batches} ", 1).rstrip()
    if advice is not None:
        lines += f"\n  batch {report.batch_id}: {advice}"
    return lines, {
        "printed_at": now,
        "is_advised": bool(state.get("is_advised")) or advice is not None,
    }
