"""`make soak`: write to Kafka during minutes of random faults, reproducible from a seed."""

from __future__ import annotations

import argparse
import random
import sys

from tests.support.exactly_once.exactly_once_soak import run_kill_soak
from tests.support.kafka.kafka_files import KAFKA_4
from tests.support.soaking.soak import run_soak
from tests.support.soaking.soak_plan import make_plan

#: The share of the time spent on killing processes during exactly-once writes.
KILLS_SHARE = 0.2


def main() -> int:
    """Run a soak test, or print its plan; return 1 if something went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15, help="duration (default: 15)")
    parser.add_argument("--seed", type=int, default=None, help="seed (default: random)")
    parser.add_argument("--nodes", type=int, default=3, help="brokers (default: 3)")
    parser.add_argument("--version", default=KAFKA_4, help="version of Apache Kafka")
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
    report = run_soak(
        seed=seed,
        seconds=seconds * (1 - KILLS_SHARE),
        version=options.version,
        nodes=options.nodes,
        say=_say,
    )
    _say(str(report))
    killed = run_kill_soak(
        seed=seed, seconds=seconds * KILLS_SHARE, version=options.version, say=_say
    )
    _say(str(killed))
    return 1 if report.problems or killed.problems else 0


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # a command's output


if __name__ == "__main__":
    sys.exit(main())
