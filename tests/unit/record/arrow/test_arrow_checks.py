"""Arrow arrays that refer beyond their buffers are rejected before anything follows them."""

from __future__ import annotations

import ctypes
import struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from spark_kafka_sink.errors import RecordError, SchemaError
from spark_kafka_sink.record.arrow.record_columns import first_bad_row, record_columns
from tests.support.record.arrow_rows import HEADER, batch_of, read_batch

BINARY, BINARY_VIEW = pa.binary(), pa.binary_view()
DATA = b"x" * 40
#: Around the size of the data, and the limits of an int32.
NUMBERS = st.integers(-2, 50) | st.sampled_from([2**31 - 1, -(2**31)])
RISING = st.lists(st.integers(0, 40), min_size=1, max_size=6).map(sorted)
VALIDITY = st.none() | st.binary(min_size=2, max_size=2)


def numbers(values, dtype=np.int32) -> pa.Buffer:
    return pa.py_buffer(np.array(values, dtype).tobytes())


def strings(offsets, kind=BINARY, validity=None) -> pa.Array:
    """Create strings or bytes from any offsets into `DATA`."""
    dtype = np.int64 if kind in {pa.large_binary(), pa.large_string()} else np.int32
    buffers = [validity and pa.py_buffer(validity), numbers(offsets, dtype), pa.py_buffer(DATA)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def view(size: int, index: int = 0, offset: int = 0) -> bytes:
    """Return a view; a short one contains zeros, and a long one the prefix that `DATA` has."""
    return struct.pack("<i12x", size) if 0 <= size <= 12 else struct.pack(
        "<i4sii", size, b"xxxx", index, offset
    )  # fmt: skip


def views(parts, kind=BINARY_VIEW, validity=None, buffers=2) -> pa.Array:
    """Create an array of views into copies of `DATA`."""
    return pa.Array.from_buffers(
        kind,
        len(parts),
        [
            validity and pa.py_buffer(validity),
            pa.py_buffer(b"".join(parts)),
            *[pa.py_buffer(DATA)] * buffers,
        ],
    )


def dictionary(indices, values) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), values, safe=False)


def runs(ends, offsets) -> pa.Array:
    """Create runs of strings whose ends and offsets may fall, which pyarrow notices at first."""
    last, start = np.arange(1, len(ends) + 1, dtype=np.int32), np.zeros(len(ends) + 1, np.int32)
    last[-1] += 100
    buffers = [None, pa.py_buffer(start), pa.py_buffer(DATA)]
    array = pa.RunEndEncodedArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), len(ends), [None, pa.py_buffer(last)]),
        pa.Array.from_buffers(pa.binary(), len(ends), buffers),
    ).slice(0, max(ends[-1], 0))
    last[:], start[:] = ends, offsets
    return array


def lists(offsets, elements, validity=None) -> pa.Array:
    buffers = [validity and pa.py_buffer(validity), numbers(offsets)]
    kind = pa.list_(elements.type)
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[elements])


def list_views(starts, sizes, elements, validity=None) -> pa.Array:
    kind = pa.list_view(elements.type)
    buffers = [validity and pa.py_buffer(validity), numbers(starts), numbers(sizes)]
    return pa.Array.from_buffers(kind, len(starts), buffers, children=[elements])


def headers(keys, values) -> pa.Array:
    return pa.StructArray.from_arrays([keys, values], fields=list(HEADER))


GOOD_KEYS = pa.array(["k", "l", "m"])
GOOD = headers(GOOD_KEYS, pa.array([b"1", None, b"3"]))
BAD_KEYS = headers(strings([0, 4, 2, 6], pa.string()), pa.array([b"1", b"2", b"3"]))
BAD_VALUES = headers(GOOD_KEYS, strings([0, 4, 50, 6]))
VIEW_HEADERS = pa.StructArray.from_arrays(
    [GOOD_KEYS, views([view(1), view(2), view(20, 0, 21)])], names=["key", "value"]
)
TOPICS = pa.string()


class Wrapped(pa.ExtensionType):
    """Strings under a name of their own."""

    def __init__(self):
        super().__init__(pa.string(), "wrapped")

    def __arrow_ext_serialize__(self):
        """Return no parameters."""
        return b""


WRAPPED = pa.ExtensionArray.from_storage(Wrapped(), strings([0, 4, 2], pa.string()))

