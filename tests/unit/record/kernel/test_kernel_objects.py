"""Lists of byte strings are converted to columns exactly, or not at all."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.record.columns import NULL_SIZE, BytesColumn
from spark_kafka_sink.record.kernel import kernel_objects
from spark_kafka_sink.record.kernel.kernel_objects import held_rows, reads_objects, scan_items


class _Future:
    pass


class _OtherFuture(_Future):
    pass


class _Bytes(bytes):
    pass


_BYTES = st.none() | st.binary(max_size=40) | st.sampled_from([b"", b"x" * 20_000])


def _items(*records: tuple[object, object], topic: str = "t") -> list[object]:
    return [item for key, value in records for item in (_Future(), topic, key, value)]


def _strings(column: BytesColumn) -> list[bytes | None]:
    count = len(column.offsets) - 1
    valid = np.unpackbits(column.validity, bitorder="little")[:count].tolist() or [1] * count
    return [
        column.data[start:end].tobytes() if is_valid else None
        for start, end, is_valid in zip(column.offsets, column.offsets[1:], valid, strict=False)
    ]


@pytest.fixture
def _forgotten():
    """Reset the cached result of `reads_objects` before and after the test."""
    reads_objects.cache_clear()
    yield
    reads_objects.cache_clear()


def test_objects_are_read_on_known_interpreters():
    """Objects are read directly on this interpreter, unless it is free-threaded."""
    assert getattr(sys, "_is_gil_enabled", lambda: True)() == reads_objects()


@pytest.mark.usefixtures("_forgotten")
def test_the_first_and_the_last_supported_version_are_known(monkeypatch):
    """Both ends of the range of supported versions are supported."""
    here = sys.version_info[:2]
    monkeypatch.setattr(kernel_objects, "_VERSIONS", (here, here))
    test_objects_are_read_on_known_interpreters()


@given(st.lists(st.tuples(_BYTES, _BYTES), min_size=1))
def test_keys_and_values_are_read_with_their_sizes(records):
    """Keys and values of any length, or None, are read with their sizes."""
    scanned = scan_items(_items(*records), _Future)
    for column, sizes, expected in (
        (scanned.key, scanned.key_sizes, [key for key, _ in records]),
        (scanned.value, scanned.value_sizes, [value for _, value in records]),
    ):
        assert expected == _strings(column)
        assert [NULL_SIZE if item is None else len(item) for item in expected] == sizes.tolist()


@pytest.mark.parametrize("item", [bytearray(b"v"), "v", 7, memoryview(b"v"), _Bytes(b"v")])
@pytest.mark.parametrize("is_key", [True, False])
def test_objects_of_other_types_are_not_read(item, is_key):
    """Objects of any other type are not read, since their layout is unknown."""
    assert (
        scan_items(_items((b"k", b"v"), (item, b"v") if is_key else (b"k", item)), _Future) is None
    )


def test_shared_topics_and_future_types_are_reported():
    """The result states whether all futures have the type, and all topics are one object."""
    items = _items((None, b"v"), (None, b"w"))
    scanned = scan_items(items, _Future)
    assert (True, True) == (scanned.is_plain, scanned.has_one_topic)
    items[4] = _OtherFuture()
    assert not scan_items(items, _Future).is_plain
    items[5] = "another"
    assert not scan_items(items, _Future).has_one_topic


@pytest.mark.parametrize("held", [[], [0], [1, 4], [0, 1, 2, 3, 4]])
def test_objects_with_other_references_are_found(held):
    """Objects with an additional reference are found."""
    objects = [_Future() for _ in range(5)]
    unheld = next(number for number in range(10) if held_rows(objects, number, 5) == [])
    kept = [objects[row] for row in held]
    assert len(held) == len(kept)
    assert held == held_rows(objects, unheld, 5)


def test_too_many_objects_with_other_references_are_not_listed():
    """The result is None if more objects than the maximum have additional references."""
    objects = [_Future() for _ in range(5)]
    unheld = next(number for number in range(10) if held_rows(objects, number, 5) == [])
    kept = objects[1:4]
    assert [1, 2, 3] == held_rows(objects, unheld, len(kept))
    assert held_rows(objects, unheld, len(kept) - 1) is None


@pytest.mark.usefixtures("_forgotten")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_VERSIONS", ((2, 7), (3, 10))),
        ("_VERSIONS", ((4, 0), (4, 1))),
        ("_BASIC_SIZES", (56, 33)),
        ("NULL_SIZE", -2),
    ],
)
def test_objects_of_an_unknown_interpreter_are_not_read(monkeypatch, name, value):
    """With another version, other sizes or a wrong sample, objects are not read."""
    monkeypatch.setattr(kernel_objects, name, value)
    assert not reads_objects()
    assert scan_items(_items((b"k", b"v")), _Future) is None


@pytest.mark.usefixtures("_forgotten")
@pytest.mark.parametrize(
    ("version", "is_read"), [((3, 10), False), ((3, 11), True), ((3, 14), True), ((3, 15), False)]
)
def test_the_layout_of_objects_is_known_from_3_11_to_3_14(monkeypatch, version, is_read):
    """The objects of a Python version that was never tried are not read."""
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    assert is_read == reads_objects()


@pytest.mark.usefixtures("_forgotten")
@pytest.mark.parametrize(
    "wrong",
    [
        {"is_plain": False},
        {"key_sizes": np.array([0, NULL_SIZE])},
        {"value_sizes": np.array([5, 14])},
        {"value": SimpleNamespace(data=np.frombuffer(b"valueof the thirds", np.uint8))},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_sample_is_not_trusted(monkeypatch, wrong):
    """Objects are read only if every part of the sample is what was put into it."""
    right = {
        "is_plain": True,
        "key_sizes": np.array([NULL_SIZE, 0]),
        "value_sizes": np.array([5, 13]),
        "value": SimpleNamespace(data=np.frombuffer(b"valueof the second", np.uint8)),
    }
    for sample, is_read in ((right, True), (right | wrong, False)):
        scanned = SimpleNamespace(**sample)
        monkeypatch.setattr(kernel_objects, "_scan", lambda *_, scanned=scanned: scanned)
        reads_objects.cache_clear()
        assert is_read == reads_objects()
