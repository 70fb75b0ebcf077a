"""The examples of testing a Spark job, run as a user would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize(("example", "tests"), [("spark_job", 3), ("quickstart", 1)])
def test_the_example_passes_with_the_fixtures_of_the_package(example, tests):
    """Plain pytest in the example's directory finds the fixtures through the entry point."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "."],
        cwd=EXAMPLES / example,
        env={
            "SPARK_LOCAL_IP": "127.0.0.1",
            # Without PYTHONPATH, only the installed package provides the fixtures.
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert f"{tests} passed" in done.stdout, done.stdout + done.stderr
    assert 0 == done.returncode
