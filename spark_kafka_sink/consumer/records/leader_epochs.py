"""The leader epochs of the records of an answer, which are in the headers of their batches."""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spark_kafka_sink.model import NO_LEADER_EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from spark_kafka_sink.record.reading.record_decoder import BatchIndex

#: baseOffset, batchLength and partitionLeaderEpoch, the first fields of a batch.
_START: Final = struct.Struct(">qii")
#: The bytes of a batch that batchLength does not count.
_LOG_OVERHEAD: Final = 12


class LeaderEpochs:
    """The leader epoch of each offset in an answer.

    Epochs never decrease in a log. So if the first and the last batch have the same one, all have
    it, and no other header has to be read.
    """

    def __init__(self, data: memoryview, index: BatchIndex) -> None:
        """Read the complete batches that `index` counts."""
        self._last = index.leader_epoch
        #: The offsets from which on a batch has another epoch than the one before, and the epochs.
        self._offsets: list[int] = []
        self._epochs: list[int] = []
        if index.batch_count and _START.unpack_from(data)[2] != self._last:
            self._read_headers(data, index.size)

    def at(self, offset: int) -> int:
        """Return the epoch of the record at an offset; `NO_LEADER_EPOCH` if it is not known."""
        if not self._offsets:
            return self._last
        return self._epochs[max(bisect_right(self._offsets, offset) - 1, 0)]

    def of(self, offsets: npt.NDArray[np.int64] | Sequence[int]) -> Iterable[int | None]:
        """Return the epochs of records at offsets, None where it is not known: at least as many."""
        if not self._offsets:
            return repeat(_known(self._last))
        places: Any = np.searchsorted(self._offsets, offsets, side="right") - 1
        known = [_known(epoch) for epoch in self._epochs]
        return map(known.__getitem__, places.tolist())

    def _read_headers(self, data: memoryview, size: int) -> None:
        position = 0
        while position < size:
            base_offset, length, epoch = _START.unpack_from(data, position)
            if not self._epochs or epoch != self._epochs[-1]:
                self._offsets.append(base_offset)
                self._epochs.append(epoch)
            position += length + _LOG_OVERHEAD


def _known(epoch: int) -> int | None:
    return None if epoch == NO_LEADER_EPOCH else epoch
