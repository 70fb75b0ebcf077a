"""CRC-32C (Castagnoli), the checksum of a record batch (Kafka's `Crc32C`).

The work is the `crc32c` package's, which uses the processor's own instruction and lets other
threads run while it works on large buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import crc32c as _crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer


def crc32c(data: Buffer, crc: int = 0) -> int:
    """Give the checksum of `data`, continuing from `crc` (that of the bytes before it)."""
    checksum: int = _crc32c.crc32c(data, crc)
    return checksum
