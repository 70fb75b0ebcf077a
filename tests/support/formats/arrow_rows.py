"""Rows of Arrow arrays as `interpreter` has them: times are raw numbers, structs dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from spark_kafka_sink.formats.columnar.columns import Column


def rows_of(column: Column, array: Any) -> list[Any]:
    """Return the values of an array that is the column's."""
    if column.kind == "null":
        return [None] * len(array)
    present = array.is_valid().to_pylist()
    if column.kind == "struct":
        names = [column.type.field(number).name for number in range(column.type.num_fields)]
        members = [
            rows_of(child, array.field(number)) for number, child in enumerate(column.children)
        ]
        return [
            {name: values[row] for name, values in zip(names, members, strict=True)}
            if present[row]
            else None
            for row in range(len(array))
        ]
    if column.kind in {"list", "map"}:
        parts = [array.values] if column.kind == "list" else [array.keys, array.items]
        values = [rows_of(*pair) for pair in zip(column.children, parts, strict=True)]
        items = values[0] if column.kind == "list" else list(zip(*values, strict=True))
        ends = array.offsets.to_pylist()
        return [
            items[ends[row] : ends[row + 1]] if present[row] else None for row in range(len(array))
        ]
    return array.view(_raw(array.type)).to_pylist()


def _raw(arrow_type: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(arrow_type) or pa.types.is_time(arrow_type):
        return pa.int64()
    return pa.int32() if pa.types.is_date(arrow_type) else arrow_type
