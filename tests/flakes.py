"""`make flakes`: run the fast tests while their processes stop and continue at random moments.

A test that fails here, but not otherwise, depends on how fast the machine is. What pytest needs
itself, such as its workers, stops as well, and so do the processes that tests start. The moments
and the order of the tests follow from the seed; what happens in between does not.

All other arguments are pytest's. Without files or folders among them, all unit tests run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from tests.support.faults.pauses import Pauses

FAST = "not slow and not kafka and not spark and not soak"
UNIT_TESTS = "tests/unit"
#: Seconds between looks at what is due, and until pytest is killed after an interruption.
LOOK_SECONDS = 0.05
END_SECONDS = 60


def main() -> int:
    """Run the passes; return the exit code of the first one that failed, or 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.flakes", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first pass (default: random)")
    parser.add_argument("--passes", type=int, default=1, help="how often to run (default: 1)")
    parser.add_argument(
        "--seconds", type=float, default=0, help="begin more passes for so long (default: 0)"
    )
    options, arguments = parser.parse_known_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)
    began = time.monotonic()
    code = done = 0
    while done < options.passes or time.monotonic() - began < options.seconds:
        code = run(seed + done, arguments) or code
        done += 1
    return code


def run(seed: int, arguments: list[str]) -> int:
    """Run pytest once, with pauses, and return its exit code."""
    with tempfile.TemporaryDirectory() as cache:
        with (
            subprocess.Popen(
                command(seed, cache, arguments), stdin=subprocess.DEVNULL, process_group=0
            ) as pytest,
            Pauses(pytest.pid, seed) as pauses,
        ):
            try:
                while pytest.poll() is None:
                    pauses.step()
                    time.sleep(LOOK_SECONDS)
            except BaseException:
                _end(pytest)
                raise
        failed = _failed(Path(cache))
    _say(f"seed {seed}: {pauses.count} pauses, exit code {pytest.returncode}")
    for test in failed:
        _say(f"  failed: {test}")
    return pytest.returncode


def command(seed: int, cache: str, arguments: list[str]) -> list[str]:
    """Return the command that runs pytest; later options override earlier ones."""
    chosen = [word for word in arguments if Path(word.partition("::")[0]).exists()]
    return [
        *(sys.executable, "-m", "pytest", "-m", FAST, "-n", "2", "--dist", "worksteal"),
        *(f"--randomly-seed={seed}", "--hypothesis-profile=quick"),
        *("-o", f"cache_dir={cache}", *arguments),
        *([] if chosen else [UNIT_TESTS]),
    ]


def _end(pytest: subprocess.Popen[bytes]) -> None:
    """Interrupt pytest as Ctrl-C would; kill it and its workers if it does not end."""
    os.killpg(pytest.pid, signal.SIGCONT)
    os.killpg(pytest.pid, signal.SIGINT)
    try:
        pytest.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(pytest.pid, signal.SIGKILL)


def _failed(cache: Path) -> list[str]:
    """Return the tests that failed, from the cache of pytest."""
    file = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else []


def _exit(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # a command's output


if __name__ == "__main__":
    sys.exit(main())
