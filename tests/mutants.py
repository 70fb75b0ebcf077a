"""`make mutants`: change the code in random places and check that a test fails.

Each mutant of a random sample is written to a copy of the repository, where the tests that cover
its line are run. If they all pass, the mutant has survived: either a test is missing, or the change
makes no difference; then `tests/equivalent_mutants.txt` must list it with the reason.

The first run measures which lines each fast test covers, and caches that in `.cache/mutants` until
the code or the tests change. With `--tests`, only the tests of some folders and files are measured
and run, which takes less time: what survives these may be killed by others.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest

from tests.support.mutation import (
    Mutant,
    TestsByLine,
    failed_test,
    mutable_modules,
    read_mutants,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "mutants"
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.txt"
FAST = "not slow and not kafka and not spark and not soak"
#: The most specific tests run first, on their own: they kill most mutants within seconds.
STAGES = (30, 600)
#: A mutant that loops forever is killed by this timeout, which is far longer than any test takes.
TEST_TIMEOUT_S = 90
TEST_TIMED_OUT = "Timeout ("
#: The same for code outside of tests, such as an import.
TIMEOUT_S = 300
TIMEOUT_PER_TEST_S = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for a mutant: the test that killed it, "time-out", or None if it survived."""

    mutant: Mutant
    killed_by: str | None
    tests: int


