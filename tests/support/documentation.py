"""The pages that users read, and the code blocks in them."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = sorted(DOCS.rglob("*.md"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "SUPPORT.md")),
    *SITE,
]
#: The address in the examples, which readers replace by their own.
ADDRESS = "localhost:9092"
#: The language of blocks that are drawings, and so cannot run.
PICTURES = {"text"}

_BLOCK = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
#: The names that pages use without defining them, and that only a Spark session can define.
_OF_SPARK = re.compile(r"\b(?:SparkSession|spark|df|stream|orders)\b")


class Block(NamedTuple):
    """A code block: where it is, its language and its text."""

    place: str
    language: str
    code: str

    @property
    def needs_spark(self) -> bool:
        """Whether it uses a Spark session or a DataFrame."""
        return _OF_SPARK.search(re.sub(r"spark_kafka_sink", "", self.code)) is not None

    @property
    def is_excerpt(self) -> bool:
        """Whether it is a part of an example that has a test of its own."""
        return any(self.code in text for text in _EXAMPLES)


_EXAMPLES = [path.read_text() for path in (ROOT / "examples").rglob("*.py")]


def name_of(page: Path) -> str:
    """Return the path of a page in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks_in(page: Path) -> list[Block]:
    """Return the code blocks of a page."""
    text = page.read_text()
    return [
        Block(
            f"{name_of(page)}:{text.count(chr(10), 0, found.start()) + 1}",
            found[2],
            dedent(found[3]),
        )
        for found in _BLOCK.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks_in(page)]


def anchors_in(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the site and GitHub make them."""
    text = _BLOCK.sub("", page.read_text())
    return {
        re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


def source_of(cls: type) -> str:
    """Return the source of a class, also of one that names the package which exports it."""
    module = Path(sys.modules[cls.__module__].__file__ or "")
    if module.name != "__init__.py":
        return inspect.getsource(cls)
    texts = [path.read_text() for path in module.parent.glob("*.py")]
    [source] = [
        ast.get_source_segment(text, node)
        for text in texts
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    ]
    assert source is not None
    return source


def faults_of_example(value: Any, names: dict[str, Any], bootstrap_servers: str) -> list[str]:
    """Run the example in the docstring of a class or function; return what went wrong.

    `names` are those that it uses without defining them.
    """
    text = (inspect.getdoc(value) or "").replace(ADDRESS, bootstrap_servers)
    file = import_module(value.__module__).__file__
    test = doctest.DocTestParser().get_doctest(text, names, value.__name__, file, None)
    if not test.examples:
        return ["there is no example"]
    said: list[str] = []
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    doctest.DocTestRunner(verbose=False, optionflags=options).run(test, out=said.append)
    return said
