"""The rule for locks, checked in the syntax trees: `with` takes locks of the C library only.

Ctrl-C strikes at the start of each Python function. So what Python functions lock stays locked for
good if they are interrupted: those of threading.Condition, and of a generator that holds a lock.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import PurePosixPath

#: What `threading` has in C; the names of these constructors are used for nothing else.
_OF_C = frozenset({"Lock", "RLock"})
#: What has a lock, and Python functions for it.
_OF_PYTHON = frozenset({"Barrier", "BoundedSemaphore", "Condition", "Semaphore"})
#: Context managers in Python that change something, and why that is not a lock.
EXEMPT = {
    "_opened": "it changes the error that it raises",
    "errors_hiding": "it changes the error that it raises",
    "two_phase_commit": "it notes a result of the block for the caller",
}


class Violation(NamedTuple):
    """A place that breaks the rule."""

    path: PurePosixPath
    line: int
    problem: str

    def __str__(self) -> str:
        """Return it as a tool would print it."""
        return f"{self.path}:{self.line}: {self.problem}"


def check_locks(sources: Mapping[PurePosixPath, str]) -> list[Violation]:
    """Return the violations in the modules of a package."""
    trees = {path: ast.parse(source) for path, source in sources.items()}
    made: defaultdict[str, set[str]] = defaultdict(set)
    made_in: defaultdict[tuple[PurePosixPath, str], set[str]] = defaultdict(set)
    for path, tree in trees.items():
        for name, constructor in _assigned(tree):
            made[name].add(constructor)
            made_in[path, name].add(constructor)

    def refused(path: PurePosixPath, name: str) -> bool:
        constructors = made_in.get((path, name)) or made.get(name) or set()
        if _is_lock(name):
            return not constructors or not constructors <= _OF_C
        return bool(constructors & _OF_PYTHON)

    return [
        Violation(path, line, problem)
        for path, tree in trees.items()
        for line, problem in (
            *_python_managers(tree),
            *(
                (item.lineno, f"`with {ast.unparse(item)}` does not take a Lock or an RLock")
                for item in _with_items(tree)
                if refused(path, _last(item))
            ),
        )
    ]


def _last(node: ast.expr) -> str:
    """Return the last name of an expression; empty if it has none."""
    match node:
        case ast.Call(func=called):
            return _last(called)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _is_lock(name: str) -> bool:
    return name == "lock" or name.endswith("_lock")


def _assigned(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield names, and the constructors of what they are assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in map(_last, targets):
                yield name, _last(node.value)


def _with_items(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            yield from (item.context_expr for item in node.items)


def _python_managers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the context managers in Python that guard state: they lock, or change attributes."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name in EXEMPT:
            continue
        is_generator = any(_last(each) == "contextmanager" for each in node.decorator_list)
        if not is_generator and node.name not in {"__enter__", "__exit__"}:
            continue
        for inner in ast.walk(node):
            is_state = isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
            is_lock = (
                isinstance(inner, ast.Call) and _last(inner.func) in {"acquire", "release"}
            ) or (
                isinstance(inner, ast.With)
                and any(_is_lock(_last(item.context_expr)) for item in inner.items)
            )
            if is_state or is_lock:
                yield inner.lineno, f"an interrupt of {node.name} leaves what it guards behind"
