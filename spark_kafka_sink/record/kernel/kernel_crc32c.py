"""CRC-32C as a part of compiled kernels, for batches so small that a call from Python costs more.

It takes eight bytes at a time with eight tables ("slicing by 8"). For large buffers, the library
behind `record.crc32c` is several times as fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from spark_kafka_sink.record.kernel.kernel_support import kernel_part, load_byte, load_int64

if TYPE_CHECKING:
    import numpy.typing as npt

#: The Castagnoli polynomial, lowest bit first.
_POLYNOMIAL: Final = 0x82F63B78
_ALL_BITS: Final = 0xFFFFFFFF


def _tables() -> npt.NDArray[np.uint32]:
    """Return the checksums of each byte, followed by 0 to 7 zero bytes."""
    tables = np.empty((8, 256), np.uint32)
    numbers = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        odd = (numbers & 1).astype(bool)
        numbers = np.where(odd, (numbers >> 1) ^ np.uint32(_POLYNOMIAL), numbers >> 1)
    tables[0] = numbers
    for zeros in range(1, 8):
        before = tables[zeros - 1]
        tables[zeros] = (before >> 8) ^ tables[0][before & 0xFF]
    return tables


_TABLES: Final = _tables()


@kernel_part
def small_crc32c(address: int, count: int) -> int:
    """Return the checksum of `count` bytes."""
    crc = np.uint64(_ALL_BITS)
    low = np.uint64(0xFF)
    end = address + count
    while end - address >= 8:  # noqa: PLR2004  the bytes of a word
        word = np.uint64(load_int64(address)) ^ crc
        crc = np.uint64(
            _TABLES[7, word & low]
            ^ _TABLES[6, (word >> np.uint64(8)) & low]
            ^ _TABLES[5, (word >> np.uint64(16)) & low]
            ^ _TABLES[4, (word >> np.uint64(24)) & low]
            ^ _TABLES[3, (word >> np.uint64(32)) & low]
            ^ _TABLES[2, (word >> np.uint64(40)) & low]
            ^ _TABLES[1, (word >> np.uint64(48)) & low]
            ^ _TABLES[0, word >> np.uint64(56)]
        )
        address += 8
    while address < end:
        crc = np.uint64(_TABLES[0, (crc ^ np.uint64(load_byte(address))) & low]) ^ (
            crc >> np.uint64(8)
        )
        address += 1
    return int(crc ^ np.uint64(_ALL_BITS))
