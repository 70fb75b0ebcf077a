"""Lines for the user, from the Python processes in which Spark runs a data source.

These processes configure no logging, so that a line at level INFO would be lost. Such a line is
written to standard output instead, which Spark copies to the standard error of its own process: a
terminal in local mode, the driver's or the executor's log in a cluster. Where logging is configured
(`spark.sql.pyspark.worker.logging.enabled`, or by the user), the line is only logged. Either way,
the logger's level silences it, and about a write the option `report`.

Spark shows no output rows of a Python sink and takes nothing from a task before it ends, so the log
is the one place where a running task can say how far it is (`with_progress`). The time is looked at
once for each Arrow batch; nothing runs beside the write.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.display import size
from spark_kafka_sink.spark.report_store import ReportStore
from spark_kafka_sink.spark.task_costs import MANY_TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa

logger = logging.getLogger(__name__)

#: The loggers of what is announced: set their level to silence them.
report_logger: Final = logging.getLogger("spark_kafka_sink.report")
progress_logger: Final = logging.getLogger("spark_kafka_sink.progress")
#: The seconds between two lines about the progress of a task.
EVERY_SECONDS: Final = 5.0
#: The session's setting.
SETTING: Final = "spark.python.unix.domain.socket.enabled"
#: What Spark sets for Python workers, also those on the driver, if the setting is true.
_VARIABLE: Final = "PYTHON_UNIX_DOMAIN_ENABLED"
_SINCE: Final = (4, 1)
_ADVICE: Final = (
    "Kafka: Spark hands tasks to its Python workers over TCP; many small ones are faster over Unix "
    f"domain sockets: set {SETTING}=true before the session starts"
)


def announce(logger: logging.Logger, line: str) -> None:
    """Log a line at level INFO, or print it where no logging is configured; raises OSError."""
    if logger.getEffectiveLevel() > logging.INFO and not _is_level_set(logger):
        logger.setLevel(logging.INFO)
    if logger.hasHandlers():
        logger.info("%s", line)
    elif logger.isEnabledFor(logging.INFO):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _is_level_set(logger: logging.Logger) -> bool:
    """Return whether the logger, or one above it that is not the root, has a level of its own."""
    above: logging.Logger | None = logger
    while above is not None and not isinstance(above, logging.RootLogger):
        if above.level != logging.NOTSET:
            return True
        above = above.parent
    return False


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


def advise_sockets(tasks: int, environ: Mapping[str, str] = os.environ) -> None:
    """Print, once in an application, how a job of many tasks runs faster.

    By default, the sockets between Spark's JVM and its Python workers are TCP sockets on the
    loopback interface. PySpark 4.1 and newer can use Unix domain sockets instead (SPARK-51688).
    Writes in 200 small tasks took a seventh longer over TCP.
    """
    if tasks <= MANY_TASKS or environ.get(_VARIABLE):
        return
    try:
        store = ReportStore.of_driver(environ)
        if store is not None and _is_known() and store.is_first("worker-sockets"):
            announce(report_logger, _ADVICE)
    except Exception:  # whatever it is, no job may fail because of a hint
        logger.info("could not say that %s=true makes tasks faster", SETTING, exc_info=True)


def _is_known() -> bool:
    """Return whether this PySpark knows the setting, on a system that has such sockets."""
    import pyspark

    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    return version >= _SINCE and os.name == "posix"
