"""Encode arrays of Arrow as batches of payloads of JSON, with the compiled kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.formats.columnar.batch_encoder import BAD_OFFSETS, BatchEncoder, Failure
from spark_kafka_sink.formats.json.encode_kernel import (
    ENCODE_TASK_DTYPE,
    EncodeStatus,
    encode_json,
)
from spark_kafka_sink.formats.json.number_kernel import TABLES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: What is wrong with a value, and what to do.
_EXPLANATIONS: Final[dict[int, tuple[str, str]]] = {
    EncodeStatus.NULL_KEY: ("a key of the map is null", "Remove the entry, or fill the null"),
    EncodeStatus.NOT_UTF8: ("the string is not UTF-8", "Correct it, or write bytes"),
    EncodeStatus.BAD_OFFSETS: BAD_OFFSETS,
}


class Encoder(BatchEncoder):
    """Encodes arrays by one plan."""

    task_dtype = ENCODE_TASK_DTYPE
    explanations = _EXPLANATIONS

    def encode_rows(self, array: Any, rows: npt.NDArray[np.int64]) -> tuple[Any, list[Failure]]:
        """Encode some rows of an array as `encode_good` does; failures number them from 0.

        What the array has in other rows is not read, so it need not be copied before. Raises
        IndexError for a row that it does not have.
        """
        if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < len(array):
            raise IndexError(f"a row is not among the {len(array)} of the array")
        failures: list[Failure] = []
        return self._encoded(array, b"", failures, collects=True, chosen=rows), failures

    def _run(self, task: npt.NDArray[np.void]) -> int:
        task["tables"] = TABLES.ctypes.data
        return encode_json(task)
