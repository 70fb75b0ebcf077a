"""The names of subjects, which may begin with a context: `:.context:name`.

A name without a context is in the default one, `.`. A context is a name space of its own: ids are
unique within it, not beyond it. `:.context:` alone stands for the context itself, which can have a
compatibility level and a mode; `:.__GLOBAL:` for all of them; `:*:` matches any context.
"""

from __future__ import annotations

import unicodedata
from typing import Final, NamedTuple

DEFAULT_CONTEXT: Final = "."
ANY_CONTEXT: Final = "*"
_GLOBAL_CONTEXT: Final = ".__GLOBAL"
#: The key of the settings for all contexts.
GLOBAL_SETTINGS: Final = f":{_GLOBAL_CONTEXT}:"
_CONTEXT_START: Final = ":."
_ANY_CONTEXT_START: Final = f":{ANY_CONTEXT}:"
_RESERVED_NAMES: Final = frozenset({"__GLOBAL", "__EMPTY"})


class Subject(NamedTuple):
    """The name of a subject, with its context."""

    context: str
    name: str

    @property
    def text(self) -> str:
        """The name as responses have it."""
        return f"{self.context_text}{self.name}"

    @property
    def context_text(self) -> str:
        """The context as a name begins with it: nothing for the default one."""
        return "" if self.context == DEFAULT_CONTEXT else f":{self.context}:"

    @property
    def is_default_context(self) -> bool:
        """Whether it stands for the default context itself."""
        return self.context == DEFAULT_CONTEXT and not self.name

    @property
    def is_global(self) -> bool:
        """Whether it is in the context that stands for all contexts."""
        return self.context == _GLOBAL_CONTEXT


def parse_subject(text: str) -> Subject:
    """Return the context and the name of a subject."""
    if text.startswith(_CONTEXT_START):
        context, _, name = text[1:].partition(":")
        return Subject(context, name)
    if text.startswith(_ANY_CONTEXT_START):
        return Subject(ANY_CONTEXT, text.removeprefix(_ANY_CONTEXT_START))
    return Subject(DEFAULT_CONTEXT, text)


def relative_to(parent: Subject, text: str) -> Subject:
    """Return a subject whose name without a context is in that of its parent."""
    subject = parse_subject(text)
    return subject if subject.context != DEFAULT_CONTEXT else Subject(parent.context, subject.name)


def in_context(context: str, text: str) -> str:
    """Return the name of a subject in a context, unless it begins with one."""
    if text.startswith((_CONTEXT_START, _ANY_CONTEXT_START)):
        return text
    named = parse_subject(context if context.startswith(":") else f":{context}:").context
    return Subject(named, text).text


def is_valid(subject: Subject, *, for_settings: bool = False) -> bool:
    """Return whether a subject may be registered or, `for_settings`, have a level and a mode."""
    return (
        not any(unicodedata.category(letter) == "Cc" for letter in subject.text)
        and subject.name not in _RESERVED_NAMES
        and (for_settings or not subject.is_global)
    )
