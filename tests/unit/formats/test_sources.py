"""The layouts of Arrow's types that stand for strings, bytes and lists."""

from __future__ import annotations

import pyarrow as pa

from spark_kafka_sink.formats.columnar.sources import (
    is_any_binary,
    is_any_list,
    is_any_string,
    is_direct,
    stored_bytes,
    value_type,
)

ITEM = pa.int8()
STRINGS = [pa.string(), pa.large_string(), pa.string_view()]
BINARIES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)]
WITH_OFFSETS = [pa.list_(ITEM), pa.large_list(ITEM)]
LISTS = [*WITH_OFFSETS, pa.list_(ITEM, 2), pa.list_view(ITEM), pa.large_list_view(ITEM)]
MAP = pa.map_(pa.string(), ITEM)
ALL = [*STRINGS, *BINARIES, *LISTS, MAP, pa.struct({"a": ITEM}), ITEM]


def test_all_layouts_of_a_type_are_recognized():
    """Each layout is of one of them, and a map is no list."""
    assert STRINGS == [*filter(is_any_string, ALL)]
    assert BINARIES == [*filter(is_any_binary, ALL)]
    assert LISTS == [*filter(is_any_list, ALL)]


def test_lists_with_offsets_are_read_where_they_are():
    """Arrow converts the others first."""
    assert [*WITH_OFFSETS, MAP] == [kind for kind in [*LISTS, MAP] if is_direct(kind, "list", None)]


def test_values_that_arrow_converts_are_not_read_where_they_are():
    """Those are bytes that are cast, symbols, and values behind references."""
    references = pa.dictionary(pa.int8(), pa.string())
    assert [True, False, False, False] == [
        is_direct(pa.string(), "bytes", None),
        is_direct(pa.string_view(), "bytes", pa.large_string()),
        is_direct(pa.string(), "symbols", None),
        is_direct(references, "bytes", None),
    ]
    assert is_direct(ITEM, "numbers", pa.int32())


def test_a_type_stores_the_values_of_another_one():
    """Dictionaries, runs and extensions are looked through, also one in the other."""
    runs = pa.run_end_encoded(pa.int32(), pa.string())
    assert [pa.string()] * 3 == [
        value_type(pa.dictionary(pa.int8(), pa.string())),
        value_type(runs),
        value_type(pa.dictionary(pa.int8(), runs)),
    ]
    assert pa.binary(16) == value_type(pa.uuid())


def test_strings_and_bytes_are_stored_with_offsets():
    """Views and bytes of one size are converted to the layout of large ones."""
    assert [pa.string(), pa.large_string(), pa.large_string()] == [*map(stored_bytes, STRINGS)]
    assert [pa.binary(), *[pa.large_binary()] * 3] == [*map(stored_bytes, BINARIES)]
