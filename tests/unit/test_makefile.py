"""How `make test` handles the results of its two halves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"
#: A stand-in for Python that prints which half it runs, and exits as `exit_codes` says.
PYTEST = """#!/bin/sh
case "$*" in
*"not (not slow"*) half=2 ;;
*) half=1 ;;
esac
echo "half $half ran"
exit "$(sed -n "${half}p" exit_codes)"
"""


@pytest.fixture
def project(tmp_path):
    """Create the files that the Makefile needs, with stand-ins for Python and the scripts."""
    shutil.copy(MAKEFILE, tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "scripts").mkdir()
    for name in ("pyproject.toml", "requirements.lock"):
        (tmp_path / name).touch()
    scripts = [f"scripts/{script.name}" for script in (MAKEFILE.parent / "scripts").glob("*.sh")]
    for name in (*scripts, ".venv/bin/python"):
        (tmp_path / name).write_text(PYTEST if name == ".venv/bin/python" else "#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".venv" / ".installed").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (0, 0, ("passed", "passed")),
        (1, 0, ("failed (exit code 1)", "passed")),
        (0, 3, ("passed", "failed (exit code 3)")),
        (1, 5, ("failed (exit code 1)", "failed (exit code 5)")),
    ],
)
def test_both_halves_run_and_are_reported(project, first, second, said):
    """The second half runs whatever the result of the first, and `make` fails if either fails."""
    (project / "exit_codes").write_text(f"{first}\n{second}\n")
    make = subprocess.run(  # noqa: S603  our own Makefile
        [shutil.which("make") or "make", "test"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert [
        "Tests, 1 of 2: fast tests, without Java and Kafka",
        "half 1 ran",
        "Tests, 2 of 2: Spark, real Kafka and slow tests",
        "half 2 ran",
        f"Tests, 1 of 2: {said[0]}",
        f"Tests, 2 of 2: {said[1]}",
    ] == make.stdout.splitlines()
    assert bool(first or second) == bool(make.returncode)
