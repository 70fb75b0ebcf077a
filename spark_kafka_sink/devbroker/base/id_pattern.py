r"""Regular expressions over transactional ids, matched in linear time.

Kafka uses RE2, whose matcher never backtracks; Python's `re` does, and can take exponential time.
This matcher therefore tracks all positions of the id at once, as the bits of one integer. It
supports literals, escapes, `.`, character classes, `\d \s \w` and their complements, `^`, `$`,
alternatives, groups, and repeats of single characters. Repeated groups, flags and assertions are
rejected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PATTERN_LENGTH = 256

_ESCAPE = r"\\(?:[dDsSwW]|[^a-zA-Z0-9])"
_TOKEN = re.compile(
    rf"""
    (?P<open>\((?:\?:)?(?!\?))
    | (?P<close>\)(?![*+?{{]))
    | (?P<bar>\|)
    | (?P<anchor>[\^$](?![*+?{{]))
    | (?P<one>\.|{_ESCAPE}|\[\^?(?:{_ESCAPE}|[^\[\]\\^])(?:{_ESCAPE}|[^\[\]\\])*\]
        |[^\\.\[\](){{}}*+?|^$])
      (?:(?P<mark>[*+?])|\{{(?P<low>[0-9]{{1,3}})(?P<comma>,(?P<high>[0-9]{{1,3}})?)?\}})?\??
    """,
    re.VERBOSE | re.DOTALL,
)
#: What Python may interpret as set operations in character classes one day.
_CLASS_OPERATION = re.compile(r"--|&&|\|\||~~")
_MARKS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class _Anchor(NamedTuple):
    at_end: bool


class _Repeat(NamedTuple):
    one: re.Pattern[str]
    low: int
    #: None for any number.
    high: int | None


@dataclass(frozen=True, slots=True)
class _Choice:
    sequences: list[list[_Anchor | _Repeat | _Choice]]


class IdPattern:
    """A regular expression."""

    def __init__(self, pattern: str) -> None:
        """Parse an expression. Raises ValueError if it is malformed or not supported."""
        if len(pattern) > MAX_PATTERN_LENGTH:
            raise ValueError(f"it has more than {MAX_PATTERN_LENGTH} characters")
        self._choice = _parse(pattern)

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        found: dict[str, int] = {}

        def places(one: re.Pattern[str]) -> int:
            """Return an integer with a bit set for each character that matches."""
            if one.pattern not in found:
                bits = "".join("1" if one.match(character) else "0" for character in text[::-1])
                found[one.pattern] = int(bits or "0", 2)
            return found[one.pattern]

        end = 1 << len(text)
        return bool(_after_choice(self._choice, 1, end, places) & end)


def _parse(pattern: str) -> _Choice:
    stack = [_Choice([[]])]
    position = 0
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None:
            raise ValueError(f"{pattern[position:]!r} is malformed or not supported")
        position = token.end()
        sequence = stack[-1].sequences[-1]
        match token.lastgroup:
            case "open":
                group = _Choice([[]])
                sequence.append(group)
                stack.append(group)
            case "close":
                stack.pop()
                if not stack:
                    raise ValueError("a closing parenthesis has no opening one")
            case "bar":
                stack[-1].sequences.append([])
            case "anchor":
                sequence.append(_Anchor(token[0] == "$"))
            case _:
                sequence.append(_repeat(token))
    if len(stack) > 1:
        raise ValueError("an opening parenthesis has no closing one")
    return stack[0]


def _repeat(token: re.Match[str]) -> _Repeat:
    one = token["one"]
    if one.startswith("[") and _CLASS_OPERATION.search(one):
        raise ValueError(f"character class {one} is not supported")
    try:
        compiled = re.compile(one, re.ASCII)
    except re.error as error:
        raise ValueError(str(error)) from error
    if token["mark"]:
        return _Repeat(compiled, *_MARKS[token["mark"]])
    if token["low"] is None:
        return _Repeat(compiled, 1, 1)
    low = int(token["low"])
    if token["comma"] is None:
        return _Repeat(compiled, low, low)
    high = None if token["high"] is None else int(token["high"])
    if high is not None and high < low:
        raise ValueError(f"the repetition {token[0]} has a maximum below its minimum")
    return _Repeat(compiled, low, high)


def _after_choice(
    choice: _Choice, begins: int, end: int, places: Callable[[re.Pattern[str]], int]
) -> int:
    """Return where matches that begin at any of the positions `begins` can end."""
    ends = 0
    for sequence in choice.sequences:
        reached = begins
        for item in sequence:
            if not reached:
                break
            if isinstance(item, _Anchor):
                reached &= end if item.at_end else 1
            elif isinstance(item, _Repeat):
                reached = _after_repeat(item, reached, places(item.one))
            else:
                reached = _after_choice(item, reached, end, places)
        ends |= reached
    return ends


def _after_repeat(repeat: _Repeat, begins: int, places: int) -> int:
    for _ in range(repeat.low):
        begins = (begins & places) << 1
    if repeat.high is None:
        # The carry of the sum runs through all places that match (Parabix's MatchStar).
        return (((begins & places) + places) ^ places) | begins
    ends = begins
    for _ in range(repeat.high - repeat.low):
        begins = (begins & places) << 1
        ends |= begins
    return ends
