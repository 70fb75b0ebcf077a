"""An extension of griffe, which reads the docstrings for the documentation site.

The examples in docstrings are doctests. Markdown takes their `>>>` for quotations, so this puts
each of them into a code block.
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


class DocstringExamples(griffe.Extension):
    """Puts the doctests of every docstring into code blocks."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the docstrings of a package when all of it has been read."""
        self._change([pkg])

    def _change(self, objects: Sequence[griffe.Object | griffe.Alias]) -> None:
        for each in objects:
            if each.is_alias:
                continue
            if each.docstring is not None:
                each.docstring.value = fence_doctests(each.docstring.value)
            self._change(list(each.members.values()))
