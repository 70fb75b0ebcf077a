"""Arrays whose buffers end where the process may not read, at all levels."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tests.support.record.reading.guarded_memory import guarded_array


def guarded(array: pa.Array) -> pa.Array:
    """Return a copy of an array whose buffers have no accessible memory after them.

    Those of dictionaries and runs remain as they are.
    """
    kind = array.type
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) or "view" in str(kind):
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return array
    children = None
    if pa.types.is_struct(kind):
        # Without the offset of the array.
        array = pa.concat_arrays([array])
        children = [guarded(array.field(number)) for number in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        fields = [kind.key_field, kind.item_field]
        entries = pa.StructArray.from_arrays([array.keys, array.items], fields=fields)
        children = [guarded(entries)]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        children = [guarded(array.values)]
    count = 1 if pa.types.is_struct(kind) or pa.types.is_null(kind) else 2
    count = 3 if _is_text(kind) else count
    buffers = [None if each is None else _copied(each) for each in array.buffers()[:count]]
    return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset, children=children)


def _is_text(kind: pa.DataType) -> bool:
    return (
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def _copied(buffer: pa.Buffer) -> pa.Buffer:
    memory = guarded_array(buffer.size)
    memory[:] = np.frombuffer(buffer, np.uint8)
    return pa.py_buffer(memory)
