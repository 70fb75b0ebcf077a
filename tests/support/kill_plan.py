"""Where processes are to die, and proof that they did: a directory that outlives them.

Each planned kill is a file named by its place. Whoever gets to the place takes the file away, which
only one process can, leaves in `done` what it saw, and is dead: by SIGKILL, alone or with the whole
session of the query (the JVM, and all Python processes).
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Where a query's processes find their plan.
VARIABLE = "KILL_PLAN"
#: What dies at a place.
PROCESS = "process"
SESSION = "session"


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

    def add(self, places: Iterable[str], victim: str = PROCESS) -> None:
        """Have the next process die that gets to each of these places."""
        for place in places:
            (self._planned / place).write_text(victim)

    @property
    def left(self) -> list[str]:
        """The places where nobody has died yet."""
        return sorted(file.name for file in self._planned.iterdir())

    @property
    def seen(self) -> dict[str, Any]:
        """What those who died saw, by their places."""
        return {file.name: json.loads(file.read_text()) for file in self._done.iterdir()}

    def reached(self, place: str, look: Callable[[], Any] = lambda: None) -> None:
        """Die, if that is planned for this place; `look` tells what is to be seen right before."""
        planned = self._planned / place
        taken = self._done / f".{planned.name}.{os.getpid()}"
        try:
            planned.rename(taken)
        except FileNotFoundError:
            return
        victim = taken.read_text()
        taken.write_text(json.dumps(look()))
        taken.rename(self._done / planned.name)
        if victim == SESSION:
            _kill_session()
        os.kill(os.getpid(), signal.SIGKILL)


def _kill_session() -> None:
    """Kill all processes of this one's session, itself last."""
    session = os.getsid(0)
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            try:
                if os.getsid(int(process.name)) == session:
                    os.kill(int(process.name), signal.SIGKILL)
            except ProcessLookupError:
                continue
