"""CRC-32C as a part of compiled kernels, for batches so small that a call from Python costs more.

Processors of the x86-64 kind have an instruction for it. On others, eight tables take eight bytes
at a time ("slicing by 8"). For large buffers, the library behind `record_batch.crc32c` is faster
than both.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Final

import numpy as np
from llvmlite import binding

from spark_kafka_sink.record.kernel.kernel_cache import is_for_this_processor
from spark_kafka_sink.record.kernel.kernel_support import (
    instruction,
    kernel_part,
    load_byte,
    load_int64,
)

if TYPE_CHECKING:
    import numpy.typing as npt

#: The Castagnoli polynomial, lowest bit first.
_POLYNOMIAL: Final = 0x82F63B78
_ALL_BITS: Final = 0xFFFFFFFF
_LOW_BYTE: Final = np.uint64(0xFF)
_WORD_BYTES: Final = 8


def _tables() -> npt.NDArray[np.uint64]:
    """Return the checksums of each byte, followed by 0 to 7 zero bytes."""
    tables = np.empty((8, 256), np.uint64)
    numbers = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        odd = (numbers & np.uint64(1)).astype(bool)
        numbers >>= np.uint64(1)
        numbers[odd] ^= np.uint64(_POLYNOMIAL)
    tables[0] = numbers
    for zeros in range(1, 8):
        before = tables[zeros - 1]
        tables[zeros] = (before >> np.uint64(8)) ^ tables[0][before & _LOW_BYTE]
    return tables


_TABLES: Final = _tables()


@kernel_part
def table_crc32c(address: int, count: int) -> int:
    """Return the checksum of `count` bytes."""
    crc = np.uint64(_ALL_BITS)
    end = address + count
    while end - address >= _WORD_BYTES:
        word = np.uint64(load_int64(address)) ^ crc
        crc = (
            _TABLES[7, word & _LOW_BYTE]
            ^ _TABLES[6, (word >> np.uint64(8)) & _LOW_BYTE]
            ^ _TABLES[5, (word >> np.uint64(16)) & _LOW_BYTE]
            ^ _TABLES[4, (word >> np.uint64(24)) & _LOW_BYTE]
            ^ _TABLES[3, (word >> np.uint64(32)) & _LOW_BYTE]
            ^ _TABLES[2, (word >> np.uint64(40)) & _LOW_BYTE]
            ^ _TABLES[1, (word >> np.uint64(48)) & _LOW_BYTE]
            ^ _TABLES[0, word >> np.uint64(56)]
        )
        address += _WORD_BYTES
    while address < end:
        crc = _TABLES[0, (crc ^ np.uint64(load_byte(address))) & _LOW_BYTE] ^ (crc >> np.uint64(8))
        address += 1
    return int(crc ^ np.uint64(_ALL_BITS))


#: Take eight bytes, or one, into a checksum.
_extend_by_word = instruction("extend_crc32c", 64)
_extend_by_byte = instruction("extend_crc32c", 8)


@kernel_part
def instruction_crc32c(address: int, count: int) -> int:
    """Return the checksum of `count` bytes, by an instruction that not every processor has."""
    crc = _ALL_BITS
    end = address + count
    while end - address >= _WORD_BYTES:
        crc = _extend_by_word(crc, load_int64(address))
        address += _WORD_BYTES
    while address < end:
        crc = _extend_by_byte(crc, load_byte(address))
        address += 1
    return crc ^ _ALL_BITS


def has_instruction() -> bool:
    """Return whether the kernels are compiled for a processor with the instruction."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return False
    if not is_for_this_processor():
        return False
    features = binding.get_host_cpu_features()
    return bool(features.get("sse4.2") and features.get("crc32"))


HAS_INSTRUCTION: Final = has_instruction()
#: Return the checksum of so many bytes at an address.
small_crc32c = instruction_crc32c if HAS_INSTRUCTION else table_crc32c
#: From this size on, a call of the library from Python is faster.
SMALL_BYTES: Final = 64 * 1024 if HAS_INSTRUCTION else 8 * 1024
