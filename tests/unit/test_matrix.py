"""The script that tests the wheel with every Python and PySpark."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.scripts import load_script

matrix = load_script("matrix")

ONCE = """
import pathlib

def test_a_worker():
    seen = pathlib.Path("seen")
    if not seen.exists():
        seen.touch()
        raise RuntimeError("{reason}")

def test_another():
    pass
"""


def test_tests_whose_worker_was_late_are_run_again(monkeypatch, tmp_path):
    """A test that failed because a worker took too long to start has a second try, named so."""
    smoke = tmp_path / "smoke.py"
    smoke.write_text(ONCE.format(reason="Python worker failed to connect back."))
    monkeypatch.setattr(matrix, "SMOKE", smoke)

    assert (
        0,
        "1 failed, 1 passed; failed ones again, since a worker was late: 1 passed, 1 deselected",
    ) == matrix.test(Path(sys.executable))


def test_other_failures_have_no_second_try(monkeypatch, tmp_path):
    """What fails for another reason fails the combination."""
    smoke = tmp_path / "smoke.py"
    smoke.write_text(ONCE.format(reason="rows are missing"))
    monkeypatch.setattr(matrix, "SMOKE", smoke)

    assert (1, "1 failed, 1 passed") == matrix.test(Path(sys.executable))
