"""Encode arrays of Arrow as batches of Avro payloads, with the compiled kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.display import listed
from spark_kafka_sink.formats.avro.encode_kernel import (
    ENCODE_TASK_DTYPE,
    EncodeStatus,
    encode_rows,
)
from spark_kafka_sink.formats.columnar.batch_encoder import BAD_OFFSETS, BatchEncoder

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from spark_kafka_sink.formats.columnar.sources import Source

_MOST_SYMBOLS: Final = 10
_DOES_NOT_FIT: Final = (
    "the value of {type} does not fit into {target}",
    "Correct it, or use a schema with a wider type",
)
#: What is wrong with a value, and what to do.
_EXPLANATIONS: Final[dict[int, tuple[str, str]]] = {
    EncodeStatus.NULL: (
        "the value is null, but the schema has {target} without null",
        "Fill the nulls, or use a schema in which the field is optional",
    ),
    EncodeStatus.NOT_UTF8: ("the string is not UTF-8", "Correct it, or write bytes"),
    EncodeStatus.WRONG_SIZE: (
        "the value has {detail} bytes, unlike {target}",
        "Correct its length, or use a schema with bytes",
    ),
    EncodeStatus.UNKNOWN_SYMBOL: (
        "the string is not a symbol of {target}",
        "Use one of {symbols}, or a schema that has it",
    ),
    EncodeStatus.TOO_MANY_DIGITS: _DOES_NOT_FIT,
    EncodeStatus.OUT_OF_RANGE: _DOES_NOT_FIT,
    EncodeStatus.NO_MEMBER: (
        "no member of the struct is set, but the schema has a {target} without null",
        "Set one of the members, or use a schema in which the field is optional",
    ),
    EncodeStatus.BAD_OFFSETS: BAD_OFFSETS,
}


class Encoder(BatchEncoder):
    """Encodes arrays by one plan."""

    task_dtype = ENCODE_TASK_DTYPE
    explanations = _EXPLANATIONS

    def _run(self, task: npt.NDArray[np.void]) -> int:
        return encode_rows(task)

    def _known(self, source: Source, detail: int) -> dict[str, Any]:
        return super()._known(source, detail) | {"symbols": listed(source.symbols, _MOST_SYMBOLS)}