#: Column, array, and the first row that cannot be read.
MALFORMED = {
    "falling offsets": ("value", strings([0, 4, 2, 6]), 1),
    "a passing offset beyond the data": ("value", strings([0, 50, 2, 6]), 0),
    "large offsets": ("value", strings([0, 1, 4, 2, 6], pa.large_binary()), 2),
    "an offset below the slice": ("key", strings([5, 6, -1, 7], pa.string()), 1),
    "a sliced column": ("key", strings([0, 4, 5, 2, 6]).slice(1), 1),
    "a view beyond its buffer": ("value", views([view(3), view(40), view(30, 1, 11)]), 2),
    "a view of a missing buffer": ("value", views([view(20), view(20, 2)]), 1),
    "a view of buffer -1": ("value", views([view(20, -1)]), 0),
    "a view with a negative offset": ("key", views([view(20, 0, -1)]), 0),
    "a view with a negative size": ("key", views([view(-1)], pa.string_view()), 0),
    "a view of the largest size": ("value", views([view(2**31 - 1, 0, 2**31 - 1)]), 0),
    "a view without any buffer": ("value", views([view(20)], buffers=0), 0),
    "a sliced view": ("value", views([view(1), view(2), view(41)]).slice(1), 1),
    "an index beyond the dictionary": ("key", dictionary([0, None, 2], ["a", "b"]), 2),
    "a negative index": ("key", dictionary([-1, 0], ["a", "b"]), 0),
    "a dictionary with falling offsets": ("key", dictionary([0, 1], strings([0, 4, 2])), 1),
    "a dictionary of views": ("key", dictionary([1, 0], views([view(41), view(1)])), 1),
    "a dictionary of an extension type": ("key", dictionary([0, 1], WRAPPED), 1),
    "numbers by a wrong index": ("partition", dictionary([0, 7], pa.array([1, 2])), 1),
    "falling runs": ("key", runs([2, 1, 3], [0, 1, 2, 3]), 2),
    "runs of falling offsets": ("key", runs([2, 3], [0, 4, 2]), 2),
    "topics with falling offsets": ("topic", strings([0, 4, 2, 6], TOPICS), 1),
    "topics with a falling constant": ("topic", strings([40, 30, 20, 40], TOPICS), 0),
    "topics by views": ("topic", views([view(1), view(41)], pa.string_view()), 1),
    "lists with falling offsets": ("headers", lists([0, 3, 1, 3], GOOD), 1),
    "lists with nulls": ("headers", lists([0, 3, 1, 3], GOOD, b"\5\0"), 1),
    "header keys": ("headers", lists([0, 1, 3], BAD_KEYS), 1),
    "header values": ("headers", lists([0, 1, 3], BAD_VALUES), 1),
    "header values of lists with nulls": ("headers", lists([0, 1, 3], BAD_VALUES, b"\3\0"), 1),
    "header values by views": ("headers", lists([0, 0, 2, 3], VIEW_HEADERS), 2),
    "headers in a sliced list": ("headers", lists([0, 0, 1, 3], BAD_KEYS).slice(1), 1),
    "headers in views of lists": ("headers", list_views([2, 0], [1, 4], GOOD), 1),
    "headers before the elements": ("headers", list_views([0, -1], [1, 1], GOOD), 1),
    "lists of a negative size": ("headers", list_views([1, 2], [1, -1], GOOD), 1),
    "keys in views of lists": ("headers", list_views([0, 1], [1, 2], BAD_KEYS), 1),
    "keys in fixed lists": ("headers", pa.FixedSizeListArray.from_arrays(BAD_KEYS, 1), 1),
}


@pytest.mark.parametrize(("name", "array", "row"), MALFORMED.values(), ids=MALFORMED)
def test_the_error_names_the_row_that_refers_beyond_its_data(name, array, row):
    """A reference outside of a column's data is an error with the row, and nothing is read."""
    with pytest.raises((pa.ArrowInvalid, IndexError)):
        array.validate(full=True)
    batch = batch_of(**{name: array})
    topic = None if name == "topic" else "t"
    place = f"row {1000 + row}" if topic is None else f"row {1000 + row}, topic 't'"
    with pytest.raises(
        RecordError, match=rf"^{place}: column '{name}' refers to data outside"
    ) as e:
        record_columns(batch, topic=topic, first_row=1000)
    assert 1000 + row == e.value.row


