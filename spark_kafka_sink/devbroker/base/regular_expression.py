r"""Regular expressions in the syntax of RE2/J, matched in linear time and within a budget.

A consumer group may subscribe to the topics that match an expression, and ListTransactions may ask
for such transactional ids; Kafka uses RE2/J for both. This module accepts and rejects the same
expressions: no back-references, look-around or possessive repeats, but flags, named groups, POSIX
and Unicode classes, and `\Q...\E`. An expression is compiled to a nondeterministic automaton
(Thompson's construction), all of whose states are followed at once.

Linear is not enough: a thousand states for each of a thousand characters keep a single thread busy.
So each step is counted, and whoever has texts matched sets how many may be taken.

The texts that are matched consist of few characters, which are known: a character class is the set
of those that it matches. For topic names it is exact; beyond ASCII, which transactional ids may
have, scripts and cases are approximate, and the flags m and s (newlines) are ignored.
"""

from __future__ import annotations

import re
import string
import unicodedata
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: The characters of topic names.
TOPIC_CHARACTERS = frozenset(string.ascii_letters + string.digits + "._-")
_WORD = frozenset(string.ascii_letters + string.digits + "_")
#: Limits that RE2/J does not have: a hostile expression must not keep the broker busy. Characters,
#: and nodes with each repeat counted.
_MAX_CHARACTERS = 1_000
_MAX_NODES = 1_000
#: The most states that the moves which an automaton remembers may have, summed over all moves.
_MAX_REMEMBERED_STATES = 100_000
#: The work of compiling an expression, in steps of matching: of each of its characters, for each
#: character of the alphabet, and of each node.
_WORK_OF_A_CHARACTER = 6
_WORK_OF_A_NODE = 100
_MAX_REPEATS = 1_000
_MAX_CODE_POINT = 0x10FFFF
#: Maximum depth of nested groups, which the parser follows by recursion.
_MAX_DEPTH = 100

_PERL_CLASSES = {
    "d": frozenset(string.digits),
    "s": frozenset(" \t\n\f\r"),
    "w": _WORD,
}
_POSIX_CLASSES = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": frozenset(map(chr, range(128))),
    "blank": frozenset(" \t"),
    "cntrl": frozenset(map(chr, [*range(32), 127])),
    "digit": frozenset(string.digits),
    "graph": frozenset(map(chr, range(33, 127))),
    "lower": frozenset(string.ascii_lowercase),
    "print": frozenset(map(chr, range(32, 127))),
    "punct": frozenset(string.punctuation),
    "space": frozenset(" \t\n\v\f\r"),
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CATEGORIES = frozenset(
    """
    C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z
    Zl Zp Zs
    """.split()  # noqa: SIM905 - easier to read than a list
)
#: Only the first two have ASCII characters.
_SCRIPTS = frozenset(
    """
    Latin Common Arabic Armenian Avestan Balinese Bamum Batak Bengali Bopomofo Brahmi Braille
    Buginese Buhid Canadian_Aboriginal Carian Cham Cherokee Coptic Cuneiform Cypriot
    Cyrillic Deseret Devanagari Egyptian_Hieroglyphs Ethiopic Georgian Glagolitic Gothic
    Greek Gujarati Gurmukhi Han Hangul Hanunoo Hebrew Hiragana Imperial_Aramaic Inherited
    Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kayah_Li
    Kharoshthi Khmer Lao Lepcha Limbu Linear_B Lisu Lycian Lydian Malayalam Mandaic
    Meetei_Mayek Mongolian Myanmar New_Tai_Lue Nko Ogham Ol_Chiki Old_Italic Old_Persian
    Old_South_Arabian Old_Turkic Oriya Osmanya Phags_Pa Phoenician Rejang Runic Samaritan
    Saurashtra Shavian Sinhala Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le
    Tai_Tham Tai_Viet Tamil Telugu Thaana Thai Tibetan Tifinagh Ugaritic Unknown Vai Yi
    """.split()  # noqa: SIM905 - easier to read than a list
)
_ESCAPED = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
#: Characters outside ASCII that equal a letter if case is ignored.
_FOLDED = {"k": "\u212a", "s": "\u017f"}
_REPEAT = re.compile(r"\{([0-9]+)(?:(,)([0-9]+)?)?\}")
_GROUP_NAME = re.compile(r"[A-Za-z0-9_]+")


