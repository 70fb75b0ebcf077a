"""Parts of payloads as errors show them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.display import shortened
from spark_kafka_sink.formats.json.shown_parts import Form, shown_parts

TEXTS = [
    "",
    "plain",
    "it's",
    'a "b"',
    'it\'s "both"',
    "back\\slash",
    "line\nfeed\ttab\rreturn",
    "\x00\x7f\x85\xa0\u2028\ufeff",
    "é€\U0001f600",
    "é'\n",
    "x" * 19,
    "x" * 20,
    "x" * 21,
    "\U0001f600" * 21,
    "é" * 40,
    "é" * 41,
    "\n" * 50,
]


@pytest.mark.parametrize("form", [Form.NUMBER, Form.STRING, Form.MOMENT, Form.REST])
def test_parts_are_shown_as_python_shows_them(form):
    """Shortened by characters, and with the escapes and quotation marks that `repr` has."""
    data = "".join(f"<{text}>" for text in TEXTS).encode()
    sizes = np.array([len(text.encode()) for text in TEXTS])
    ends = np.cumsum(sizes + 2) - 1
    shown = shown_parts(pa.py_buffer(data), ends - sizes, ends, np.full(len(TEXTS), form, np.int64))
    cut = [shortened(text, 40 if form is Form.MOMENT else 20) for text in TEXTS]
    expected = cut if form is Form.NUMBER else [repr(text) for text in cut]
    if form is Form.REST:
        expected[0] = "the end"
    assert expected == shown.to_pylist()


def test_forms_may_alternate_and_what_follows_a_part_may_be_anything():
    """The next payload may begin in the middle of a character."""
    data = pa.py_buffer(b"ab\x80\x80\xbf12\x80")
    begins, ends = np.array([0, 2, 5, 7]), np.array([2, 2, 7, 7])
    forms = np.array([Form.REST, Form.REST, Form.NUMBER, Form.NONE], np.int64)
    assert ["'ab'", "the end", "12", None] == shown_parts(data, begins, ends, forms).to_pylist()
    nothing = shown_parts(pa.py_buffer(b""), begins[:1], begins[:1], forms[:1])
    assert ["the end"] == nothing.to_pylist()
