"""UTF-8 of header keys, for code that is not compiled: invalid bytes are replaced as in Java."""

from __future__ import annotations

import codecs
from typing import Final

#: In an encoded surrogate, the first byte, and the least value of the second.
_FIRST_OF_SURROGATE: Final = 0xED
_SECOND_OF_SURROGATE: Final = 0xA0
_CONTINUATION: Final = range(0x80, 0xC0)
_REPLACEMENT: Final = "\ufffd"
_ERRORS: Final = "spark_kafka_sink.java"


def decode_utf8(encoded: bytes) -> str:
    r"""Decode a string as `new String(bytes, UTF_8)` does in Java.

    Java replaces the bytes of an encoded surrogate together, and Python each of them.

    >>> decode_utf8(b"\xed\xa0\x80"), b"\xed\xa0\x80".decode(errors="replace")
    ('\ufffd', '\ufffd\ufffd\ufffd')
    """
    return encoded.decode("utf-8", _ERRORS)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    end = error.end
    first, *rest = error.object[error.start : error.start + 3]
    if first == _FIRST_OF_SURROGATE and rest and _SECOND_OF_SURROGATE <= rest[0] in _CONTINUATION:
        end = error.start + (3 if rest[1:] and rest[1] in _CONTINUATION else 2)
    return _REPLACEMENT, end


codecs.register_error(_ERRORS, _replace)
