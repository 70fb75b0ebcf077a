"""Measure what writes and what reads: `make bench`, or `python -m benchmarks.bench --help`.

Only the development environment is needed. A broker is started in the same way as for the tests,
unless KAFKA_BOOTSTRAP_SERVERS is set. Spark's own JVM sink and source are those of the tests, which
Maven fetches; without it they are left out. Other versions can be given as jars:
spark-sql-kafka-0-10_2.13 and its dependencies spark-token-provider-kafka-0-10_2.13, kafka-clients
and commons-pool2, and spark-avro_2.13.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import (
    bad_rows,
    bare_producer,
    consuming,
    cpu_time,
    embedded_broker,
    exactly_once_cost,
    formats,
    kernel,
    latency,
    many_tasks,
    micro_batches,
    paced_tasks,
    reading,
    row_wise,
    secured_producer,
    spark_write,
    worker_memory,
)
from benchmarks.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Callable

SECTIONS = {
    "kernel": kernel.run,
    "producer": bare_producer.run,
    "rows": row_wise.run,
    "latency": latency.run,
    "write": spark_write.run,
    "cpu": cpu_time.run,
    "one-row": spark_write.run_one_row,
    "tasks": many_tasks.run,
    "pace": paced_tasks.run,
    "memory": worker_memory.run,
    "broker": embedded_broker.run,
    "exactly_once": exactly_once_cost.run,
    "streams": micro_batches.run,
    "read": reading.run,
    "consumer": consuming.run,
    "formats": formats.run,
    "bad-rows": bad_rows.run,
    "security": secured_producer.run,
}


def main() -> None:
    """Run the selected sections, or all."""
    arguments = _arguments()
    started = time.monotonic()
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores shared by clients, Spark and "
        "broker; compare ratios, not absolute figures."
    )
    with Setting(
        rows=arguments.rows,
        rounds=arguments.rounds,
        long=arguments.long,
        jvm_jars=arguments.jvm_jars,
    ) as setting:
        for name in arguments.only or SECTIONS:
            SECTIONS[name](setting)
    print(f"\nFinished in {time.monotonic() - started:.0f} seconds.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench",
        description=__doc__.partition("\n\n")[2],
        epilog="sections:\n"
        + "\n".join(f"  {name:14}{_about(run)}" for name, run in SECTIONS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=SECTIONS,
        metavar="SECTION",
        help="run this section only; may be given several times",
    )
    parser.add_argument(
        "--rows",
        type=_positive,
        default=4_000_000,
        help="rows per write, except in the sections of small writes (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=_positive,
        default=4,
        help="rounds after the warm-up; one-row takes three times as many (default: %(default)s)",
    )
    parser.add_argument(
        "--long",
        action="store_true",
        help="write 10 million rows in exactly_once, and 50 million in memory and read",
    )
    parser.add_argument(
        "--jvm-jars",
        type=_directory,
        metavar="DIR",
        help="measure Spark's JVM sink and source with these jars",
    )
    return parser.parse_args()


def _about(run: Callable[[Setting], None]) -> str:
    """Return what a section measures: the first line of its module's docstring, or of its own."""
    documented = sys.modules[run.__module__] if run.__name__ == "run" else run
    return (documented.__doc__ or "").partition("\n")[0]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _directory(text: str) -> Path:
    path = Path(text)
    if not any(path.glob("*.jar")):
        raise argparse.ArgumentTypeError(f"there are no jars in {text}")
    return path


if __name__ == "__main__":
    sys.exit(main())
