"""No interrupt leaves a lock of the package locked."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

import spark_kafka_sink
from tests.support import lock_rules
from tests.support.lock_rules import EXEMPT, check_locks

PACKAGE_DIRECTORY = Path(spark_kafka_sink.__file__).parent
SOURCES = {
    PurePosixPath(path.relative_to(PACKAGE_DIRECTORY).as_posix()): path.read_text()
    for path in sorted(PACKAGE_DIRECTORY.rglob("*.py"))
}


def test_with_takes_only_locks_of_the_c_library(monkeypatch):
    """Every module follows the rule except for the exemptions, and each exemption is needed."""
    assert SOURCES
    exempt = sorted(EXEMPT)
    monkeypatch.setattr(lock_rules, "EXEMPT", {})
    found = {f"an interrupt of {name} leaves what it guards behind": [] for name in exempt}
    others = []
    for violation in check_locks(SOURCES):
        found.get(violation.problem, others).append(str(violation))
    assert [] == others
    assert [] == [problem for problem, places in found.items() if not places]


def test_an_exemption_is_respected():
    """A context manager that is exempt is not refused."""
    source = "@contextmanager\ndef _opened(self):\n    self.depth += 1\n    yield"
    assert "_opened" in EXEMPT
    assert [] == check_locks({PurePosixPath("m.py"): source})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("self._lock = threading.Lock()\nwith self._lock: pass", []),
        ("self._lock = threading.RLock()\nwith a, self._lock: pass", []),
        ("with self._context.lock: pass", []),
        ("with open(path) as file: pass", []),
        ("self._lock = AppendLock()\nwith self._lock: pass", [2]),
        ("self._lock: Any = Own()\nwith self._lock: pass", [2]),
        ("with self._unknown_lock: pass", [1]),
        ("self._changed = threading.Condition()\nwith self._changed: pass", [2]),
        ("self._changed = Condition(self._lock)\nself._changed.wait()", []),
        ("slots = asyncio.Semaphore()\nasync def f():\n    async with slots: pass", []),
        ("@contextmanager\ndef m(self):\n    with self._context.lock:\n        yield", [3]),
        ("@contextlib.contextmanager\ndef m(a):\n    a.acquire()\n    yield", [3]),
        ("@contextmanager\ndef m(self):\n    self.depth += 1\n    yield", [3]),
        ("@contextmanager\ndef m(self):\n    yield self.clock()", []),
        ("class A:\n    def __exit__(self, *_):\n        self._lock.release()", [3]),
        ("class A:\n    def __exit__(self, *_):\n        self.close()", []),
        ("def locked(self):\n    self.depth += 1", []),
    ],
)
def test_a_violation_is_found(source, expected):
    """The checker refuses a `with` on anything that an interrupt may leave locked."""
    other = {PurePosixPath("context.py"): "self.lock = threading.RLock()"}
    found = check_locks({PurePosixPath("m.py"): source, **other})
    assert expected == [violation.line for violation in found]
