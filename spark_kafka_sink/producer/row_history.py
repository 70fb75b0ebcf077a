"""Which input row a record of a batch was, so that a refused record can be named (KIP-467).

A broker blames records by their place in a batch, and the rows of a batch were scattered over the
input. What was scattered is remembered as it came from the kernel, one slot number per row, for the
last rows only: 4 bytes each, 4 MB at most. For older rows the answer is None.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_ROWS = 1 << 20


class _Rows(NamedTuple):
    first_row: int
    slots: NDArray[np.int32]


class RowHistory:
    """The slots of the last rows. One thread adds, any thread asks."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        """Remember nothing yet."""
        self._max_rows = max_rows
        self._pieces: deque[_Rows] = deque()
        self._row_count = 0

    def add(self, first_row: int, slots: NDArray[np.int32]) -> None:
        """Remember the slots of neighbouring rows, the first of which is number `first_row`.

        Rows are numbered upwards; whoever starts again from a lower number starts a new history.
        """
        if self._pieces and first_row < self._pieces[-1].first_row + len(self._pieces[-1].slots):
            self.clear()
        self._pieces.append(_Rows(first_row, slots))
        self._row_count += len(slots)
        while self._row_count > self._max_rows:
            self._row_count -= len(self._pieces.popleft().slots)

    def clear(self) -> None:
        """Forget all, since rows or slots are numbered anew."""
        self._pieces.clear()
        self._row_count = 0

    def row_of(self, slot: int, first_row: int, index: int) -> int | None:
        """Name the row of a record: number `index` of those of its slot, from `first_row` on.

        None if it is forgotten.
        """
        pieces = list(self._pieces)
        if not pieces or first_row < pieces[0].first_row:
            return None
        for piece in pieces:
            start = max(first_row - piece.first_row, 0)
            places = np.flatnonzero(piece.slots[start:] == slot)
            if index < len(places):
                return piece.first_row + start + int(places[index])
            index -= len(places)
        return None


class BatchRows(NamedTuple):
    """The rows of one batch, or of a part of one: what `RowHistory` has to be asked for."""

    history: RowHistory
    slot: int
    first_row: int
    #: Records of the batch before this part of it.
    skipped: int = 0

    def row_of(self, index: int) -> int | None:
        """Name the input row of the batch's record `index`; None where that is forgotten."""
        return self.history.row_of(self.slot, self.first_row, self.skipped + index)

    def behind(self, record_count: int) -> BatchRows:
        """Give the rows behind the first `record_count` of these."""
        return self._replace(skipped=self.skipped + record_count)
