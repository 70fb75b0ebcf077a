"""The demo, with fewer rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_finds_every_row_again_and_ends_by_itself():
    """The demo says that all rows are there, and its exit code says so too."""
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(DEMO), "--rows", "5000", "--partitions", "3"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    assert "found 5,000 of 5,000 rows; the report says 5,000" in done.stdout
    assert "partition 2: " in done.stdout
