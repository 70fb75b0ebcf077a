"""Observers of where `BatchBuilder.append` writes rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from spark_kafka_sink.errors import BufferExhaustedError
from spark_kafka_sink.producer.records.record_futures import TablePart
from spark_kafka_sink.producer.records.staged_records import Stretch

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from spark_kafka_sink.producer.gathering.open_batches import OpenBatches
    from spark_kafka_sink.producer.records.staged_records import StagedChunk


class RowWatcher(Protocol):
    """An observer of where each row was written, used when a caller waits for the rows."""

    #: int32[rows], filled with each row's index in its batch.
    row_indexes: NDArray[np.int32]

    def written(self, start: int, stop: int, row_slots: NDArray[np.int32]) -> None:
        """Record that these rows are in the open batches of their slots, before those change."""

    def refused(self, row: int, error: Exception) -> bool:
        """Record why a row cannot be written; return True to continue with the next one."""


class ChunkWatcher:
    """An observer that sets the batches of a chunk's futures."""

    def __init__(
        self,
        chunk: StagedChunk,
        open_batches: OpenBatches,
        *,
        on_refused: Callable[[Exception, int], None],
        on_progress: Callable[[], None],
        stays_staged: Callable[[], bool],
    ) -> None:
        """Observe `chunk`; `stays_staged()` returns whether a record without memory is kept."""
        self._chunk = chunk
        self._open = open_batches
        self._on_refused = on_refused
        self._on_progress = on_progress
        self._stays_staged = stays_staged
        self.row_indexes: NDArray[np.int32] = np.zeros(len(chunk.futures), np.int32)
        self.next_row = 0

    def written(self, start: int, stop: int, row_slots: NDArray[np.int32]) -> None:
        """Set the batches of these rows' futures."""
        slots = row_slots[start:stop]
        first = int(slots[0])
        # Records without keys go to one partition after another.
        distinct = [first] if (slots == first).all() else np.unique(slots).tolist()
        results = {slot: self._open.result(slot) for slot in distinct}
        self._chunk.assign_places(Stretch(start, stop, results), row_slots, self.row_indexes)
        self.next_row = stop
        self._on_progress()

    def refused(self, row: int, error: Exception) -> bool:
        """Fail the row's future, or return False if its record stays staged for lack of memory."""
        if isinstance(error, BufferExhaustedError) and self._stays_staged():
            return False
        self._on_refused(error, 1)
        self._chunk.fail((row,), error)
        self.next_row = row + 1
        return True


class TableWatcher:
    """An observer that records where the rows of a table are in their batches."""

    def __init__(self, count: int, open_batches: OpenBatches) -> None:
        self._open = open_batches
        self.row_indexes: NDArray[np.int32] = np.zeros(count, np.int32)
        self.parts: list[TablePart] = []

    def written(self, start: int, stop: int, row_slots: NDArray[np.int32]) -> None:
        """Record the parts of the table, one for each batch."""
        slots = row_slots[start:stop]
        for slot in np.unique(slots).tolist():
            indexes = self.row_indexes[start:stop][slots == slot]
            # A call owns the open batches, so its rows are adjacent in each.
            self.parts.append(TablePart(self._open.result(slot), int(indexes[0]), len(indexes)))

    def refused(self, row: int, error: Exception) -> bool:  # noqa: ARG002  as the protocol has it
        """Return False: the caller gets the error."""
        return False
