"""The framing of payloads: how the bytes of a key or a value name their schema.

Confluent's framing is a byte 0 and the id of the schema as a big-endian int32; the payload follows.
Whole columns are read at once. What looks like another framing is named in the error.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.registry.schemas import MAX_ID

if TYPE_CHECKING:
    import numpy.typing as npt

#: The magic byte, and the id of the schema.
_PREFIX: Final = struct.Struct(">bi")
PREFIX_BYTES: Final = _PREFIX.size
_INT32: Final = np.dtype(">i4")
_MAGIC: Final = 0
#: The headers of Confluent's newer framing, whose payloads have no prefix (their own GUID may be in
#: a prefix as well, after this byte).
SCHEMA_ID_HEADERS: Final = {"key": "__key_schema_id", "value": "__value_schema_id"}
_GUID_MAGIC: Final = 1
#: AWS Glue: the version of the header, the compression, and a UUID.
_GLUE_PREFIXES: Final = (b"\x03\x00", b"\x03\x05")
_NEGATIVE_ID: Final = "has the id {} for its schema, and ids are not negative"
#: The marker of Avro's single-object encoding, before a fingerprint of the schema.
_SINGLE_OBJECT: Final = b"\xc3\x01"
#: The first bytes of those.
_TWO_BYTES: Final = [marker[0] for marker in (*_GLUE_PREFIXES, _SINGLE_OBJECT)]


class Unframed(IntEnum):
    """What stands in place of an id for a row that has none."""

    NULL = -1
    #: Fewer bytes than the prefix has.
    TOO_SHORT = -2
    #: The first byte is not 0.
    OTHER_MAGIC = -3
    NEGATIVE_ID = -4


def prefix(schema_id: int) -> bytes:
    """Return the five bytes before a payload; ValueError for an id that none can have."""
    if not 0 <= schema_id <= MAX_ID:
        raise ValueError(f"the id of a schema is between 0 and {MAX_ID}, not {schema_id}")
    return _PREFIX.pack(_MAGIC, schema_id)


def schema_ids(payloads: Any) -> npt.NDArray[np.int64]:
    """Return the ids of the schemas of a `pyarrow.BinaryArray`, one for each row.

    A row without an id has one of `Unframed`. Large binary arrays are read, too. Raises TypeError
    for an array of another type.
    """
    if not (pa.types.is_binary(payloads.type) or pa.types.is_large_binary(payloads.type)):
        raise TypeError(f"payloads are an array of binary, not {payloads.type}")
    rows = len(payloads)
    if not rows:
        return np.empty(0, np.int64)
    _, offsets_buffer, data_buffer = payloads.buffers()
    kind = np.int32 if pa.types.is_binary(payloads.type) else np.int64
    offsets = np.frombuffer(
        offsets_buffer, kind, rows + 1, payloads.offset * np.dtype(kind).itemsize
    )
    starts = offsets[:-1]
    has_id = np.diff(offsets) >= PREFIX_BYTES
    if not payloads.null_count and has_id.all():
        return _framed_ids(starts, data_buffer)
    valid = np.asarray(payloads.is_valid())
    ids = np.where(valid, Unframed.TOO_SHORT, Unframed.NULL).astype(np.int64)
    has_id &= valid
    if has_id.any():
        ids[has_id] = _framed_ids(starts[has_id], data_buffer)
    return ids


def _framed_ids(starts: npt.NDArray[Any], data_buffer: Any) -> npt.NDArray[np.int64]:
    """Return the ids of payloads that begin at `starts`, each with as many bytes as a prefix."""
    data = np.frombuffer(data_buffer, np.uint8)
    # The int32 at each byte: where there is a prefix, the one that begins behind the magic byte.
    integers: npt.NDArray[np.int32] = np.ndarray(
        len(data) - _INT32.itemsize + 1, _INT32, data_buffer, strides=(1,)
    )
    ids: npt.NDArray[np.int64] = integers[starts + 1].astype(np.int64)
    ids[ids < 0] = Unframed.NEGATIVE_ID
    ids[data[starts] != _MAGIC] = Unframed.OTHER_MAGIC
    return ids


def schema_id_of(payload: bytes) -> int | None:
    """Return the id of the schema of one payload; None if it has none."""
    if len(payload) < PREFIX_BYTES:
        return None
    magic, schema_id = _PREFIX.unpack_from(payload)
    return schema_id if magic == _MAGIC and schema_id >= 0 else None


def why_unframed(payload: bytes) -> str:
    """Return why a payload has no id, as the end of a sentence that begins with "it"."""
    if payload.startswith(_GLUE_PREFIXES):
        return "seems to have the framing of AWS Glue's registry, which is not supported yet"
    if payload.startswith(_SINGLE_OBJECT):
        return "seems to have Avro's single-object encoding, which is not supported yet"
    if len(payload) < PREFIX_BYTES:
        return (
            f"has {len(payload)} bytes, fewer than the {PREFIX_BYTES} of the framing of a registry"
        )
    magic, schema_id = _PREFIX.unpack_from(payload)
    if magic == _GUID_MAGIC:
        return "seems to have a GUID for its schema (Confluent's V1), which is not supported yet"
    if magic != _MAGIC:
        return f"begins with the byte {payload[0]}, not with the byte 0 of a registry's framing"
    return _NEGATIVE_ID.format(schema_id)


def why_all_unframed(payloads: Any) -> Any:
    """Return why payloads have no id, each as `why_unframed` does, as a `pyarrow.StringArray`.

    `payloads` is a `pyarrow.BinaryArray` without nulls, of payloads that have none.
    """
    if not len(payloads):
        return pa.array([], pa.string())
    heads = pc.binary_slice(payloads, 0, PREFIX_BYTES)
    padded = pc.binary_join_element_wise(heads, bytes(PREFIX_BYTES), b"")
    data = pc.binary_slice(padded, 0, PREFIX_BYTES).buffers()[2]
    table = np.frombuffer(data, np.uint8, PREFIX_BYTES * len(payloads)).reshape(-1, PREFIX_BYTES)
    sizes = pc.binary_length(heads).to_numpy()
    has_magic = (sizes == PREFIX_BYTES) & (table[:, 0] == _MAGIC)
    # The others are told apart by their sizes and first bytes, some by the second bytes, too.
    first, second = table[:, 0].astype(np.int64), table[:, 1]
    kinds = (sizes << 16) | (first << 8) | np.where(np.isin(first, _TWO_BYTES), second, 0)
    distinct: Any = pa.array(kinds).dictionary_encode()
    texts = [
        why_unframed(((kind & 0xFFFF).to_bytes(2) + bytes(PREFIX_BYTES))[: kind >> 16])
        for kind in distinct.dictionary.to_pylist()
    ]
    reasons = pa.array(texts, pa.string()).take(distinct.indices)
    if not has_magic.any():
        return reasons
    ids: Any = pa.array(table[:, 1:].copy().view(_INT32).ravel().astype(np.int32)).cast(pa.string())
    before, _, after = _NEGATIVE_ID.partition("{}")
    negative = pc.binary_join_element_wise(before, ids, after, "")
    return pc.if_else(pa.array(has_magic), negative, reasons)


def rows_with_schema_id_header(headers: Any, part: str) -> npt.NDArray[np.int64]:
    """Return the rows whose headers name a schema for their `part` (key or value), in order.

    `headers` is the column of lists of headers. The payload of such a row has no prefix, but may
    look as if it had.
    """
    names = pc.struct_field(headers.flatten(), "key")
    named = pc.equal(names, pa.scalar(SCHEMA_ID_HEADERS[part]))
    if not pc.any(named).as_py():
        return np.empty(0, np.int64)
    return np.unique(np.asarray(headers.value_parent_indices().filter(named), np.int64))