def main() -> int:
    """Run a sample; return 1 if too few mutants were killed, or if a survivor is not explained."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=400, help="number of mutants (default: 400)")
    parser.add_argument("--seed", type=int, default=None, help="seed (default: random)")
    parser.add_argument("--only", nargs="+", default=[], help="mutate only paths with one of these")
    parser.add_argument(
        "--tests",
        nargs="+",
        default=[],
        help="run only the tests in these folders and files (default: all)",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel jobs")
    parser.add_argument(
        "--at-least", type=float, default=95.0, help="required percentage of killed mutants"
    )
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    _say(f"seed {seed}")
    mutants = _sample(mutable_modules(ROOT, *options.only), options.sample, seed)
    tests = _tests_by_line(options.tests)
    verdicts = _run(mutants, tests, options.jobs)
    return _report(verdicts, options.at_least)


def _sample(modules: Sequence[Path], sample: int, seed: int) -> list[Mutant]:
    listed = subprocess.run(
        [
            ROOT / "scripts" / "list_mutants.sh",
            sys.prefix,
            *("--sample", str(sample), "--seed", str(seed)),
            *map(str, modules),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return read_mutants(listed.stdout.splitlines())


def _tests_by_line(chosen: Sequence[str]) -> TestsByLine:
    """Return which tests run which lines, measured once for each state of the repository."""
    data_file = CACHE / f"coverage-{_fingerprint(chosen)}"
    if not data_file.exists():
        _say("measuring which tests run which lines (takes some minutes)")
        shutil.rmtree(CACHE, ignore_errors=True)
        CACHE.mkdir(parents=True)
        measured = CACHE / "measured"
        command = [sys.executable, "-m", "pytest", "-q", "-m", FAST, "-n", "auto"]
        command += ["--maxprocesses", "8", "--cov", "--cov-context=test", "--cov-report=", *chosen]
        subprocess.run(
            command, cwd=ROOT, env={**os.environ, "COVERAGE_FILE": str(measured)}, check=True
        )
        measured.rename(data_file)
    return TestsByLine.from_coverage(data_file, ROOT)


def _fingerprint(chosen: Sequence[str]) -> str:
    digest = hashlib.sha256("\n".join(chosen).encode())
    for path in sorted([*ROOT.glob("spark_kafka_sink/**/*.py"), *ROOT.glob("tests/**/*.py")]):
        digest.update(str(path.relative_to(ROOT)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _run(mutants: Sequence[Mutant], tests: TestsByLine, jobs: int) -> list[Verdict]:
    verdicts = []
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(jobs) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copies.put(_compiled(_copy(Path(directory) / f"copy-{number}")))
        try_one = pool.map(lambda mutant: _try(mutant, tests.for_mutant(mutant), copies), mutants)
        for number, verdict in enumerate(try_one, 1):
            verdicts.append(verdict)
            outcome = f"killed by {verdict.killed_by}" if verdict.killed_by else "SURVIVED"
            _say(f"{number}/{len(mutants)} {outcome} ({verdict.tests} tests)\n{verdict.mutant}")
        _check_kills(verdicts, copies.get())
    return verdicts


def _copy(target: Path) -> Path:
    listed = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607  # the git of the PATH
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def _compiled(copy: Path) -> Path:
    """Compile the tests and the code of a copy, which saves a third of the time of most runs.

    The bytecode of a mutated module is not used, since the module is newer.
    """
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": ""},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return copy


def _try(mutant: Mutant, tests: Sequence[str], copies: SimpleQueue[Path]) -> Verdict:
    copy = copies.get()
    module = copy / mutant.path
    original = module.read_text(encoding="utf-8")
    try:
        module.write_text(mutant.source, encoding="utf-8")
        done = 0
        for end in STAGES:
            stage = tests[done:end]
            if stage and (killer := _killer(stage, copy)) is not None:
                if "::" not in killer:
                    module.write_text(original, encoding="utf-8")
                    _check_passes(stage, copy, killer)
                return Verdict(mutant, killer, done + len(stage))
            done += len(stage)
        return Verdict(mutant, None, done)
    finally:
        module.write_text(original, encoding="utf-8")
        copies.put(copy)


def _check_passes(tests: Sequence[str], copy: Path, killer: str) -> None:
    """Run tests that named no failure again without the mutant, which must have been the reason."""
    found = _killer(tests, copy)
    if found is not None:
        raise SystemExit(f"After {killer}, the same tests end without the mutant by {found}.")


def _killer(tests: Sequence[str], copy: Path) -> str | None:
    """Return the first of the tests that fails in a copy, or None if they all pass."""
    code, output = _pytest([*tests], copy, "-x")
    if code is None or TEST_TIMED_OUT in output:
        return "time-out"
    if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    return failed_test(output) or f"pytest, with exit code {code}"


def _pytest(tests: Sequence[str], copy: Path, *flags: str) -> tuple[int | None, str]:
    """Run tests in a copy; the returned exit code is None after a timeout."""
    chosen = copy / "chosen_tests.txt"
    chosen.write_text("\n".join(tests) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:randomly", "--tb=no"]
    # Other parameters of a chosen test may need a real Kafka.
    command += ["-m", FAST]
    command += ["-o", f"faulthandler_timeout={TEST_TIMEOUT_S}"]
    command += ["-o", "faulthandler_exit_on_timeout=true"]
    with subprocess.Popen(
        [*command, "-p", "no:cacheprovider", *flags, f"@{chosen}"],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S + TIMEOUT_PER_TEST_S * len(tests))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return None, process.communicate()[0]
    return process.returncode, output


def _check_kills(verdicts: Sequence[Verdict], copy: Path) -> None:
    """Run every test that killed a mutant again without one; a test that fails now is flaky."""
    killers = sorted({v.killed_by for v in verdicts if v.killed_by and "::" in v.killed_by})
    if not killers:
        return
    code, output = _pytest(killers, copy)
    if code != 0:
        _say(output)
        raise SystemExit("Tests that killed mutants also fail without one: see above.")


def _report(verdicts: Sequence[Verdict], at_least: float) -> int:
    explained = _explained()
    survivors = [verdict.mutant for verdict in verdicts if verdict.killed_by is None]
    missing = [mutant for mutant in survivors if _key(mutant) not in explained]
    share = 100 * (len(verdicts) - len(survivors)) / max(1, len(verdicts))
    _say(
        f"{len(verdicts)} mutants, {share:.1f} % killed, {len(survivors)} survived, "
        f"{len(missing)} of these are not explained in {EQUIVALENT.name}"
    )
    for mutant in missing:
        _say(str(mutant))
    return 0 if share >= at_least and not missing else 1


def _key(mutant: Mutant) -> str:
    return f"{mutant.path}: {mutant.before} => {mutant.after}"


def _explained() -> set[str]:
    """Return the mutants that are known to make no difference: the lines that are not comments."""
    if not EQUIVALENT.exists():
        return set()
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # a command's output


if __name__ == "__main__":
    sys.exit(main())
