"""Conversion of Arrow tables, streams and extension types to record batches."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.record.arrow.record_columns import record_batches
from tests.support.record.arrow_rows import (
    HEADERS,
    batch_of,
    read_batch,
)


class _Extension(pa.ExtensionType):
    """An extension type over any storage."""

    def __init__(self, storage: pa.DataType) -> None:
        super().__init__(storage, "test.extension")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> _Extension:
        return cls(storage)


class _Exporting:
    """An object that exports Arrow data by a single method of the PyCapsule interface."""

    def __init__(self, method: str, data: object) -> None:
        self._export = getattr(data, method)
        setattr(type(self), method, lambda self, requested=None: self._export(requested))


def test_a_batch_is_returned_unchanged():
    """A batch without extension columns is returned unchanged."""
    batch = batch_of()
    [same] = record_batches(batch)
    assert same is batch


def test_a_table_is_read_chunk_by_chunk():
    """The chunks of different columns need not have the same boundaries."""
    table = pa.table(
        {
            "value": pa.chunked_array([[b"a"], [b"b", b"c"]]),
            "key": pa.chunked_array([[b"1", b"2"], [b"3"]]),
        }
    )
    records = [record for batch in record_batches(table) for record in read_batch(batch)]
    assert [(b"1", b"a"), (b"2", b"b"), (b"3", b"c")] == [(r.key, r.value) for r in records]


@pytest.mark.parametrize(
    ("method", "data"),
    [("__arrow_c_stream__", pa.table({"value": [b"a", b"b"]})), ("__arrow_c_array__", batch_of())],
)
def test_objects_that_export_arrow_data_are_accepted(method, data):
    """Any object that exports Arrow data is accepted, such as a Polars data frame."""

    class Exporting(_Exporting):
        pass

    batches = record_batches(Exporting(method, data))
    assert data.num_rows == sum(batch.num_rows for batch in batches)


@pytest.mark.parametrize("storage", [pa.binary(), pa.large_string(), pa.binary_view(), HEADERS])
def test_extension_columns_are_replaced_by_their_storage(storage):
    """Extension columns are replaced by their storage, and keep their positions and names."""
    array = pa.ExtensionArray.from_storage(_Extension(storage), pa.array([None, None], storage))
    batch = pa.record_batch({"key": pa.array([b"k", b"l"]), "value": array, "x": array})
    [plain] = record_batches(batch)
    assert ["key", "value", "x"] == plain.schema.names
    assert [pa.binary(), storage, storage] == plain.schema.types


@pytest.mark.parametrize(
    "data",
    [
        None,
        [b"v"],
        {"value": [b"v"]},
        pa.array([b"v"]).to_pylist(),
        pa.array([b"v"]),
        pa.chunked_array([[b"v"]]),
        pa.array([{"value": b"v"}, None], pa.struct([("value", pa.binary())])),
    ],
)
def test_unsupported_data_is_rejected(data):
    """The error for unsupported data names its type and explains how to make a table."""
    with pytest.raises(SchemaError, match=rf"not {type(data).__name__}: create one with"):
        record_batches(data)
