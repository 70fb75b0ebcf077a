"""The sockets between Spark's JVM and its Python workers, which matter in a job of many tasks.

By default they are TCP sockets on the loopback interface. PySpark 4.1 and newer can use Unix domain
sockets instead (SPARK-51688). Writes in 200 small tasks took a seventh longer over TCP.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.spark.report.announcements import announce, report_logger
from spark_kafka_sink.spark.report.report_store import ReportStore
from spark_kafka_sink.spark.report.task_costs import MANY_TASKS

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

#: The session's setting.
SETTING: Final = "spark.python.unix.domain.socket.enabled"
#: What Spark sets for Python workers, also those on the driver, if the setting is true.
_VARIABLE: Final = "PYTHON_UNIX_DOMAIN_ENABLED"
_SINCE: Final = (4, 1)
_ADVICE: Final = (
    "Kafka: Spark hands tasks to its Python workers over TCP; many small ones are faster over Unix "
    f"domain sockets: set {SETTING}=true before the session starts"
)


def advise(tasks: int, environ: Mapping[str, str] = os.environ) -> None:
    """Print, once in an application, how a job of many tasks runs faster."""
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
