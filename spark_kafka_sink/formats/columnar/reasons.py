"""The reasons for which rows of a batch are malformed: texts for many rows at once.

A text consists of what is the same for all rows with the same number, and of a detail of the row.
Python makes the former once for each number, and Arrow puts the texts together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


class Malformed(NamedTuple):
    """The rows of a batch that could not be decoded, and why."""

    #: Their positions, in order.
    rows: npt.NDArray[np.int64]
    #: A `pyarrow.StringArray`, with a text for each of `rows`.
    reasons: Any

    @classmethod
    def of(cls, rows: npt.NDArray[np.int64], reason: str) -> Malformed:
        """Return rows with the same reason."""
        return cls(rows, same_text(reason, len(rows)))


#: No rows.
NONE: Final = Malformed(np.empty(0, np.int64), pa.array([], pa.string()))


def same_text(text: str, count: int) -> Any:
    """Return a `pyarrow.StringArray` that has a text so many times."""
    zeros: Any = pa.array(np.zeros(count, np.int32))
    return pa.array([text], pa.string()).take(zeros)


class Words(NamedTuple):
    """What the texts of a reason have in common."""

    before: str
    #: What is behind the detail; None if there is none.
    after: str | None = None


def put_together(
    numbers: npt.NDArray[np.int64], words_of: Callable[[int], Words], details: Any
) -> Any:
    """Return a `pyarrow.StringArray` with a text for each of `numbers`.

    `words_of` returns the words of a number. Each row's detail is in the `pyarrow.StringArray`
    `details`.
    """
    distinct: Any = pa.array(numbers).dictionary_encode()
    words = [words_of(number) for number in distinct.dictionary.to_pylist()]
    before = pa.array([each.before for each in words], pa.string()).take(distinct.indices)
    after = pa.array([each.after for each in words], pa.string()).take(distinct.indices)
    if after.null_count == len(after):
        return before
    details = pc.if_else(after.is_valid(), details, "")
    return pc.binary_join_element_wise(before, details, after.fill_null(""), "")
