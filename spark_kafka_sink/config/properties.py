"""The syntax of .properties files, as Java reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPACE: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|[\r\n]")
_ENTRY: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    r"""Parse the keys and values of a .properties file; the last value of a key counts.

    It reads the text as Java's `java.util.Properties.load` does. Raises ValueError for a `\u`
    without four hexadecimal digits; the message does not quote the text.
    """
    properties = {}
    for line in _logical_lines(text):
        key, value = next(_ENTRY.finditer(line)).groups()
        properties[_unescape(key)] = _unescape(value)
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    r"""Yield the lines without blank ones and comments, joining those that end with `\`."""
    begun: list[str] = []
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_SPACE)
        if not begun and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun.append(line[:-1])
        else:
            yield "".join([*begun, line])
            begun = []
    if any(begun):
        yield "".join(begun)


def _unescape(text: str) -> str:
    def replacement(escape: re.Match[str]) -> str:
        if escape[1] == "u":
            raise ValueError(r"a \u is not followed by four hexadecimal digits")
        if escape[1][0] == "u":
            return chr(int(escape[1][1:], 16))
        return _CONTROLS.get(escape[1], escape[1])

    # Java's characters have 16 bits: two escapes may form one character.
    units = _ESCAPE.sub(replacement, text).encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "surrogatepass")
