"""The compiled hashes of `key_hashes.KeyHash`: of memory for the kernels, of `bytes` for others.

Rules:
- A hash reads exactly `length` bytes at its address, which its caller has checked.
- Numbers have 64 bits here, and are masked to 32 bits where the hash wraps around.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from spark_kafka_sink.record.kernel.kernel_support import (
    kernel,
    kernel_part,
    load_uint8,
    load_uint32,
)
from spark_kafka_sink.record.key_hashes import KeyHash

if TYPE_CHECKING:
    import numpy.typing as npt

_MASK_32: Final = 0xFFFFFFFF
_MAX_INT32: Final = 0x7FFFFFFF
_MURMUR2_SEED: Final = 0x9747B28C
_MURMUR2_MULTIPLIER: Final = 0x5BD1E995
_FNV_OFFSET_BASIS: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193
#: The IEEE polynomial with its bits reversed: CRC-32 processes the lowest bit of a byte first.
_CRC32_POLYNOMIAL: Final = 0xEDB88320

# The hashes as plain integers, which compile to constants.
_MURMUR2: Final = int(KeyHash.MURMUR2)
_CRC32: Final = int(KeyHash.CRC32)


def _crc32_tables() -> npt.NDArray[np.uint32]:
    """Compute the tables of slicing-by-8: row k is the effect of a byte with k bytes after it."""
    tables = np.zeros((8, 256), np.uint32)
    remainders = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        carries = (remainders & np.uint32(1)).astype(bool)
        remainders = (remainders >> np.uint32(1)) ^ np.where(
            carries, np.uint32(_CRC32_POLYNOMIAL), np.uint32(0)
        )
    tables[0] = remainders
    for following in range(1, 8):
        before = tables[following - 1]
        tables[following] = (before >> np.uint32(8)) ^ remainders[before & np.uint32(0xFF)]
    return tables


_CRC32_TABLES: Final = _crc32_tables()


@kernel_part
def _murmur2(data: int, length: int) -> int:
    """Hash `length` bytes at address `data` to an unsigned number (`Utils.murmur2`)."""
    hashed = (_MURMUR2_SEED ^ length) & _MASK_32
    end = data + (length & ~3)
    while data < end:
        word = (load_uint32(data) * _MURMUR2_MULTIPLIER) & _MASK_32
        word = ((word ^ (word >> 24)) * _MURMUR2_MULTIPLIER) & _MASK_32
        hashed = ((hashed * _MURMUR2_MULTIPLIER) & _MASK_32) ^ word
        data += 4
    if length & 3:
        for place in range(length & 3):
            hashed ^= load_uint8(data + place) << (8 * place)
        hashed = (hashed * _MURMUR2_MULTIPLIER) & _MASK_32
    hashed = ((hashed ^ (hashed >> 13)) * _MURMUR2_MULTIPLIER) & _MASK_32
    return hashed ^ (hashed >> 15)


@kernel_part
def _widened(number: np.uint32) -> int:
    # With `int` it would remain unsigned, and numba would turn a mix of signed and unsigned
    # numbers into a float.
    return np.int64(number)  # type: ignore[return-value]


@kernel_part
def _crc32_of(data: int, length: int) -> int:
    tables = _CRC32_TABLES
    remainder = _MASK_32
    end = data + length
    while data + 8 <= end:
        low = load_uint32(data) ^ remainder
        high = load_uint32(data + 4)
        remainder = _widened(
            tables[7, low & 0xFF]
            ^ tables[6, (low >> 8) & 0xFF]
            ^ tables[5, (low >> 16) & 0xFF]
            ^ tables[4, low >> 24]
            ^ tables[3, high & 0xFF]
            ^ tables[2, (high >> 8) & 0xFF]
            ^ tables[1, (high >> 16) & 0xFF]
            ^ tables[0, high >> 24]
        )
        data += 8
    while data < end:
        remainder = (remainder >> 8) ^ _widened(tables[0, (remainder ^ load_uint8(data)) & 0xFF])
        data += 1
    return remainder ^ _MASK_32


@kernel_part
def _fnv1a_of(data: int, length: int) -> int:
    hashed = _FNV_OFFSET_BASIS
    for place in range(length):
        hashed = ((hashed ^ load_uint8(data + place)) * _FNV_PRIME) & _MASK_32
    return hashed


@kernel_part
def key_number(key_hash: int, data: int, length: int) -> int:
    """Hash `length` bytes at address `data`, and make the result positive as the client does.

    The result modulo the number of partitions is the partition. It may be 2**31: Sarama computes
    the remainder before it removes the sign, so -2**31 is not a special case there.
    """
    if key_hash == _MURMUR2:
        return _murmur2(data, length) & _MAX_INT32
    if key_hash == _CRC32:
        return _crc32_of(data, length)
    hashed = _fnv1a_of(data, length)
    return _MASK_32 + 1 - hashed if hashed > _MAX_INT32 else hashed


@kernel(1, int, int, int)
def _hash_key(key_hash: int, data: int, length: int) -> int:
    return key_number(key_hash, data, length)


def _address(data: bytes) -> int:
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address


def murmur2(data: bytes) -> int:
    """Hash a key like `Utils.murmur2`; the result is a signed 32-bit number, as in Java."""
    unsigned = _murmur2(_address(data), len(data))
    return unsigned - (1 << 32) if unsigned > _MAX_INT32 else unsigned


def partition_for_key(key_hash: KeyHash, key: bytes, partition_count: int) -> int:
    """Return the partition of one key, as `assign_slots` does for whole columns.

    Raises ValueError if there are no partitions to choose from.
    """
    if partition_count < 1:
        raise ValueError(f"a key cannot be placed on {partition_count} partitions")
    return _hash_key(key_hash, _address(key), len(key)) % partition_count
