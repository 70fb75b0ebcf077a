"""Which input row a record of a batch was, so that a refused record can be named (KIP-467).

A broker blames records by their place in a batch, and the rows of a batch were scattered over the
input. What was scattered is remembered as it came from the kernel, one slot number per row, for the
last rows only: 4 bytes each, 4 MB at most. For older rows the answer is None. Records that were
sent one by one have no number, but are counted: a batch may hold both.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_ROWS = 1 << 20


class RowOrigin(NamedTuple):
    """Where the first record of a batch came from."""

    #: How many records the history was told of before.
    position: int
    #: The number of its input row; None for a record without one.
    row: int | None
    #: Which of the callers' countings of rows that is.
    numbering: int


class _Rows(NamedTuple):
    position: int
    slots: NDArray[np.int32]
    first_row: int | None


class RowHistory:
    """The slots of the last rows. One thread adds, any thread asks."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        """Remember nothing yet."""
        self._max_rows = max_rows
        self._pieces: deque[_Rows] = deque()
        self._row_count = 0
        #: How many records there have been.
        self.position = 0

    def add(self, first_row: int | None, slots: NDArray[np.int32]) -> None:
        """Remember the slots of records written one after the other, negative for one in none.

        They are neighbouring input rows, the first of which is number `first_row`, or have none.
        """
        self._pieces.append(_Rows(self.position, slots, first_row))
        self.position += len(slots)
        self._row_count += len(slots)
        while self._row_count > self._max_rows:
            self._row_count -= len(self._pieces.popleft().slots)

    def clear(self) -> None:
        """Forget all, since slots are numbered anew."""
        self._pieces.clear()
        self._row_count = 0

    def row_of(self, slot: int, position: int, index: int) -> int | None:
        """Name the row of a record: number `index` of those of its slot, from `position` on.

        None if it is forgotten, or has none.
        """
        pieces = list(self._pieces)
        if not pieces or position < pieces[0].position:
            return None
        for piece in pieces:
            start = max(position - piece.position, 0)
            places = np.flatnonzero(piece.slots[start:] == slot)
            if index < len(places):
                row = piece.first_row
                return None if row is None else row + start + int(places[index])
            index -= len(places)
        return None


class BatchRows(NamedTuple):
    """The rows of one batch, or of a part of one: what `RowHistory` has to be asked for."""

    history: RowHistory
    slot: int
    position: int
    #: Records of the batch before this part of it.
    skipped: int = 0

    def row_of(self, index: int) -> int | None:
        """Name the input row of the batch's record `index`; None where that is not known."""
        return self.history.row_of(self.slot, self.position, self.skipped + index)

    def behind(self, record_count: int) -> BatchRows:
        """Give the rows behind the first `record_count` of these."""
        return self._replace(skipped=self.skipped + record_count)
