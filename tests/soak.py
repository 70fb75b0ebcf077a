"""`make soak`: write to Kafka during minutes of random faults, reproducible from a seed.

Afterwards, one producer writes ten million rows, and a pipeline from Kafka to Kafka runs until as
many of its processes were killed as `--pipeline-kills` says. Members of three clients read in one
group for some minutes, half of them on the oldest supported version. The last part runs the tests
with the marker `soak`, which `make test` leaves out.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tests.support.consumer.mixed_groups.mixed_group import run_mixed_groups
from tests.support.exactly_once.exactly_once_soak import run_kill_soak
from tests.support.kafka.dev_kafka import EMBEDDED
from tests.support.kafka.kafka_files import KAFKA_3, KAFKA_4
from tests.support.reading.pipeline_soak import run_pipeline_soak
from tests.support.slow_half import slow_files
from tests.support.soaking.many_rows import run_many_rows
from tests.support.soaking.soak import run_soak
from tests.support.soaking.soak_plan import make_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: The share of the time spent on killing processes during exactly-once writes.
KILLS_SHARE = 0.2
PARTS = ("faults", "kills", "rows", "pipeline", "groups", "tests")
ROWS = 10_000_000


class Report(Protocol):
    """What happened in a part, and what went wrong."""

    @property
    def problems(self) -> list[str]:
        """What went wrong."""


@dataclass(frozen=True)
class TestsReport:
    """How the tests at full length ended."""

    exit_code: int

    @property
    def problems(self) -> list[str]:
        """What went wrong; pytest has printed the details."""
        return [f"pytest ended with {self.exit_code}"] if self.exit_code else []


def run_tests() -> TestsReport:
    """Run the tests that are marked `soak`, one after another."""
    command = [sys.executable, "-m", "pytest", "-m", "soak", "-o", "faulthandler_timeout=0"]
    command += map(str, slow_files())
    return TestsReport(subprocess.run(command, check=False).returncode)  # noqa: S603 -- our own


def main() -> int:
    """Run a soak test, or print its plan; return 1 if something went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15, help="duration (default: 15)")
    parser.add_argument("--seed", type=int, default=None, help="seed (default: random)")
    parser.add_argument("--nodes", type=int, default=3, help="brokers (default: 3)")
    parser.add_argument("--version", default=KAFKA_4, help="version of Apache Kafka")
    parser.add_argument(
        "--pipeline-kills",
        type=int,
        default=40,
        help="processes to kill while a topic is copied with Spark (default: %(default)s)",
    )
    parser.add_argument(
        "--pipeline-minutes",
        type=float,
        default=math.inf,
        help="end the copy after so many minutes, with fewer kills (default: no limit)",
    )
    parser.add_argument(
        "--group-minutes",
        type=float,
        default=10,
        help="duration of reading in groups (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=PARTS,
        help="run this part only; may be given several times",
    )
    parser.add_argument("--plan", action="store_true", help="only print the plan of faults")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    seconds = options.minutes * 60
    _say(f"seed {seed}")
    if options.plan:
        plan = make_plan(seed=seed, seconds=seconds * (1 - KILLS_SHARE), nodes=options.nodes)
        for event in sorted(plan.network + plan.cluster, key=lambda event: event.at):
            _say(str(event))
        return 0
    runs: dict[str, Callable[[], Sequence[Report]]] = {
        "faults": lambda: [
            run_soak(
                seed=seed,
                seconds=seconds * (1 - KILLS_SHARE),
                version=options.version,
                nodes=options.nodes,
                say=_say,
            )
        ],
        "kills": lambda: [
            run_kill_soak(seed=seed, seconds=seconds * KILLS_SHARE / 3, version=version, say=_say)
            for version in (options.version, KAFKA_3, EMBEDDED)
        ],
        "rows": lambda: [run_many_rows(rows=ROWS, version=options.version)],
        "pipeline": lambda: [
            run_pipeline_soak(
                seed=seed,
                kills=options.pipeline_kills,
                version=options.version,
                say=_say,
                most_minutes=options.pipeline_minutes,
            )
        ],
        "groups": lambda: [
            report
            for version in (options.version, KAFKA_3)
            for report in run_mixed_groups(
                seed=seed, seconds=options.group_minutes * 30, version=version, say=_say
            )
        ],
        "tests": lambda: [run_tests()],
    }
    problems = 0
    for part in options.only or PARTS:
        for report in runs[part]():
            _say(str(report))
            problems += len(report.problems)
    return 1 if problems else 0


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # a command's output


if __name__ == "__main__":
    sys.exit(main())
