"""The compiled replacement of invalid UTF-8, compared with Java's; see golden/Utf8Goldens.java."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.record.decode import decode_utf8
from spark_kafka_sink.record.kernel.kernel_support import kernel
from spark_kafka_sink.record.kernel.kernel_utf8 import is_ascii, write_utf8

GOLDEN = Path(__file__).parents[1] / "golden" / "java_utf8.json"
CASES = [
    (bytes.fromhex(encoded), bytes.fromhex(expected))
    for encoded, expected in json.loads(GOLDEN.read_text())
]


@kernel(1, int, int, int)
def _write_utf8(target, source, count):
    return write_utf8(target, source, count) - target


@kernel(1, int, int)
def _is_ascii(source, count):
    return is_ascii(source, count)


def written(encoded: bytes) -> bytes:
    """Return what the kernel writes; the bytes around the source would complete sequences."""
    source = np.frombuffer(b"\xf0\x90" + encoded + b"\x80\x80\x80", np.uint8)
    target = np.zeros(3 * len(encoded) + 1, np.uint8)
    count = _write_utf8(target.ctypes.data, source.ctypes.data + 2, len(encoded))
    assert not target[count:].any()
    return target[:count].tobytes()


def test_strings_are_replaced_as_in_java():
    """Malformed sequences of all kinds are replaced by as many characters as in Java."""
    different = [
        (encoded, expected, written(encoded))
        for encoded, expected in CASES
        if written(encoded) != expected
    ]
    assert [] == different


@given(encoded=st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_the_kernel_and_the_slow_decoder_agree(encoded):
    """The compiled code and the Python code replace the same bytes."""
    assert decode_utf8(encoded).encode() == written(encoded)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 16, 17])
def test_a_single_byte_that_is_not_ascii_is_found(length):
    """A byte from 0x80 on is found wherever it is, and not in the bytes around."""
    text = b"\x80" + b"\x7f" * length + b"\x80"
    found = [
        _is_ascii(np.frombuffer(changed, np.uint8).ctypes.data + 1, length)
        for changed in (
            text,
            *(text[:place] + b"\x80" + text[place + 1 :] for place in range(1, length + 1)),
        )
    ]
    assert [True] + [False] * length == found
