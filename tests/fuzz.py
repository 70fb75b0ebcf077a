"""`make fuzz`: feed random bytes to everything that reads from the network, from a seed.

First with purely random bytes; then, if atheris is installed, for the same time with bytes guided
by coverage. With `--only` a single target gets random bytes, in as many processes as there are
cores.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.support.fuzzing.coverage_fuzz import coverage_fuzz, is_available
from tests.support.fuzzing.fuzz import TARGETS, Finding, FuzzReport, fuzz, keep

FINDINGS = Path(__file__).parent / "fuzz_findings"
#: More growth than this is a leak; caches and the allocator account for less.
MOST_GROWN_BYTES = 64 * 2**20


def main() -> int:
    """Run the fuzzers; return 1 if they found something, which is stored for the tests."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--seconds", type=int, default=60, help="seconds for each fuzzer (default: 60)"
    )
    parser.add_argument("--seed", type=int, default=None, help="seed (default: random)")
    parser.add_argument(
        "--only", choices=TARGETS, metavar="TARGET", help=f"one of {', '.join(TARGETS)}"
    )
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    _say(f"seed {seed}")
    report = (
        _fuzz_one(options.only, seed, options.seconds)
        if options.only
        else fuzz(seed=seed, seconds=options.seconds)
    )
    findings = list(report.findings)
    _say(str(report))
    if not options.only:
        findings += _fuzz_by_coverage(seed, options.seconds)
    for finding in findings:
        _say(f"{finding}\n  stored as {keep(finding, FINDINGS)}")
    if report.grown_bytes > MOST_GROWN_BYTES:
        _say("memory leak: see the growth above")
        return 1
    return 1 if findings else 0


def _fuzz_one(name: str, seed: int, seconds: float) -> FuzzReport:
    """Fuzz one target on all cores, each with a seed of its own."""
    total = FuzzReport(inputs={name: 0})
    processes = os.cpu_count() or 1
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        started = [
            pool.submit(fuzz, seed=seed + number, seconds=seconds, names=(name,))
            for number in range(processes)
        ]
        for each in started:
            report = each.result()
            total.inputs[name] += report.inputs[name]
            total.findings += report.findings
            total.grown_bytes = max(total.grown_bytes, report.grown_bytes)
    return total


def _fuzz_by_coverage(seed: int, seconds: int) -> list[Finding]:
    if not is_available():
        _say("guided by coverage: skipped, because atheris is not installed")
        return []
    with tempfile.TemporaryDirectory() as directory:
        report = coverage_fuzz(seed=seed, seconds=seconds, directory=Path(directory))
    _say(f"guided by coverage: {report}")
    return report.findings


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # a command's output


if __name__ == "__main__":
    sys.exit(main())
