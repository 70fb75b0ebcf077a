"""The tests of records with an allocator that checks the bytes before and after each block."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flakes import FAST


@pytest.mark.slow
@pytest.mark.soak
def test_compiled_loops_stay_within_their_memory():
    """Python ends with a fatal error when a block is freed beside which something was written."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", str(Path(__file__).parent)),
        *("-m", FAST, "-p", "no:cacheprovider"),
    ]
    done = subprocess.run(  # noqa: S603  our own interpreter
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
        env=os.environ | {"PYTHONMALLOC": "debug"},
    )
    assert 0 == done.returncode, (done.stdout + done.stderr)[-5000:]
