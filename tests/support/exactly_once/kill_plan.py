"""Where processes are to die or to stall, and proof that they did: a directory that outlives them.

Each plan is a file named by its place. Whoever gets to the place takes the file away, which only
one process can, leaves in `done` what it saw, and meets its fate.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

#: Where a query's processes find their plan.
VARIABLE = "KILL_PLAN"
#: Fates: this process is killed; so are all processes of its session (the JVM, and every Python);
#: so is the executor's JVM that it works for.
PROCESS = "process"
SESSION = "session"
EXECUTOR = "executor"
#: This process fails with an error; or does nothing more, until Spark kills it.
FAILURE = "failure"
STALL = "stall"
#: All processes of its session are stopped, until somebody sends them SIGCONT.
FREEZE = "freeze"
#: Longer than any test waits.
_STALL_SECONDS = 600


class KillPlan:
    """See the module."""

    def __init__(self, directory: Path) -> None:
        """Take a directory that may be empty."""
        self._planned = directory / "planned"
        self._done = directory / "done"
        for each in (self._planned, self._done):
            each.mkdir(parents=True, exist_ok=True)

    @classmethod
    def of_environment(cls) -> KillPlan:
        """Give the plan that the query was started with."""
        return cls(Path(os.environ[VARIABLE]))

    def add(self, places: Iterable[str], fate: str = PROCESS) -> None:
        """Have the next process that gets to each of these places meet its fate."""
        for place in places:
            (self._planned / place).write_text(fate)

    @property
    def left(self) -> list[str]:
        """The places where nobody has got to yet."""
        return sorted(file.name for file in self._planned.iterdir())

    @property
    def seen(self) -> dict[str, Any]:
        """What those who got there saw, by their places."""
        return {
            file.name: json.loads(file.read_text())
            for file in self._done.iterdir()
            if not file.name.startswith(".")
        }

    def reached(self, place: str, look: Callable[[], Any] = lambda: None) -> None:
        """Meet the fate planned for this place, if any; `look` tells what is seen right before."""
        planned = self._planned / place
        taken = self._done / f".{planned.name}.{os.getpid()}"
        try:
            planned.rename(taken)
        except FileNotFoundError:
            return
        fate = taken.read_text()
        taken.write_text(json.dumps(look()))
        taken.rename(self._done / planned.name)
        _FATES[fate]()


def signal_session(session: int, number: int) -> None:
    """Send a signal to all processes of a session, but for this one."""
    for process in _processes():
        if process != os.getpid():
            try:
                if os.getsid(process) == session:
                    os.kill(process, number)
            except ProcessLookupError:
                continue


def _processes() -> Iterator[int]:
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            yield int(process.name)


def _kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_session() -> None:
    signal_session(os.getsid(0), signal.SIGKILL)
    _kill_process()


def _kill_executor() -> None:
    # A task's worker is a child of the daemon, and this one of the executor.
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    [parent] = [line.split()[1] for line in status.splitlines() if line.startswith("PPid:")]
    assert "java" == Path(f"/proc/{parent}/comm").read_text().strip()
    os.kill(int(parent), signal.SIGKILL)
    _stall()


def _fail() -> None:
    raise RuntimeError("a failure that was planned")


def _stall() -> None:
    time.sleep(_STALL_SECONDS)
    raise TimeoutError(f"nobody has ended this in {_STALL_SECONDS} s")


def _freeze_session() -> None:
    signal_session(os.getsid(0), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)


_FATES = {
    PROCESS: _kill_process,
    SESSION: _kill_session,
    EXECUTOR: _kill_executor,
    FAILURE: _fail,
    STALL: _stall,
    FREEZE: _freeze_session,
}
