"""Brokers do not outlive the test run that started them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

# A test run of its own: starts a child on a leash, says that it has done so, and waits.
TEST_RUN = """
import pathlib, subprocess, sys
from tests.support.process_leash import ProcessLeash
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
leash = ProcessLeash()
leash.hold(child.pid, pathlib.Path(sys.argv[1]))
if sys.argv[2] == "release":
    leash.release(child.pid)
print(child.pid, leash._helper.pid, flush=True)
sys.stdin.read()
"""


def killed_test_run(directory: Path, action: str) -> int:
    """Kill such a run without warning; give its child's id once the helper has done its work."""
    run = subprocess.Popen(  # noqa: S603  # our own command
        [sys.executable, "-c", TEST_RUN, str(directory), action],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with run:
        assert run.stdout is not None
        child, helper = map(int, run.stdout.readline().split())
        # The helper is not our child: a handle of its own tells when it has ended.
        helper_handle = os.pidfd_open(helper)
        run.send_signal(signal.SIGKILL)
        run.wait()
    try:
        assert [helper_handle] == wait_readable(helper_handle)
    finally:
        os.close(helper_handle)
    return child


def wait_readable(handle: int) -> list[int]:
    return select.select([handle], [], [], 30)[0]


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_killed_test_run_takes_its_children_along(tmp_path):
    """SIGKILL on the test run ends the processes it holds and removes their directories."""
    directory = tmp_path / "with a space"
    directory.mkdir()
    assert not is_alive(killed_test_run(directory, "keep"))
    assert not directory.exists()


def test_a_released_process_is_left_alone(tmp_path):
    """A process that was released is not killed, since its number may be another's by then."""
    child = killed_test_run(tmp_path / "nothing", "release")
    try:
        assert is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)
