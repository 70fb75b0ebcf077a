"""JAAS login entries, as in Java's `sasl.jaas.config`: a login module and its options.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="b";

Parsed like `org.apache.kafka.common.security.JaasConfig`, with Java's escapes in quotes and both of
its kinds of comments; unquoted values are accepted in any form. The entries hold passwords, so
errors show nothing of them but the name of the module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: A quoted text ends on its line, as in Java's StreamTokenizer.
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\r\n]*|/\*.*?\*/)
      | "(?P<double>(?:\\.|[^"\\\r\n])*)"
      | '(?P<single>(?:\\.|[^'\\\r\n])*)'
      | (?P<mark>[=;])
      | (?P<word>[^\s=;"']+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_CONTROLS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CONTROL_FLAGS: Final = ("required", "requisite", "sufficient", "optional")


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One entry; its repr does not show the options, which may be secrets."""

    #: The name of the Java class.
    name: str
    options: Mapping[str, str] = field(repr=False)

    def is_class(self, java_class: str) -> bool:
        """Return whether it names this class, which some platforms ship under their own prefix."""
        return self.name == java_class or self.name.endswith(f".{java_class}")


class _Token(NamedTuple):
    text: str
    #: Whether it is an unquoted `=` or `;`.
    is_mark: bool = False


_EQUALS: Final = _Token("=", is_mark=True)
_END: Final = _Token(";", is_mark=True)


def parse_jaas(text: str) -> LoginModule:
    """Parse the only entry of a `sasl.jaas.config`.

    Raises ValueError, whose message is the end of a sentence about the setting.
    """
    tokens = _tokens(text)
    name, flag = next(tokens, _END), next(tokens, _END)
    if name.is_mark or flag.is_mark or flag.text.lower() not in _CONTROL_FLAGS:
        raise ValueError("must begin with a login module and the word 'required'")
    options = {}
    while (key := next(tokens, None)) != _END:
        if key is None:
            raise ValueError("must end with a semicolon")
        equals, value = next(tokens, _END), next(tokens, _END)
        if key.is_mark or equals != _EQUALS or value.is_mark:
            raise ValueError(
                'must give options as name="value"; a quote within a value is written \\"'
            )
        options[key.text] = value.text
    if next(tokens, None) is not None:
        raise ValueError("must name one login module, with nothing after its semicolon")
    return LoginModule(name.text, options)


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError("has a quote that is not closed on its line")
        position = found.end()
        kind = found.lastgroup
        if kind in {"single", "double"}:
            yield _Token(_unescape(found[kind]))
        elif kind != "space":
            yield _Token(found[0], is_mark=kind == "mark")


def _unescape(quoted: str) -> str:
    def replacement(escape: re.Match[str]) -> str:
        code = escape[1]
        return (
            chr(int(code, 8)) if code in "01234567" or len(code) > 1 else _CONTROLS.get(code, code)
        )

    return _ESCAPE.sub(replacement, quoted)
