"""Kill child processes when the test run dies, however it dies.

Normally a broker is stopped by its own handle. If the test run itself is killed, no cleanup code
runs, so a small helper process holds the reading end of a pipe. The kernel closes the pipe when the
test run ends; the helper then kills the registered process groups and removes their directories. A
parent-death signal (PR_SET_PDEATHSIG) would be shorter but is tied to the *thread* that started the
child, and tests restart brokers from threads of their own.

This file is also the helper's program; it uses only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class ProcessLeash:
    """The test run's side of the pipe."""

    def __init__(self) -> None:
        """Start the helper, in its own session so that Ctrl-C does not reach it."""
        self._lock = threading.Lock()
        self._helper = subprocess.Popen(  # noqa: S603  # our own command
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def hold(self, process_group: int, directory: Path) -> None:
        """Register a process group to kill, and a directory to remove, when the test run dies."""
        self._tell(f"hold {process_group} {directory}")

    def release(self, process_group: int) -> None:
        """Unregister a process group that has ended; its directory remains registered."""
        self._tell(f"release {process_group}")

    def close(self) -> None:
        """End the helper, which kills and removes everything that is still registered."""
        self._helper.communicate()

    def _tell(self, line: str) -> None:
        with self._lock:
            assert self._helper.stdin is not None
            self._helper.stdin.write(line + "\n")
            self._helper.stdin.flush()


def watch(lines: Iterable[str]) -> None:
    """Read registrations to their end, then kill and remove what is still registered."""
    process_groups: set[int] = set()
    directories: set[str] = set()
    for line in lines:
        action, process_group, *directory = line.rstrip("\n").split(" ", 2)
        if action == "hold":
            process_groups.add(int(process_group))
            directories.update(directory)
        else:
            process_groups.discard(int(process_group))
    for process_group in process_groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process_group, signal.SIGKILL)
    for path in directories:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    watch(sys.stdin)
