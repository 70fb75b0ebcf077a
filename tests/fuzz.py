"""`make fuzz`: feed random bytes to everything that reads from the network, from a seed.

First with purely random bytes; then, if atheris is installed, for the same time with bytes guided
by coverage.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.support.fuzzing.coverage_fuzz import coverage_fuzz, is_available
from tests.support.fuzzing.fuzz import fuzz, keep

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
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    _say(f"seed {seed}")
    report = fuzz(seed=seed, seconds=options.seconds)
    findings = list(report.findings)
    _say(str(report))
    if is_available():
        with tempfile.TemporaryDirectory() as directory:
            led = coverage_fuzz(seed=seed, seconds=options.seconds, directory=Path(directory))
        findings += led.findings
        _say(f"guided by coverage: {led}")
    else:
        _say("guided by coverage: skipped, because atheris is not installed")
    for finding in findings:
        _say(f"{finding}\n  stored as {keep(finding, FINDINGS)}")
    if report.grown_bytes > MOST_GROWN_BYTES:
        _say("memory leak: see the growth above")
        return 1
    return 1 if findings else 0


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # a command's output


if __name__ == "__main__":
    sys.exit(main())
