"""Lines for the user, from the Python processes in which Spark runs a data source.

These processes configure no logging, so that a line at level INFO would be lost. Such a line is
written to standard output instead, which Spark copies to the standard error of its own process: a
terminal in local mode, the driver's or the executor's log in a cluster. Where logging is configured
(`spark.sql.pyspark.worker.logging.enabled`, or by the user), the line is only logged. Either way,
the logger's level silences it, and about a write the option `report`.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

#: The loggers of what is announced: set their level to silence them.
report_logger: Final = logging.getLogger("spark_kafka_sink.report")
progress_logger: Final = logging.getLogger("spark_kafka_sink.progress")


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
