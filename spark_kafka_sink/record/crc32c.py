"""CRC-32C (Castagnoli), the checksum of a record batch (Kafka's `Crc32C`).

The `crc32c` package computes it with the processor's own instruction, and releases the GIL for
large buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import crc32c as _crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer


def crc32c(data: Buffer, crc: int = 0) -> int:
    """Return the checksum of `data`, continuing from `crc`, the checksum of the bytes before it."""
    checksum: int = _crc32c.crc32c(data, crc)
    return checksum
