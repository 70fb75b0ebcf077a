"""A response that is set later: a member that joins a group waits for all the others."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Parked(Generic[T]):
    """The pending response to a request, which watches this object until it is set."""

    __slots__ = ("response",)

    def __init__(self, response: T | None = None) -> None:
        """Start without a response, or with one that is known already."""
        #: None while the request waits.
        self.response = response
