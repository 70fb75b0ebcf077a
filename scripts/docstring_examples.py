"""An extension of griffe, which reads the docstrings for the documentation site.

The examples in docstrings are doctests. Markdown takes their `>>>` for quotations, so this puts
each of them into a code block. The comments `#: ...` that document fields become the docstrings of
those fields, which griffe itself does not read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import griffe

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A doctest and the output that it shows: all lines up to the next empty one.
_DOCTEST = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)


def fence_doctests(text: str) -> str:
    """Return a docstring with each doctest in a code block."""
    return _DOCTEST.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)


def comment_above(lines: Sequence[str], line_number: int) -> str:
    """Return the comment `#: ...` that ends right above a line, whose number counts from 1."""
    comment: list[str] = []
    for line in reversed(lines[: line_number - 1]):
        text = line.strip()
        if not text.startswith("#:"):
            break
        comment.insert(0, text.removeprefix("#:").strip())
    return " ".join(comment)


class DocstringExamples(griffe.Extension):
    """Puts the doctests of every docstring into code blocks, and documents fields."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the docstrings of a package when all of it has been read."""
        self._change([pkg])

    def _change(self, objects: Sequence[griffe.Object | griffe.Alias]) -> None:
        for each in objects:
            if each.is_alias:
                continue
            if each.docstring is not None:
                each.docstring.value = fence_doctests(each.docstring.value)
            elif each.is_attribute and each.lineno is not None:
                comment = comment_above(each.lines_collection[each.filepath], each.lineno)
                if comment:
                    each.docstring = griffe.Docstring(comment, parent=each)
            self._change(list(each.members.values()))
