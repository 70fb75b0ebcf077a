"""Encode arrays of Arrow as batches of payloads of JSON, with the compiled kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.formats.columnar.batch_encoder import BAD_OFFSETS, BatchEncoder
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

    def _run(self, task: npt.NDArray[np.void]) -> int:
        task["tables"] = TABLES.ctypes.data
        return encode_json(task)