@pytest.mark.parametrize("offset", [1, 1000])
def test_a_fixed_list_whose_elements_end_too_early_is_refused(offset):
    """Arrow's own validation ignores the offset; its conversion would end the process."""
    kind = pa.list_(GOOD.type, 2)
    array = pa.Array.from_buffers(kind, 1, [None], offset=offset, children=[GOOD])
    batch = batch_of(value=pa.array([b"v"]), headers=array)
    with pytest.raises(RecordError, match=r"^row 0, topic 't': column 'headers' refers to data"):
        record_columns(batch, topic="t")


def test_the_first_row_of_a_fixed_list_without_its_elements_is_named():
    """Of five elements, only the first two lists have their two; one lies before the offset."""
    kind = pa.list_(pa.binary(), 2)
    array = pa.Array.from_buffers(kind, 2, [None], offset=1, children=[pa.array([b"k"] * 5)])
    assert 1 == first_bad_row(array)


def test_values_behind_the_last_run_are_never_read():
    """Arrow allows more values than runs, even malformed ones."""
    offsets = np.array([0, 1, 2, 3, 4], np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(DATA)]
    values = pa.Array.from_buffers(BINARY, 4, buffers)
    array = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), values)
    offsets[3] = 50
    assert first_bad_row(array) is None


def test_lists_without_rows_have_any_offset():
    """The single offset of an empty column says nothing."""
    batch = batch_of(value=pa.array([], pa.binary()), headers=lists([-5], GOOD))
    assert record_columns(batch, topic="t").headers is None


def test_the_general_path_names_the_row_of_a_plain_column():
    """A malformed plain column is found beside columns of other kinds, too."""
    batch = batch_of(value=strings([0, 4, 2, 6]), partition=pa.array([0, 0, 0]))
    with pytest.raises(RecordError, match=r"^row 1, topic 't': column 'value' refers to data"):
        record_columns(batch, topic="t")


def test_a_malformed_key_is_found_among_records_of_a_topic_column():
    """The topic is named if the column of topics is good."""
    batch = batch_of(topic=pa.array(["t", "u"]), key=views([view(1), view(41)]))
    with pytest.raises(RecordError, match=r"^row 1, topic 'u': column 'key' refers to data"):
        record_columns(batch, topic=None)


def test_a_dictionary_is_checked_even_without_rows():
    """Arrow converts a dictionary as a whole, for an empty batch as well."""
    batch = batch_of(key=dictionary([], strings([0, 4, 2])))
    with pytest.raises(RecordError, match=r"^row 0: column 'key' refers to data"):
        record_columns(batch, topic="t")


def test_references_of_nulls_are_not_followed():
    """A null row may have any view, also one of a size that would end this process."""
    parts = [view(1), view(-5), view(40, 9, -9), view(-(2**30)), view(1)]
    array = views(parts, validity=b"\x11\0")
    expected = [b"\0", None, None, None, b"\0"]
    for rows in (array, array.slice(1), dictionary([0, 1, 2, 3, 4], array)):
        read = [record.value for record in read_batch(batch_of(value=rows))]
        assert expected[-len(rows) :] == read


class _ExportedArray(ctypes.Structure):
    """The first fields of `ArrowArray` in Arrow's C data interface."""


_ExportedArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ExportedArray))),
    ("rest", ctypes.c_void_p * 4),
]


def exported(array: pa.Array, rows: int) -> pa.RecordBatch:
    """Return a batch of another number of rows than its array, as a library might export it."""
    batch = pa.record_batch({"value": array})
    schema, content = ctypes.create_string_buffer(72), _ExportedArray()
    addresses = ctypes.addressof(content), ctypes.addressof(schema)
    batch._export_to_c(*addresses)
    content.length = rows
    return pa.RecordBatch._import_from_c(*addresses)


def test_a_batch_of_another_length_than_its_column_is_rejected():
    """Lengths that do not fit are an error with Arrow's reason."""
    batch = exported(pa.array([b"a", b"b"]), 3)
    with pytest.raises(SchemaError, match=r"^the Arrow data is malformed: .*3 vs 2|2 vs 3"):
        record_columns(batch, topic="t")


def test_a_sound_export_is_accepted():
    """The same export with the right length is read."""
    columns = record_columns(exported(pa.array([b"a", b"b"]), 2), topic="t")
    assert 2 == columns.num_rows


