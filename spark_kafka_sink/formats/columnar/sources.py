"""The columns of Arrow that are encoded, and the types that only store values in another way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa

#: How the kernel finds the items of a column.
Storage: TypeAlias = Literal["null", "bits", "numbers", "bytes", "symbols", "list", "struct"]


@dataclass(frozen=True, slots=True)
class Source:
    """A column of the input, and those below it."""

    slot: int
    #: Where it is, for errors, such as `value.lines[].price`.
    path: str
    #: The type of the column, and what the schema has for it.
    type: Any
    target: str
    storage: Storage
    #: The type to which the values are cast before the kernel reads them; None if they are not.
    cast: Any = None
    #: Whether Arrow converts the values, and follows their references unchecked.
    needs_check: bool = False
    symbols: tuple[str, ...] = ()
    #: Items; keys and values; or fields of a struct, with their positions.
    children: tuple[Source, ...] = ()
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EncodePlan:
    """How to encode arrays of one type."""

    #: A `pyarrow.DataType`.
    type: Any
    source: Source
    #: The columns by their slots.
    sources: tuple[Source, ...]
    #: Operations of the format's, a fixed number of integers each.
    program: tuple[int, ...]
    constants: bytes
    #: The most lists that a value is in.
    lists: int
    #: About what a payload takes, without texts and what is in lists.
    row_bytes: int


class PlanBuilder:
    """A plan that grows, operation by operation; each format adds its own kinds."""

    def __init__(self, width: int) -> None:
        """Set how many integers an operation has."""
        self._width = width
        self.program: list[int] = []
        self.constants = bytearray()
        self.sources: list[Source] = []
        self.row_bytes = 0
        self._slots = 0
        #: The lists that the next operation is in, and the most of any operation.
        self._lists = 0
        self.most_lists = 0

    def _next(self) -> int:
        return len(self.program) // self._width

    def plan(self, arrow_type: Any, source: Source) -> EncodePlan:
        """Return the plan for arrays of a `pyarrow.DataType`; `source` is their column."""
        return EncodePlan(
            arrow_type,
            source,
            tuple(sorted(self.sources, key=lambda each: each.slot)),
            tuple(self.program),
            bytes(self.constants),
            self.most_lists,
            self.row_bytes,
        )


def value_type(arrow_type: Any) -> Any:
    """Return the type of the values of a type that only stores them in another way."""
    while True:
        if isinstance(arrow_type, pa.BaseExtensionType):
            arrow_type = arrow_type.storage_type
        elif pa.types.is_dictionary(arrow_type) or pa.types.is_run_end_encoded(arrow_type):
            arrow_type = arrow_type.value_type
        else:
            return arrow_type


def is_any_list(arrow_type: Any) -> bool:
    """Return whether a type is one of Arrow's lists, whatever their layout."""
    return (
        pa.types.is_list(arrow_type)
        or pa.types.is_large_list(arrow_type)
        or pa.types.is_fixed_size_list(arrow_type)
        or pa.types.is_list_view(arrow_type)
        or pa.types.is_large_list_view(arrow_type)
    )


def is_any_string(arrow_type: Any) -> bool:
    """Return whether a type is one of Arrow's strings, whatever their layout."""
    return (
        pa.types.is_string(arrow_type)
        or pa.types.is_large_string(arrow_type)
        or pa.types.is_string_view(arrow_type)
    )


def is_any_binary(arrow_type: Any) -> bool:
    """Return whether a type is one of Arrow's byte strings, whatever their layout."""
    return (
        pa.types.is_binary(arrow_type)
        or pa.types.is_large_binary(arrow_type)
        or pa.types.is_binary_view(arrow_type)
        or pa.types.is_fixed_size_binary(arrow_type)
    )


def _has_offsets(kind: Any) -> bool:
    """Return whether a type of lists or maps stores where each one ends."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)


def stored_bytes(kind: Any) -> Any:
    """Return the type of strings or bytes that are stored as bytes with offsets."""
    if is_any_string(kind):
        return pa.large_string() if pa.types.is_string_view(kind) else kind
    is_plain = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return kind if is_plain else pa.large_binary()


def is_direct(arrow_type: Any, storage: Storage, cast: Any) -> bool:
    """Return whether the kernel reads the values of a type where they are.

    Of those that it does not, Arrow follows the references unchecked.
    """
    kind = value_type(arrow_type)
    if arrow_type != kind or storage == "symbols":
        return False
    if storage == "list":
        return _has_offsets(kind)
    return storage != "bytes" or cast is None
