"""The input rows of the records of a batch, so that errors can name a refused record (KIP-467).

A broker reports refused records by their index in a batch, but the rows of one batch are scattered
over the input. This history stores one slot number per row, as the kernel returned them, for the
latest rows only: 4 bytes each, 4 MB at most. For older rows the answer is None. Records sent one by
one have no row number, but they are counted, because a batch may contain both kinds. Rows that are
written a few at a time take far more, so the number of pieces is limited as well.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_ROWS = 1 << 20
#: About 230 bytes each.
MAX_PIECES = 1 << 14


class RowOrigin(NamedTuple):
    """The origin of the first record of a batch."""

    #: The number of records added to the history before.
    position: int
    #: The number of its input row; None for a record without one.
    row: int | None
    #: The numbering of rows that `row` belongs to; a caller may start a new one.
    numbering: int


class _Rows(NamedTuple):
    position: int
    slots: NDArray[np.int32]
    first_row: int | None


class RowHistory:
    """The slots of the latest rows. One thread adds, any thread may read."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._pieces: deque[_Rows] = deque()
        self._row_count = 0
        #: The number of records added so far.
        self.position = 0

    def add(self, first_row: int | None, slots: NDArray[np.int32]) -> None:
        """Add the slots of records written in sequence; negative for a record in none.

        They are consecutive input rows starting at number `first_row`, or have no numbers if that
        is None.
        """
        self._pieces.append(_Rows(self.position, slots, first_row))
        self.position += len(slots)
        self._row_count += len(slots)
        while self._row_count > self._max_rows or len(self._pieces) > MAX_PIECES:
            self._row_count -= len(self._pieces.popleft().slots)

    def clear(self) -> None:
        """Remove all rows, because slots are renumbered."""
        self._pieces.clear()
        self._row_count = 0

    def row_of(self, slot: int, position: int, index: int) -> int | None:
        """Return the row of record number `index` of a slot, counted from `position` on.

        Returns None if the row is no longer stored, or has no number.
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
    """The rows of a batch or of a part of one, as a reference into `RowHistory`."""

    history: RowHistory
    slot: int
    position: int
    #: Records of the batch before this part.
    skipped: int = 0

    def row_of(self, index: int) -> int | None:
        """Return the input row of the batch's record `index`; None if it is not known."""
        return self.history.row_of(self.slot, self.position, self.skipped + index)

    def behind(self, record_count: int) -> BatchRows:
        """Return the rows after the first `record_count` of these."""
        return self._replace(skipped=self.skipped + record_count)
