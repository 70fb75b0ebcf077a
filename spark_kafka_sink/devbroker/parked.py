"""An answer that somebody else will give: a member that joins a group waits for all the others."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Parked(Generic[T]):
    """A request's place in a queue; who waits for it watches the object itself."""

    __slots__ = ("response",)

    def __init__(self, response: T | None = None) -> None:
        """Wait, or have the answer already."""
        #: None until there is one.
        self.response = response
