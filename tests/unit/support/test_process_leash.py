"""Brokers do not outlive the test run that started them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]

# A test run of its own that starts a child on a leash, prints the process ids, and waits.
TEST_RUN = """
import pathlib, subprocess, sys
from tests.support.kafka.process_leash import ProcessLeash
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
leash = ProcessLeash()
leash.hold(child.pid, pathlib.Path(sys.argv[1]))
if sys.argv[2] == "release":
    leash.release(child.pid)
print(child.pid, leash._helper.pid, flush=True)
sys.stdin.read()
"""


@contextmanager
def killed_test_run(directory: Path, action: str) -> Iterator[tuple[int, int]]:
    """Kill such a run without warning, and yield handles of its child and of the helper.

    A handle of a process becomes readable when the process ends.
    """
    run = subprocess.Popen(  # noqa: S603  # our own command
        [sys.executable, "-c", TEST_RUN, str(directory), action],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with run:
        assert run.stdout is not None
        handles = [os.pidfd_open(int(process)) for process in run.stdout.readline().split()]
        run.send_signal(signal.SIGKILL)
        run.wait()
    try:
        yield tuple(handles)
    finally:
        for handle in handles:
            os.close(handle)


def ended(handle: int, *, within: float) -> bool:
    return bool(select.select([handle], [], [], within)[0])


def test_a_killed_test_run_takes_its_children_along(tmp_path):
    """SIGKILL on the test run ends its child processes and removes their directories."""
    directory = tmp_path / "with a space"
    directory.mkdir()
    with killed_test_run(directory, "keep") as (child, helper):
        assert ended(child, within=30)
        assert ended(helper, within=30)
    assert not directory.exists()


def test_a_released_process_is_left_alone(tmp_path):
    """A released process is not killed, since its id may belong to another process by then."""
    with killed_test_run(tmp_path / "nothing", "release") as (child, helper):
        try:
            assert ended(helper, within=30)
            assert not ended(child, within=0)
        finally:
            signal.pidfd_send_signal(child, signal.SIGKILL)
