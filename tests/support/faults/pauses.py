"""Pauses of processes, as a busy machine makes them: the processes stop, and continue later.

A process stands still for one to three seconds at any moment, also while the others go on. A test
that fails then depends on how fast the machine is. When each process is stopped follows from a
seed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType

#: Seconds from the end of a pause of a process to its next one, and the seconds of a pause.
BETWEEN = (2.0, 5.0)
PAUSE = (1.0, 3.5)
#: Seconds from a pause of all processes at once to the next one.
BETWEEN_ALL = (9.0, 21.0)
#: Seconds from one look for new processes to the next, which takes some milliseconds.
LOOK = 0.5


@dataclass(frozen=True, slots=True)
class Switch:
    """The moment at which a process, or all of them, stop or continue."""

    at: float
    stop: bool


def plan(seed: int, name: str) -> Iterator[Switch]:
    """Return when a process stops and continues, in seconds from its first appearance.

    The names are those of `Pauses`: "all" for the pauses of all processes at once, and the number
    of a process in order of appearance.
    """
    chance = random.Random(f"{seed} {name}")
    between = BETWEEN_ALL if name == "all" else BETWEEN
    at = 0.0
    while True:
        at += chance.uniform(*between)
        yield Switch(at, stop=True)
        at += chance.uniform(*PAUSE)
        yield Switch(at, stop=False)


@dataclass(frozen=True, slots=True)
class Relation:
    """The parent and the process group of a process."""

    parent: int
    group: int


def processes() -> dict[int, Relation]:
    """Return the processes of this machine that have not ended."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        # A process may end at any moment.
        with suppress(FileNotFoundError, ProcessLookupError):
            status = (directory / "stat").read_text(encoding="utf-8", errors="replace")
            # The name, in parentheses, may contain anything.
            state, parent, group = status.rpartition(")")[2].split()[:3]
            if state not in "ZX":
                found[int(directory.name)] = Relation(int(parent), int(group))
    return found


def family(root: int, found: Mapping[int, Relation]) -> set[int]:
    """Return the processes of the group of a process, and everything that these have started."""
    members = {pid for pid, relation in found.items() if relation.group == root}
    while grown := {pid for pid, relation in found.items() if relation.parent in members} - members:
        members |= grown
    return members


class Pauses:
    """Stops and continues the leader of a process group, its group and all their descendants.

    `step` does what is due, and is called again and again. As a context manager, it lets all
    processes continue in the end.
    """

    def __init__(self, root: int, seed: int) -> None:
        """Prepare the pauses of the group of a process, which must lead it."""
        self.count = 0
        self._root = root
        self._seed = seed
        self._appeared = 0
        self._next_look = 0.0
        self._members: dict[int, _Member] = {}
        self._all = _Timeline(plan(seed, "all"), time.monotonic())

    def __enter__(self) -> Self:
        """Do nothing yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Continue all processes."""
        self._signal(signal.SIGCONT, self._members)
        for member in self._members.values():
            os.close(member.handle)
        self._members.clear()

    def step(self) -> None:
        """Look for new processes, and stop and continue what is due."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK
            self._look(now)
        for pid, member in list(self._members.items()):
            self._switch(member.timeline, now, [pid])
        self._switch(self._all, now, self._members)

    def _look(self, now: float) -> None:
        for pid in sorted(family(self._root, processes()) - self._members.keys()):
            # A handle, unlike a number, never refers to a later process.
            with suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                timeline = _Timeline(plan(self._seed, str(self._appeared)), now)
                self._members[pid] = _Member(handle, timeline)
                self._appeared += 1

    def _switch(self, timeline: _Timeline, now: float, pids: Iterable[int]) -> None:
        if (switch := timeline.due(now)) is not None:
            self.count += switch.stop
            self._signal(signal.SIGSTOP if switch.stop else signal.SIGCONT, pids)

    def _signal(self, number: signal.Signals, pids: Iterable[int]) -> None:
        for pid in list(pids):
            try:
                signal.pidfd_send_signal(self._members[pid].handle, number)
            except ProcessLookupError:
                os.close(self._members.pop(pid).handle)


class _Timeline:
    """The switches of a plan, from a moment on."""

    def __init__(self, switches: Iterator[Switch], began: float) -> None:
        self._switches = switches
        self._began = began
        self._next = next(switches)

    def due(self, now: float) -> Switch | None:
        """Return the next switch if its moment has come."""
        if now < self._began + self._next.at:
            return None
        due, self._next = self._next, next(self._switches)
        return due


@dataclass(frozen=True, slots=True)
class _Member:
    handle: int
    timeline: _Timeline
