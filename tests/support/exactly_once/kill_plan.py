"""Planned deaths and stalls of processes, and the proof that they happened, in a directory.

Each plan is a file named after its place. The process that reaches the place renames the file,
which only one process can do, stores in `done` what it observed, and meets its fate.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

#: The environment variable by which a query's processes find their plan.
VARIABLE = "KILL_PLAN"
#: Fates: kill this process; kill all processes of its session (the JVM, and every Python); kill the
#: JVM of the executor that it works for.
PROCESS = "process"
SESSION = "session"
EXECUTOR = "executor"
#: Fail this process with an error; block it until Spark kills it.
FAILURE = "failure"
STALL = "stall"
#: Stop all processes of its session until they receive SIGCONT.
FREEZE = "freeze"
#: Longer than any test waits.
_STALL_SECONDS = 600


class KillPlan:
    """A directory of planned fates."""

    def __init__(self, directory: Path) -> None:
        """Use a directory, which may be empty."""
        self._planned = directory / "planned"
        self._done = directory / "done"
        for each in (self._planned, self._done):
            each.mkdir(parents=True, exist_ok=True)

    @classmethod
    def of_environment(cls) -> KillPlan:
        """Return the plan with which the query was started."""
        return cls(Path(os.environ[VARIABLE]))

    def add(self, places: Iterable[str], fate: str = PROCESS) -> None:
        """Plan a fate for the next process that reaches each of these places."""
        for place in places:
            (self._planned / place).write_text(fate)

    @property
    def left(self) -> list[str]:
        """The places that no process has reached yet."""
        return sorted(file.name for file in self._planned.iterdir())

    @property
    def seen(self) -> dict[str, Any]:
        """What the processes observed at the places they reached, by place."""
        return {
            file.name: json.loads(file.read_text())
            for file in self._done.iterdir()
            if not file.name.startswith(".")
        }

    def reached(self, place: str, look: Callable[[], Any] = lambda: None) -> None:
        """Apply the fate planned for this place, if any; `look` returns what to store first."""
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
    """Send a signal to all processes of a session except this one."""
    for process in session_processes(session):
        if process != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(process, number)


def session_processes(session: int) -> Iterator[int]:
    """Yield the processes of a session."""
    for process in _processes():
        with suppress(ProcessLookupError):
            if os.getsid(process) == session:
                yield process


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
    # This worker's parent is Spark's daemon, whose parent is the executor.
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