class _Assertion(Enum):
    """A condition on a position in the text."""

    BEGIN = "begin"
    END = "end"
    WORD_BOUNDARY = "word boundary"
    NO_WORD_BOUNDARY = "no word boundary"


class _Sequence(NamedTuple):
    items: tuple[_Node, ...]


class _Choice(NamedTuple):
    options: tuple[_Node, ...]


class _Repeat(NamedTuple):
    node: _Node
    low: int
    #: None for any number.
    high: int | None


_Node = frozenset[str] | _Assertion | _Sequence | _Choice | _Repeat


class TooMuchWorkError(Exception):
    """Matching has taken all the steps that it may."""


class Work:
    """The steps that matching may still take; a million of them take about a third of a second."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Take steps. Raises TooMuchWorkError if there are none left."""
        self.left -= steps
        if self.left < 0:
            raise TooMuchWorkError("matching it takes too long")


class _Parser:
    """A recursive parser of one expression, with the rules of RE2/J's Parser."""

    def __init__(self, pattern: str, alphabet: frozenset[str]) -> None:
        self._pattern = pattern
        #: With the other case of each character: `(?i)\p{Lu}` matches small letters, too.
        self._alphabet = alphabet.union(*map(_folds, alphabet))
        #: What characters other than operators and brackets stand for.
        self._special: dict[str, _Node] = {
            ".": self._alphabet - {"\n"},
            "^": _Assertion.BEGIN,
            "$": _Assertion.END,
        }
        self._position = 0
        self._depth = 0
        self._ignore_case = False
        self._names: set[str] = set()

    def parse(self) -> _Node:
        """Parse the whole expression. Raises ValueError."""
        node = self._choice()
        if self._position < len(self._pattern):
            raise ValueError("unexpected )")
        return node

    def _rest(self) -> str:
        return self._pattern[self._position :]

    def _next(self) -> str:
        """Return the next character and move past it; an empty string at the end."""
        character = self._pattern[self._position : self._position + 1]
        self._position += len(character)
        return character

    def _skip(self, text: str) -> bool:
        """Move past a text if it is next; return whether it was."""
        is_next = self._pattern.startswith(text, self._position)
        if is_next:
            self._position += len(text)
        return is_next

    def _choice(self) -> _Node:
        options = [self._sequence()]
        while self._skip("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self) -> _Node:
        items: list[_Node] = []
        was_repeat = False
        while self._rest()[:1] not in {"", "|", ")"}:
            repeat = self._repeat()
            if repeat is not None:
                if was_repeat:
                    raise ValueError("invalid nested repetition operator")
                if not items:
                    raise ValueError("missing argument to repetition operator")
                items[-1] = _Repeat(items[-1], *repeat)
                was_repeat = True
            else:
                # As in RE2/J, no operator may follow a brace that is not part of one.
                was_repeat = self._rest().startswith("{")
                items += self._atom()
        return items[0] if len(items) == 1 else _Sequence(tuple(items))

    def _repeat(self) -> tuple[int, int | None] | None:
        """Parse a repetition operator, if one is next; return its minimum and maximum."""
        match = _REPEAT.match(self._pattern, self._position)
        if self._skip("*"):
            bounds: tuple[int, int | None] = (0, None)
        elif self._skip("+"):
            bounds = (1, None)
        elif self._skip("?"):
            bounds = (0, 1)
        elif match is not None:
            self._position = match.end()
            low = int(match[1])
            high = low if match[2] is None else None if match[3] is None else int(match[3])
            if max(low, high or 0) > _MAX_REPEATS or (high is not None and low > high):
                raise ValueError("invalid repeat count")
            bounds = (low, high)
        else:
            return None
        # Whether an operator is greedy does not change whether the whole name matches.
        self._skip("?")
        return bounds

    def _atom(self) -> list[_Node]:
        """Parse what is next, other than an operator: usually one node, none for flags."""
        if self._skip("("):
            return self._group()
        if self._skip("["):
            return [self._class()]
        if self._rest().startswith("\\"):
            return self._escape()
        character = self._next()
        special = self._special.get(character)
        return [self._literal(character) if special is None else special]

    def _group(self) -> list[_Node]:
        outer = self._ignore_case
        if self._skip("?"):
            if self._skip("P<") or self._skip("<"):
                self._group_name()
            elif not self._flags():
                return []
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError("groups are nested too deeply")
        node = self._choice()
        self._depth -= 1
        if not self._skip(")"):
            raise ValueError("missing closing )")
        self._ignore_case = outer
        return [node if isinstance(node, _Choice | _Sequence) else _Sequence((node,))]

    def _group_name(self) -> None:
        name, closed, _ = self._rest().partition(">")
        if not closed or not _GROUP_NAME.fullmatch(name):
            raise ValueError("invalid named capture")
        if name in self._names:
            raise ValueError("duplicate capture group name")
        self._names.add(name)
        self._position += len(name) + 1

    def _flags(self) -> bool:
        """Parse flags after `(?`; return whether a group follows, to which they are limited."""
        ignore_case = self._ignore_case
        negated = has_flag = False
        while character := self._next():
            if character in "imsU":
                has_flag = True
                if character == "i":
                    ignore_case = not negated
            elif character == "-" and not negated:
                negated, has_flag = True, False
            elif character in ":)" and (has_flag or not negated):
                self._ignore_case = ignore_case
                return character == ":"
            else:
                break
        raise ValueError("invalid or unsupported Perl syntax")

    def _escape(self) -> list[_Node]:
        """Parse what begins with a backslash, outside character classes."""
        if self._skip(r"\Q"):
            quoted, _, _ = self._rest().partition(r"\E")
            self._position += len(quoted)
            self._skip(r"\E")
            return [self._literal(character) for character in quoted]
        for text, assertion in (
            (r"\A", _Assertion.BEGIN),
            (r"\z", _Assertion.END),
            (r"\b", _Assertion.WORD_BOUNDARY),
            (r"\B", _Assertion.NO_WORD_BOUNDARY),
        ):
            if self._skip(text):
                return [assertion]
        shared = self._shared_class()
        return [self._literal(self._escaped()) if shared is None else shared]

    def _shared_class(self) -> frozenset[str] | None:
        r"""Parse `\d`, `\pL` and the like, which may also stand in brackets, if one is next."""
        kind = self._rest()[1:2]
        if not self._rest().startswith("\\") or not kind:
            return None
        if kind.lower() in _PERL_CLASSES:
            self._position += 2
            return self._signed(self._folded(_PERL_CLASSES[kind.lower()]), negated=kind.isupper())
        if kind not in {"p", "P"}:
            return None
        self._position += 2
        name = self._next()
        if name == "{":
            name, closed, _ = self._rest().partition("}")
            if not closed:
                raise ValueError("invalid character class range")
            self._position += len(name) + 1
        negated = kind == "P"
        if name.startswith("^"):
            negated, name = not negated, name[1:]
        return self._signed(self._folded(self._unicode_class(name)), negated=negated)

    def _escaped(self) -> str:
        """Parse an escaped character. Raises ValueError."""
        self._skip("\\")
        character = self._next()
        if not character:
            raise ValueError("trailing backslash at end of expression")
        if character in _ESCAPED:
            return _ESCAPED[character]
        if character == "x":
            digits = re.compile(r"\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2})").match(
                self._pattern, self._position
            )
            if digits is not None and int(digits[1] or digits[2], 16) <= _MAX_CODE_POINT:
                self._position = digits.end()
                return chr(int(digits[1] or digits[2], 16))
        elif character in "01234567":
            digits = re.compile("[0-7]{0,2}").match(self._pattern, self._position)
            if digits is not None and (digits[0] or character == "0"):
                self._position = digits.end()
                return chr(int(character + digits[0], 8))
        elif not (character.isascii() and character.isalnum()):
            return character
        raise ValueError("invalid escape sequence")

    def _class(self) -> frozenset[str]:
        """Parse a character class after its opening bracket. Raises ValueError."""
        negated = self._skip("^")
        characters: set[str] = set()
        is_first = True
        while is_first or not self._skip("]"):
            is_first = False
            if self._rest().startswith("[:") and (end := self._rest().find(":]", 2)) >= 0:
                name = self._rest()[2:end]
                self._position += end + 2
                known = _POSIX_CLASSES.get(name.removeprefix("^"))
                if known is None:
                    raise ValueError("invalid character class range")
                characters |= self._signed(self._folded(known), negated=name.startswith("^"))
                continue
            shared = self._shared_class()
            if shared is not None:
                characters |= shared
                continue
            low = high = self._class_character()
            if self._rest().startswith("-") and not self._rest().startswith("-]"):
                if self._rest() == "-":
                    raise ValueError("missing closing ]")
                self._skip("-")
                high = self._class_character()
                if high < low:
                    raise ValueError("invalid character class range")
            characters |= self._matching(partial(_is_between, low, high))
        return self._signed(frozenset(characters), negated=negated)

    def _class_character(self) -> str:
        if not self._rest():
            raise ValueError("missing closing ]")
        return self._escaped() if self._rest().startswith("\\") else self._next()

    def _literal(self, literal: str) -> frozenset[str]:
        return self._matching(lambda character: character == literal)

    def _folded(self, characters: frozenset[str]) -> frozenset[str]:
        return self._matching(characters.__contains__)

    def _matching(self, matches: Callable[[str], bool]) -> frozenset[str]:
        """Return the characters of the alphabet that match, or do if case is ignored."""
        return frozenset(
            character
            for character in self._alphabet
            if any(
                matches(variant)
                for variant in (_folds(character) if self._ignore_case else character)
            )
        )

    def _signed(self, characters: Iterable[str], *, negated: bool) -> frozenset[str]:
        present = self._alphabet.intersection(characters)
        return self._alphabet - present if negated else present

    def _unicode_class(self, name: str) -> frozenset[str]:
        """Return the characters of a Unicode category or script. Raises ValueError."""
        if name == "Any":
            return self._alphabet
        if name in _CATEGORIES:
            return frozenset(c for c in self._alphabet if unicodedata.category(c).startswith(name))
        if name not in _SCRIPTS:
            raise ValueError("invalid character class range")
        return frozenset(c for c in self._alphabet if _script(c) == name)


def _is_between(low: str, high: str, character: str) -> bool:
    return low <= character <= high


def _folds(character: str) -> str:
    """Return the characters that equal a character if case is ignored."""
    lower, upper = character.lower(), character.upper()
    # Letters that become two in the other case are not equal to either of them.
    return character + "".join(
        variant
        for variant in (lower, upper, lower.upper(), _FOLDED.get(lower, ""))
        if len(variant) == 1
    )


def _script(character: str) -> str:
    """Return the script of a character; beyond ASCII a guess from its Unicode name."""
    if character.isascii():
        return "Latin" if character.isalpha() else "Common"
    script = unicodedata.name(character, "Unknown").split()[0].capitalize()
    return script if script in _SCRIPTS else "Common"


_Condition = frozenset[str] | _Assertion | None
_END = 0


class _Step(NamedTuple):
    """An instruction: move on to `then` after a character, or at once if a condition holds."""

    condition: _Condition
    then: tuple[int, ...]


class RegularExpression:
    """An expression that has to match a whole text.

    >>> RegularExpression("orders-[0-9]+|returns", Work(10_000)).matches("orders-7")
    True
    """

    def __init__(
        self, pattern: str, work: Work, alphabet: frozenset[str] = TOPIC_CHARACTERS
    ) -> None:
        """Compile an expression for texts of an alphabet; `work` limits that and all matching.

        Raises ValueError if RE2/J would reject it, or it is too large, and TooMuchWorkError.
        """
        if len(pattern) > _MAX_CHARACTERS:
            raise ValueError("it is too large")
        work.spend(len(pattern) * len(alphabet) * _WORK_OF_A_CHARACTER)
        self._work = work
        #: The automaton; the first instruction is its end, which no character leaves.
        self._steps = [_Step(frozenset(), ())]
        #: Counted even if it adds no instruction: an empty group can be repeated without end.
        self._nodes = 0
        self._start = self._add(_Parser(pattern, alphabet).parse(), _END)
        self._has_assertions = any(isinstance(step.condition, _Assertion) for step in self._steps)
        #: The states after a character, by those before it: names have the same few characters.
        #: Only if there are no assertions, which depend on the place in the name.
        self._moves: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        #: Each of these sets once: comparing equal ones that are not identical takes long.
        self._sets: dict[frozenset[int], frozenset[int]] = {}
        self._remembered_states = 0

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches. Raises TooMuchWorkError."""
        states = self._reachable({self._start}, text, 0)
        for position, character in enumerate(text):
            self._work.spend(1)
            states = self._move(states, text, position, character)
            if not states:
                return False
        return _END in states

    def _append(self, condition: _Condition, *then: int) -> int:
        self._steps.append(_Step(condition, then))
        return len(self._steps) - 1

    def _add(self, node: _Node, then: int) -> int:
        """Add the instructions of a node, which continue at `then`; return the first of them."""
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise ValueError("it is too large")
        self._work.spend(_WORK_OF_A_NODE)
        match node:
            case _Sequence(items):
                for item in reversed(items):
                    then = self._add(item, then)
                return then
            case _Choice(options):
                return self._append(None, *[self._add(option, then) for option in options])
            case _Repeat():
                return self._add_repeat(node, then)
            case _:
                return self._append(node, then)

    def _add_repeat(self, repeat: _Repeat, then: int) -> int:
        end = then
        if repeat.high is None:
            then = self._append(None)
            self._steps[then] = _Step(None, (self._add(repeat.node, then), end))
        else:
            for _ in range(repeat.high - repeat.low):
                then = self._append(None, self._add(repeat.node, then), end)
        for _ in range(repeat.low):
            then = self._add(repeat.node, then)
        return then

    def _move(
        self, states: frozenset[int], text: str, position: int, character: str
    ) -> frozenset[int]:
        """Return the states after the character at a position."""
        if (known := self._moves.get((states, character))) is not None:
            return known
        self._work.spend(len(states))
        after: set[int] = set()
        for state in states:
            condition, then = self._steps[state]
            if isinstance(condition, frozenset) and character in condition:
                after.update(then)
        reached = self._reachable(after, text, position + 1)
        if not self._has_assertions:
            self._remembered_states += len(states) + len(reached)
            if self._remembered_states > _MAX_REMEMBERED_STATES:
                self._moves.clear()
                self._sets.clear()
                self._remembered_states = len(states) + len(reached)
            states = self._sets.setdefault(states, states)
            reached = self._sets.setdefault(reached, reached)
            self._moves[states, character] = reached
        return reached

    def _reachable(self, states: set[int], text: str, position: int) -> frozenset[int]:
        """Return the states that are reached without another character."""
        reached, left = set(states), list(states)
        while left:
            condition, then = self._steps[left.pop()]
            self._work.spend(len(then) or 1)
            if isinstance(condition, frozenset) or not _holds(condition, text, position):
                continue
            for next_state in then:
                if next_state not in reached:
                    reached.add(next_state)
                    left.append(next_state)
        return frozenset(reached)


def _holds(condition: _Assertion | None, text: str, position: int) -> bool:
    if condition is None:
        return True
    if condition is _Assertion.BEGIN:
        return position == 0
    if condition is _Assertion.END:
        return position == len(text)
    before = position > 0 and text[position - 1] in _WORD
    after = position < len(text) and text[position] in _WORD
    return (before != after) == (condition is _Assertion.WORD_BOUNDARY)
