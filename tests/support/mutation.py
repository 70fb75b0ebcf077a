"""Mutants, and the selection of tests that should kill them.

A mutant is tested by the tests that ran its line. Those that run the fewest other lines come first,
since they are the most likely to fail. A line that coverage does not attribute to a test, because
it runs at import or in a compiled kernel, is tested by the tests of its module, and then by those
of its room. Tests are named without their parameters, since a mutant may change the very value in
such a name.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import coverage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PACKAGE = "spark_kafka_sink"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one line.

    `path` is relative to the repository, `line` counts from 1, and `source` is the whole module
    with the change; `before` and `after` are the line without and with it.
    """

    path: str
    line: int
    operator: str
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        """Return the place and the change, on three lines."""
        return f"{self.path}:{self.line}  {self.operator}\n  - {self.before}\n  + {self.after}"


def read_mutants(lines: Iterable[str]) -> list[Mutant]:
    """Return the mutants that `list_mutants.py` printed."""
    return [Mutant(**json.loads(line)) for line in lines if line.strip()]


def mutable_modules(root: Path, *only: str) -> list[Path]:
    """Return the modules whose paths contain a part of `only`, relative to `root`; else all."""
    relative = [path.relative_to(root) for path in sorted((root / PACKAGE).rglob("*.py"))]
    return [path for path in relative if not only or any(part in str(path) for part in only)]


#: How many tests of a module run before those of its room.
_BEFORE_ROOM = 30
#: A line that fewer tests run may have been run by chance: at the first import, for example.
_FEW = 3
#: The layers that build objects at their first use, which is all that coverage sees of it.
_BUILT_ONCE = frozenset({"protocol"})
#: The rooms of compiled code.
_COMPILED = "kernel"


class TestsByLine:
    """The tests that ran each line."""

    __test__ = False

    def __init__(
        self, ran: Mapping[str, Mapping[int, Sequence[str]]], root: Path | None = None
    ) -> None:
        """Store the tests by line, by path; tests are named by their pytest node ids.

        `root` is the repository, in which the tests of a room are found.
        """
        self._ran = ran
        self._root = root or Path()
        self._lines_of_test = Counter(
            test for lines in ran.values() for tests in lines.values() for test in tests
        )

    @classmethod
    def from_coverage(cls, data_file: Path, root: Path) -> TestsByLine:
        """Read the data file that `pytest --cov-context=test` wrote."""
        data = coverage.CoverageData(str(data_file))
        data.read()
        ran: dict[str, dict[int, list[str]]] = {}
        for path in data.measured_files():
            lines = data.contexts_by_lineno(path)
            ran[str(Path(path).relative_to(root))] = {
                line: sorted({_test_of(context) for context in contexts if context})
                for line, contexts in lines.items()
            }
        return cls(ran, root)

    def for_mutant(self, mutant: Mutant) -> list[str]:
        """Return the tests to run, the most specific first."""
        lines = self._ran.get(mutant.path, {})
        tests = set(lines.get(mutant.line, ()))
        if len(tests) >= _FEW and self._layer(mutant) not in _BUILT_ONCE:
            return self._by_specificity(tests)
        if tests:
            return [*self._by_specificity(tests), *self._of_room(mutant)]
        of_module = {test for of_line in lines.values() for test in of_line}
        # Code that only runs at import, such as a constant or a dataclass's repr, is attributed to
        # no test. Those of its room come early, since a stage is limited to so many tests.
        specific = self._by_specificity(of_module)
        return [*specific[:_BEFORE_ROOM], *self._of_room(mutant), *specific[_BEFORE_ROOM:]]

    @staticmethod
    def _layer(mutant: Mutant) -> str:
        return Path(mutant.path).relative_to(PACKAGE).parts[0]

    def _of_room(self, mutant: Mutant) -> list[str]:
        """Return the folder with the tests of a room, and the test modules above it.

        A room without such a folder is tested by the nearest one above; a module beside the rooms,
        and a room without any, by the test modules that belong to no room.
        """
        tests = self._root / "tests/unit"
        room = tests / Path(mutant.path).parent.relative_to(PACKAGE)
        if room.name == _COMPILED:
            # No line of a kernel is seen to run, and the rooms beside it test what uses it.
            return [str(room.parent.relative_to(self._root))]
        while not room.is_dir():
            room = room.parent
        if room == tests:
            chosen = sorted(tests.glob("test_*.py"))
        else:
            layers = takewhile(lambda folder: folder != tests, room.parents)
            above = (path for layer in layers for path in sorted(layer.glob("test_*.py")))
            chosen = [room, *above]
        return [str(path.relative_to(self._root)) for path in chosen]

    def _by_specificity(self, tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self._lines_of_test[test], test))


def _test_of(context: str) -> str:
    """Return the test of a context, which is a node id and a phase: setup, run or teardown."""
    return context.rpartition("|")[0].partition("[")[0]


_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::\w+)*)", re.MULTILINE)


def failed_test(output: str) -> str | None:
    """Return the first failed test, or file, in a short summary (`-rfE`) of pytest."""
    found = _FAILED.search(output)
    return None if found is None else found.group(1)
