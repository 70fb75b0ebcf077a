"""Parts of payloads as errors show them: shortened, and between quotation marks, for many at once.

Each is the text that Python's `repr` makes of one: Arrow replaces what is frequent, and Python is
asked for what cannot be printed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.formats.json.problems import Problem

if TYPE_CHECKING:
    import numpy.typing as npt


class Form(IntEnum):
    """How an error shows a part of a payload."""

    NONE = 0
    #: A number as it is, with up to 20 characters.
    NUMBER = 1
    #: A string between quotation marks, with up to 20 or 40 characters.
    STRING = 2
    MOMENT = 3
    #: The rest of the payload as a string.
    REST = 4


#: The form in which each shows what it is about: `{}` in its text.
FORMS: Final = {
    Problem.NULL: Form.REST,
    Problem.OTHER_TYPE: Form.REST,
    Problem.NO_VALUE: Form.REST,
    Problem.LEFT: Form.REST,
    Problem.NO_COMMA_IN_OBJECT: Form.REST,
    Problem.NO_COMMA_IN_ARRAY: Form.REST,
    Problem.NO_NAME: Form.REST,
    Problem.NO_COLON: Form.REST,
    Problem.BAD_STRING: Form.REST,
    Problem.NOT_WHOLE: Form.NUMBER,
    Problem.DOES_NOT_FIT: Form.NUMBER,
    Problem.NOT_A_NUMBER: Form.STRING,
    Problem.NOT_A_DATE: Form.MOMENT,
    Problem.NOT_A_TIMESTAMP: Form.MOMENT,
    Problem.OTHER_ZONE: Form.MOMENT,
}
_CHARACTER_BYTES: Final = 4
_LENGTHS: Final = {Form.NUMBER: 20, Form.STRING: 20, Form.MOMENT: 40, Form.REST: 20}
_MARK: Final = "\N{HORIZONTAL ELLIPSIS}"
_ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown_parts(
    data: Any,
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    forms: npt.NDArray[np.int64],
) -> Any:
    """Return a `pyarrow.StringArray` of parts of a buffer, each in a form.

    Each begins behind the one before, and is UTF-8.
    """
    order: list[npt.NDArray[np.int64]] = []
    texts: list[Any] = []
    for form in np.unique(forms).tolist():
        rows = np.flatnonzero(forms == form)
        order.append(rows)
        if form == Form.NONE:
            texts.append(pa.nulls(len(rows), pa.string()))
        else:
            texts.append(_shown(data, begins[rows], ends[rows], Form(form)))
    places = np.empty(len(forms), np.int64)
    places[np.concatenate(order)] = np.arange(len(forms))
    shown: Any = pa.concat_arrays(texts)
    return shown.take(pa.array(places))


def _shown(data: Any, begins: Any, ends: Any, form: Form) -> Any:
    most = _LENGTHS[form]
    parts = _parts(data, begins, ends, most)
    cut = pc.binary_join_element_wise(pc.utf8_slice_codeunits(parts, 0, most - 1), _MARK, "")
    length: Any = pc.utf8_length(parts)
    is_long: Any = pc.greater(length, pa.scalar(most))
    texts = pc.if_else(is_long, cut, parts)
    if form == Form.NUMBER:
        return texts
    quoted = _quoted(texts)
    if form == Form.REST:
        return pc.if_else(pa.array(begins == ends), "the end", quoted)
    return quoted


def _parts(data: Any, begins: Any, ends: Any, most: int) -> Any:
    """Return the beginnings of parts: more characters than so many, if there are."""
    bytes_ = np.frombuffer(data, np.uint8) if data.size else np.empty(0, np.uint8)
    cut = begins + _CHARACTER_BYTES * (most + 1)
    is_cut = cut < ends
    ends = np.minimum(ends, cut)
    for _ in range(_CHARACTER_BYTES - 1):
        # Not within a character.
        ends[is_cut] -= (bytes_[ends[is_cut]] & 0xC0) == 0x80  # noqa: PLR2004
    # What is between two parts is one too.
    offsets = np.column_stack((begins, ends)).astype(np.int32).ravel()
    buffers = [None, pa.py_buffer(offsets.data), data]
    parts: Any = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
    return parts.take(pa.array(np.arange(0, len(offsets), 2)))


def _quoted(texts: Any) -> Any:
    escaped = texts
    for character, escape in _ESCAPES.items():
        escaped = pc.replace_substring(escaped, character, escape)
    has_single = pc.match_substring(texts, "'")
    is_double: Any = pc.and_not(has_single, pc.match_substring(texts, '"'))
    single = pc.binary_join_element_wise("'", pc.replace_substring(escaped, "'", "\\'"), "'", "")
    double = pc.binary_join_element_wise('"', escaped, '"', "")
    quoted = pc.if_else(is_double, double, single)
    is_odd: Any = pc.invert(pc.utf8_is_printable(escaped))
    if not pc.any(is_odd).as_py():
        return quoted
    distinct: Any = texts.filter(is_odd).dictionary_encode()
    written = pa.array([repr(text) for text in distinct.dictionary.to_pylist()], pa.string())
    return pc.replace_with_mask(quoted, is_odd, written.take(distinct.indices))
