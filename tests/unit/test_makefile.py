"""How `make test` handles the results of its parts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"
#: A stand-in for Python that prints which part it runs, and exits as `exit_codes` says.
PYTEST = """#!/bin/sh
case "$*" in
*slow_half*) echo tests/slow.py; exit ;;
*prepared_release*|*quick_spark*) exit ;;
*"not (not slow"*"and not soak"*tests/slow.py*) part=3 ;;
*--ignore=tests/unit/network*) part=2 ;;
*tests/unit/network*) part=1 ;;
esac
echo "part $part ran${PYTHONDEVMODE:+ in development mode}"
exit "$(sed -n "${part}p" exit_codes)"
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
    ("codes", "said"),
    [
        ((0, 0, 0), ("passed", "passed", "passed")),
        ((1, 0, 0), ("failed (exit code 1)", "passed", "passed")),
        ((0, 3, 0), ("passed", "failed (exit code 3)", "passed")),
        ((0, 2, 5), ("passed", "failed (exit code 2)", "failed (exit code 5)")),
    ],
)
def test_all_parts_run_and_are_reported(project, codes, said):
    """Each part runs whatever the results of those before it, and `make` fails if one fails."""
    (project / "exit_codes").write_text("".join(f"{code}\n" for code in codes))
    make = subprocess.run(  # noqa: S603  our own Makefile
        [shutil.which("make") or "make", "test"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert [
        "Tests, 1 of 3: fast tests with event loops, sockets or files, in development mode",
        "part 1 ran in development mode",
        "Tests, 2 of 3: the other fast tests",
        "part 2 ran",
        "Tests, 3 of 3: Spark, real Kafka and slow tests",
        "part 3 ran",
        f"Tests, 1 of 3: {said[0]}",
        f"Tests, 2 of 3: {said[1]}",
        f"Tests, 3 of 3: {said[2]}",
    ] == make.stdout.splitlines()
    assert any(codes) == bool(make.returncode)
