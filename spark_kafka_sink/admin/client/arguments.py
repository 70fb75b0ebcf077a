"""Checks of the arguments of `AdminClient`, before a request is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def several(names: Iterable[str]) -> tuple[str, ...]:
    """Return each name once.

    Raises TypeError for a single text, which would be taken for the names of its letters, and for
    names that are not texts.
    """
    if isinstance(names, str):
        raise TypeError(f"expected several names, such as [{names!r}], not the text {names!r}")
    given = tuple(dict.fromkeys(names))
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"expected names, such as {str(name)!r}, not {name!r}")
    return given


def among(argument: str, given: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the given names, ignoring case, as they are in `known`.

    Raises ValueError for another name, as brokers would ignore it, and TypeError as `several`.
    """
    by_lower_case = {name.lower(): name for name in known}
    found = []
    for name in several(given):
        if name.lower() not in by_lower_case:
            raise ValueError(f"{argument} must be among {', '.join(known)}, but one is {name!r}")
        found.append(by_lower_case[name.lower()])
    return tuple(dict.fromkeys(found))
