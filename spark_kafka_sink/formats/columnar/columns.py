"""The columns that values of a format become, as a tree that is numbered for compiled loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind: TypeAlias = Literal["null", "boolean", "number", "bytes", "decimal", "list", "map", "struct"]

MOST_COLUMNS: Final = 10_000
MOST_DIGITS: Final = 38


@dataclass(frozen=True, slots=True)
class Column:
    """A column of Arrow, and its children: items, key and value, or members."""

    kind: Kind
    #: A `pyarrow.DataType`.
    type: Any
    nullable: bool
    #: Its number, in the order in which a walk meets columns before their children.
    slot: int
    children: tuple[Column, ...] = ()
    #: For each branch of the union that the column is for, its member, or None for null.
    #: A union that has one branch beside null, or is a promotion, has no members.
    members: tuple[Column | None, ...] = ()
    #: One past the slots of the column and all below it.
    end: int = field(kw_only=True)

    def all(self) -> Iterator[Column]:
        """Iterate over the column and all below it, by their slots."""
        yield self
        for child in self.children:
            yield from child.all()