def test_the_row_is_named_if_an_import_lets_offsets_exceed_their_data():
    """Arrow's import checks no offsets; the first that is outside of the data is named."""
    offsets = np.array([0, 1, 99], np.int32)
    array = pa.Array.from_buffers(
        pa.binary(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"x" * 99)]
    )
    batch = pa.record_batch({"value": array})
    offsets[1:] = 0, -5
    with pytest.raises(RecordError, match=r"^row 1, topic 't': column 'value' refers to data"):
        record_columns(batch, topic="t")


offsets_of = st.lists(NUMBERS, min_size=1, max_size=6) | RISING


def is_refused(array: pa.Array, *, full: bool = True) -> bool:
    try:
        array.validate(full=full)
    except (pa.ArrowInvalid, IndexError):
        return True
    return False


def made(make, *arguments):
    """Return an array; None if pyarrow itself refuses to make it."""
    try:
        return make(*arguments)
    except (pa.ArrowException, ValueError):
        return None


def some_views(validity):
    part = st.builds(view, NUMBERS, st.integers(-1, 2), NUMBERS) | st.builds(
        view, st.integers(0, 40), st.integers(0, 1), st.just(0)
    )
    return st.builds(
        lambda parts, kind, bits: made(views, parts, kind, bits),
        st.lists(part, max_size=6),
        st.sampled_from([pa.binary_view(), pa.string_view()]),
        validity,
    )


STRINGS = st.builds(
    lambda offsets, kind, bits: made(strings, offsets, kind, bits),
    offsets_of,
    st.sampled_from([pa.binary(), pa.string(), pa.large_binary(), pa.large_string()]),
    VALIDITY,
) | some_views(VALIDITY)
WHOLE = STRINGS.filter(lambda array: array is not None and len(array))
INDICES = st.lists(st.none() | st.integers(-1, 6), max_size=6)
RUNS = st.lists(st.tuples(st.integers(-1, 6), st.integers(-1, 41)), min_size=1, max_size=5).map(
    lambda pairs: made(runs, [end for end, _ in pairs], [0, *[offset for _, offset in pairs]])
) | st.lists(st.integers(0, 40), min_size=1, max_size=5, unique=True).map(
    lambda ends: made(runs, sorted(ends), [0, *sorted(ends)])
)
ARRAYS = (
    STRINGS
    | st.builds(lambda indices, values: made(dictionary, indices, values), INDICES, WHOLE)
    | RUNS
    | st.builds(
        lambda offsets, elements, bits: made(lists, offsets, elements, bits),
        offsets_of,
        WHOLE,
        VALIDITY,
    )
    | st.builds(
        lambda places, elements, bits: made(
            list_views, [p for p, _ in places], [s for _, s in places], elements, bits
        ),
        st.lists(st.tuples(st.integers(-1, 6), st.integers(-1, 6)), max_size=6),
        WHOLE,
        VALIDITY,
    )
).filter(lambda array: array is not None)


class Hidden(NamedTuple):
    """An array that is shown by its buffers, as Arrow would follow what it refers to."""

    array: pa.Array

    def __repr__(self) -> str:
        """Show the type and the buffers."""
        buffers = [buffer and buffer.to_pybytes().hex() for buffer in self.array.buffers()]
        return f"{self.array.type}[{len(self.array)}] of {buffers}"


@given(hidden=ARRAYS.map(Hidden))
def test_the_verdict_is_that_of_a_full_validation(hidden):
    """Only what Arrow's full validation refuses is refused, and all of it where a row has it."""
    assume(len(hidden.array) and not is_refused(hidden.array, full=False))
    row = first_bad_row(hidden.array)
    refused = is_refused(hidden.array)
    event(f"{hidden.array.type}: refused {refused}")
    if row is not None:
        assert refused
        assert row in range(len(hidden.array))
    elif pa.types.is_list(hidden.array.type) or pa.types.is_list_view(hidden.array.type):
        # Elements that belong to no row are not read, and not checked.
        assert not is_refused(hidden.array.flatten())
    else:
        assert not refused


@given(hidden=STRINGS.filter(lambda array: array is not None).map(Hidden), data=st.data())
def test_a_slice_is_judged_by_its_own_rows(hidden, data):
    """Rows outside of a slice change neither the verdict nor the number of the row."""
    count = len(hidden.array)
    first = data.draw(st.integers(0, count))
    rows = [first_bad_row(hidden.array.slice(row, 1)) for row in range(first, count)]
    expected = next((place for place, row in enumerate(rows) if row is not None), None)
    assert expected == first_bad_row(hidden.array.slice(first))
