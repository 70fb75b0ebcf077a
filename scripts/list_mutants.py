"""Print a random sample of mutants of the given modules, one JSON object per line.

It runs where cosmic-ray is installed, without the package: see `list_mutants.sh`.
A mutant is one change at one place: an operator, a comparison, a number, a condition. The sample is
drawn from the places, and then one change from each, since a `+` has eleven replacements and a
`not` has one. Changes that no test could detect are left out: those of annotations, of imports for
the type checker, of the arguments of `@dataclass`, and of decorators in protocols.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
import warnings
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Operators whose mutants reveal nothing about the tests: they change nothing, require names as
#: arguments, or exchange `is` and `==`, which are equivalent for the constants compared here.
_NOT_USED = (
    "VariableInserter",
    "VariableReplacer",
    "NoOp",
    "_Is_Eq",
    "_Eq_Is",
    "_IsNot_NotEq",
    "_NotEq_IsNot",
)


class Site(NamedTuple):
    """A possible change at a place in a module."""

    path: str
    start: tuple[int, int]
    end: tuple[int, int]
    operator: str
    occurrence: int

    @property
    def place(self) -> tuple[str, tuple[int, int], tuple[int, int]]:
        """The place of the change: path, start and end."""
        return self.path, self.start, self.end


def sites_of(path: str, source: str) -> Iterator[Site]:
    """Yield every change that cosmic-ray can make in a module."""
    nodes = list(ast_nodes(get_ast(source)))
    for name in operator_names():
        operator_class = get_operator(name)
        if name.endswith(_NOT_USED) or operator_class.arguments():
            continue
        operator = operator_class()
        positions = (position for node in nodes for position in operator.mutation_positions(node))
        for occurrence, (start, end) in enumerate(positions):
            yield Site(path, tuple(start), tuple(end), name, occurrence)


class _Essence(ast.NodeTransformer):
    """A transformer that removes everything without effect at run time."""

    def visit_If(self, node: ast.If) -> Any:
        """Drop imports for the type checker."""
        if any(
            isinstance(part, ast.Name) and part.id == "TYPE_CHECKING"
            for part in ast.walk(node.test)
        ):
            return None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Drop the annotation of a variable."""
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> Any:
        """Drop the annotation of an argument."""
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Drop the return annotation."""
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        """Drop the return annotation."""
        node.returns = None
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        """Drop the arguments of `@dataclass`, and decorators in a protocol, which never runs."""
        node.decorator_list = [
            decorator.func
            if isinstance(decorator, ast.Call)
            and isinstance(decorator.func, ast.Name)
            and decorator.func.id == "dataclass"
            else decorator
            for decorator in node.decorator_list
        ]
        if any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and _is_only_described(part):
                    part.decorator_list = []
        return self.generic_visit(node)


def _is_only_described(function: ast.FunctionDef) -> bool:
    return len(function.body) == 1 and ast.get_docstring(function) is not None


def essence(source: str) -> str | None:
    """Return the code of a module that has an effect, to be compared; None if it is not Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            compile(source, "mutant", "exec")
        except SyntaxError:
            return None
        return ast.dump(_Essence().visit(ast.parse(source)))


def mutants(paths: list[Path], sample: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a sample of mutants: path, line, operator, the changed line, and the whole source."""
    chance = random.Random(seed)
    sources = {str(path): path.read_text(encoding="utf-8") for path in paths}
    essences = {path: essence(source) for path, source in sources.items()}
    sites = sorted(site for path, source in sources.items() for site in sites_of(path, source))
    sites.sort(key=lambda site: site.place)
    places = [list(group) for _, group in groupby(sites, key=lambda site: site.place)]
    chance.shuffle(places)
    found = 0
    for place in places:
        if found == sample:
            return
        site = chance.choice(place)
        try:
            source = mutate_code(sources[site.path], get_operator(site.operator)(), site.occurrence)
        except AttributeError:
            # cosmic-ray also lists exceptions with dotted names, but cannot replace them.
            continue
        changed = None if source is None else essence(source)
        if changed is None or changed == essences[site.path]:
            continue
        found += 1
        yield {
            "path": site.path,
            "line": site.start[0],
            "operator": site.operator.removeprefix("core/"),
            "before": sources[site.path].splitlines()[site.start[0] - 1].strip(),
            "after": source.splitlines()[site.start[0] - 1].strip(),
            "source": source,
        }


def main() -> None:
    """Print the sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("paths", nargs="+", type=Path)
    options = parser.parse_args()
    for mutant in mutants(sorted(options.paths), options.sample, options.seed):
        sys.stdout.write(json.dumps(mutant) + "\n")


if __name__ == "__main__":
    main()
