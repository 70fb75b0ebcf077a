"""Arrays of numbers, and of messages that have only numbers, which are packed and unpacked at once.

They have as many elements as there are partitions, in Metadata or ListOffsets for example: one call
for each number of each element takes most of the time of such a message.
"""

from __future__ import annotations

import struct
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.protocol.field_types import DeclaredField, Scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def letter(declared: DeclaredField) -> str:
    """Return the letter of the `struct` module for a field; empty if it is not a number."""
    type_ = declared.spec.type
    return type_.letter if isinstance(type_, Scalar) else ""


def slot_setter(message_class: type, name: str) -> Callable[[Any, Any], None]:
    """Return what sets a field of a new message: frozen, its constructor takes twice as long."""
    setter: Callable[[Any, Any], None] = vars(message_class)[name].__set__
    return setter


class Numbers:
    """The elements of an array of numbers."""

    __slots__ = ("_letter", "size")

    def __init__(self, letter: str, size: int) -> None:
        """Use the letter of the `struct` module for numbers of `size` bytes."""
        self._letter = letter
        #: That of an element, in bytes.
        self.size = size

    def pack(self, values: Sequence[Any]) -> bytes | None:
        """Return the elements; None if one does not fit."""
        try:
            return struct.pack(f">{len(values)}{self._letter}", *values)
        except struct.error:
            return None

    def unpack(self, view: memoryview) -> tuple[Any, ...]:
        """Return the elements."""
        return struct.unpack(f">{view.nbytes // self.size}{self._letter}", view)


class NumberRows:
    """The elements of an array of messages that have only numbers, in one version."""

    __slots__ = ("_class", "_get", "_is_flexible", "_layout", "_others", "_setters", "size")

    def __init__(
        self,
        message_class: type,
        numbers: Sequence[DeclaredField],
        absent: Sequence[DeclaredField],
        *,
        flexible: bool,
    ) -> None:
        """Use the fields that the version has, and those that it lacks, which have defaults."""
        self._class = message_class
        self._is_flexible = flexible
        self._get = attrgetter(*(it.name for it in numbers))
        self._setters = [slot_setter(message_class, it.name) for it in numbers]
        self._others = [(slot_setter(message_class, it.name), it.default) for it in absent]
        # With the number of tagged fields, in flexible versions.
        letters = "".join(map(letter, numbers)) + ("B" if flexible else "")
        self._layout = struct.Struct(f">{letters}")
        #: That of an element, in bytes.
        self.size = self._layout.size

    def pack(self, values: Sequence[Any]) -> bytes | None:
        """Return the elements; None if one does not fit."""
        get, pack = self._get, self._layout.pack
        tags = (0,) if self._is_flexible else ()
        try:
            return b"".join([pack(*get(value), *tags) for value in values])
        except struct.error:
            return None

    def unpack(self, view: memoryview) -> tuple[Any, ...] | None:
        """Return the elements; None if one of them has tagged fields."""
        new, message_class, is_flexible = object.__new__, self._class, self._is_flexible
        setters, others = self._setters, self._others
        found = []
        for row in self._layout.iter_unpack(view):
            if is_flexible and row[-1]:
                return None
            element: Any = new(message_class)
            for set_field, value in zip(setters, row, strict=False):
                set_field(element, value)
            for set_field, value in others:
                set_field(element, value)
            found.append(element)
        return tuple(found)
