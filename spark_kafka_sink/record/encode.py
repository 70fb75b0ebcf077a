"""Records encoded without the compiled kernels, one at a time (Kafka's `DefaultRecord.writeTo`).

For a few records this is faster than building columns for a kernel, and it does not load any.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from spark_kafka_sink.record.varint import encode_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Sizes repeat from record to record.
_encode_size = lru_cache(maxsize=1024)(encode_varint)
_NULL = encode_varint(-1)


def encode_record(
    key: bytes | None,
    value: bytes | None,
    *,
    offset_delta: int = 0,
    timestamp_delta: int = 0,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> bytes:
    r"""Encode a record in format v2; its deltas count from the batch's first record.

    >>> encode_record(None, b"a")
    b'\x0e\x00\x00\x00\x01\x02a\x00'
    """
    body = b"".join(
        (
            b"\0",  # the attributes
            _encode_size(timestamp_delta),
            _encode_size(offset_delta),
            _sized(key),
            _sized(value),
            _encode_size(len(headers)),
            *[_sized(name.encode()) + _sized(content) for name, content in headers],
        )
    )
    return _encode_size(len(body)) + body


def _sized(content: bytes | None) -> bytes:
    return _NULL if content is None else _encode_size(len(content)) + content
