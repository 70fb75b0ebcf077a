"""Skips that are failures under CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
SKIPPING = """
import pytest
from tests.support.skips import ToleratedSkip

@pytest.fixture
def missing():
    pytest.skip("no fixture")

def test_by_call():
    pytest.skip("no call")

def test_by_fixture(missing):
    pass

@pytest.mark.skipif(True, reason="no mark")
def test_by_mark():
    pass

@pytest.mark.xfail(strict=True)
def test_that_is_known_to_fail():
    assert False

def test_tolerated():
    raise ToleratedSkip("not everywhere")
"""


@pytest.mark.parametrize(
    ("ci", "code", "summary"),
    [
        ("true", 1, "1 failed, 1 skipped, 1 xfailed, 2 errors"),
        ("", 0, "4 skipped, 1 xfailed"),
    ],
)
def test_a_skip_is_a_failure_under_ci_unless_it_is_tolerated(tmp_path, ci, code, summary):
    """However a test is skipped, the reason is printed."""
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    ran = subprocess.run(  # noqa: S603  our own interpreter
        [
            *(sys.executable, "-m", "pytest", "-q", "-ra", "-p", "tests.support.skips"),
            *("-p", "no:cacheprovider", "-p", "no:randomly", str(tmp_path)),
        ],
        cwd=REPOSITORY,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (code, summary) == (ran.returncode, ran.stdout.splitlines()[-1].partition(" in ")[0])
    for reason in ("no call", "no fixture", "no mark", "not everywhere"):
        assert reason in ran.stdout
