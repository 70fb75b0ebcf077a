"""The progress of a task that takes long, as lines of its log.

Spark shows no output rows of a Python sink and takes nothing from a task before it ends, so the
log is the one place where a running task can say how far it is. The time is looked at once for
each Arrow batch; nothing runs beside the write.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.display import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

logger = logging.getLogger(__name__)

#: The seconds between two lines of a task.
EVERY_SECONDS: Final = 5.0


def with_progress(
    batches: Iterable[pa.RecordBatch],
    *,
    task: int,
    clock: Callable[[], float],
    say: Callable[[str], None],
) -> Iterator[pa.RecordBatch]:
    """Yield all batches, and say every few seconds how many rows the task has taken.

    `task` is the index of the Spark partition, `clock` returns seconds. If a line cannot be said,
    this is logged, and the task says no more: its rows are worth more.
    """
    begun = said = clock()
    rows = taken = said_rows = 0
    for batch in batches:
        yield batch
        rows += batch.num_rows
        taken += batch.nbytes
        now = clock()
        if now - said >= EVERY_SECONDS:
            line = (
                f"Kafka: task {task} has taken {rows:,} rows ({size(taken)}) in {now - begun:,.0f} "
                f"s, now {(rows - said_rows) / (now - said):,.0f} rows/s"
            )
            said, said_rows = now, rows
            try:
                say(line)
            except (OSError, ValueError):  # it is closed, full, or has no such characters
                logger.warning("task %d cannot print its progress", task, exc_info=True)
                said = math.inf
