"""Test the wheel in dist/ with every supported Python and PySpark: run by `make matrix`.

    .venv-dist/bin/python scripts/matrix.py [--python 3.12] [--pyspark 4.1 --pyspark 4.3]

Each combination gets an environment in .cache/matrix with the wheel, its extra `spark`, pytest and
the newest release of that PySpark, and runs tests/matrix_smoke.py there with the embedded broker.
A Python is one of the PATH, one of pyenv, or one that uv downloads. A combination that could not be
tested is named and counts as a failure. The last lines are the table for the documentation.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / ".cache" / "matrix"
SMOKE = ROOT / "tests" / "matrix_smoke.py"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PYSPARKS = ("4.0", "4.1", "4.2", "4.3")
UV = str(Path(sys.executable).with_name("uv"))
#: How long the tests of one combination may take, in seconds.
TIMEOUT = 900
#: What Spark reports of a worker that has not started in time.
LATE_WORKER = "Python worker failed to connect back"
COUNTS = re.compile(r"\b\d+ (passed|failed|skipped|errors?)\b")
VERSIONS = "import platform, pyspark; print(platform.python_version(), pyspark.__version__)"


class Outcome(NamedTuple):
    """What was tested of one combination, and how it ended."""

    python: str
    pyspark: str
    result: str
    passed: bool


def find_python(version: str) -> str | None:
    """Return the path of a Python of this version; None if there is none to be had."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [
        shutil.which(f"python{version}"),
        *map(str, sorted(pyenv.glob(f"{version}.*/bin/python"))),
    ]
    for python in filter(None, found):
        # A shim of pyenv is there for versions that it does not run.
        if subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0:
            return python
    print(f"matrix: no Python {version} on the PATH or in pyenv: uv looks for one", flush=True)
    subprocess.run([UV, "python", "install", "--no-config", version], check=False)
    managed = subprocess.run(
        [UV, "python", "find", "--no-config", version], capture_output=True, text=True, check=False
    )
    return managed.stdout.strip() or None


def install(python: str, version: str, pyspark: str, wheel: Path) -> Path:
    """Create the environment of a combination, and return its interpreter."""
    environment = ENVIRONMENTS / f"python{version}-pyspark{pyspark}"
    subprocess.run(
        [UV, "venv", "--no-config", "--quiet", "--clear", "--python", python, environment],
        check=True,
    )
    interpreter = environment / "bin" / "python"
    # Compiled, or the first worker of each kind compiles PySpark, and Spark does not wait for that:
    # a stream's worker has ten seconds to start, which no setting of Spark changes.
    subprocess.run(
        [
            *(UV, "pip", "install", "--no-config", "--quiet", "--compile-bytecode"),
            *("--python", interpreter),
            *(f"spark-kafka-sink[spark] @ {wheel.as_uri()}", f"pyspark=={pyspark}.*", "pytest"),
        ],
        check=True,
    )
    return interpreter


def test(interpreter: Path) -> tuple[int, str]:
    """Run the smoke test, and return pytest's exit code and its counts.

    Spark gives a worker of a stream ten seconds to start, and has no setting for that. Tests that
    failed because a busy machine took longer are run a second time, and the result says so.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(SMOKE, Path(folder) / "test_smoke.py")
        (Path(folder) / "pytest.ini").write_text("[pytest]\n")
        code, output = pytest(interpreter, folder)
        counts = counts_of(output)
        if code and LATE_WORKER in output:
            code, output = pytest(interpreter, folder, "--last-failed")
            counts += f"; failed ones again, since a worker was late: {counts_of(output)}"
    return code, counts


def pytest(interpreter: Path, folder: str, *arguments: str) -> tuple[int, str]:
    """Run pytest in a folder, print what it says if it fails, and return its code and output."""
    python = str(interpreter)
    environ = os.environ | {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    environ.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-rfE", *arguments, "test_smoke.py"],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode:
        print(done.stdout)
    return done.returncode, done.stdout


def counts_of(output: str) -> str:
    """Return the line with pytest's counts, without the time."""
    # The last line may be one of Spark's.
    lines = [line for line in output.splitlines() if COUNTS.search(line)]
    return re.sub(r" in [\d.]+s.*", "", lines[-1]) if lines else "pytest printed no result"


def run(version: str, pyspark: str, wheel: Path) -> Outcome:
    """Install and test one combination."""
    python = find_python(version)
    if python is None:
        return Outcome(version, pyspark, "not tested: no such Python was found", passed=False)
    try:
        interpreter = install(python, version, pyspark, wheel)
    except subprocess.CalledProcessError:
        return Outcome(version, pyspark, "not tested: it could not be installed", passed=False)
    found = subprocess.run(
        [interpreter, "-c", VERSIONS], capture_output=True, text=True, check=True
    )
    exact_python, exact_pyspark = found.stdout.split()
    try:
        code, counts = test(interpreter)
    except subprocess.TimeoutExpired:
        return Outcome(exact_python, exact_pyspark, f"not done after {TIMEOUT} s", passed=False)
    return Outcome(exact_python, exact_pyspark, counts, passed=code == 0)


def main() -> int:
    """Run the chosen combinations and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", choices=PYTHONS)
    parser.add_argument("--pyspark", action="append", choices=PYSPARKS)
    chosen = parser.parse_args()
    (wheel,) = (ROOT / "dist").glob("*.whl")
    outcomes = []
    for version in chosen.python or PYTHONS:
        for pyspark in chosen.pyspark or PYSPARKS:
            print(f"matrix: Python {version}, PySpark {pyspark}", flush=True)
            outcomes.append(run(version, pyspark, wheel))
            print(f"matrix: {outcomes[-1].result}", flush=True)
    print("\n| Python | PySpark | result |\n|---|---|---|")
    for outcome in outcomes:
        print(f"| {outcome.python} | {outcome.pyspark} | {outcome.result} |")
    failed = [outcome for outcome in outcomes if not outcome.passed]
    print(f"\nmatrix: {len(outcomes) - len(failed)} of {len(outcomes)} combinations passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
