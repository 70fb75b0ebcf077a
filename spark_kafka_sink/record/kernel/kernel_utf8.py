"""UTF-8 as a part of compiled kernels: invalid bytes are replaced as in Java.

`new String(bytes, UTF_8)` decides how many replacement characters (U+FFFD) stand for a malformed
sequence. Python decides differently: it replaces each byte of an encoded surrogate, and Java all
three of them together.
"""

from __future__ import annotations

from spark_kafka_sink.record.kernel.kernel_support import (
    kernel_part,
    load_byte,
    load_int64,
    move_byte,
    store_uint8,
)

#: The first bytes of sequences with restrictions on their second byte, and the last valid one.
_FIRST_OF_3 = 0xE0
_FIRST_OF_4 = 0xF0
_LAST_OF_4 = 0xF4


@kernel_part
def is_ascii(address: int, count: int) -> bool:
    """Return whether all bytes are ASCII."""
    end = address + count
    while end - address >= 8:  # noqa: PLR2004  the bytes of a word
        if load_int64(address) & -0x7F7F7F7F7F7F7F80:
            return False
        address += 8
    if count >= 8:  # noqa: PLR2004  the last word, some of whose bytes have been checked
        return load_int64(end - 8) & -0x7F7F7F7F7F7F7F80 == 0
    while address < end:
        if load_byte(address) & 0x80:
            return False
        address += 1
    return True


@kernel_part
def _is_not_continuation(byte: int) -> bool:
    return byte & 0xC0 != 0x80  # noqa: PLR2004


@kernel_part
def _is_malformed_3(first: int, second: int) -> bool:
    return (first == _FIRST_OF_3 and second & 0xE0 == 0x80) or _is_not_continuation(second)  # noqa: PLR2004


@kernel_part
def _is_malformed_4(first: int, second: int) -> bool:
    return (
        (first == _FIRST_OF_4 and second < 0x90)  # noqa: PLR2004
        or (first == _LAST_OF_4 and second & 0xF0 != 0x80)  # noqa: PLR2004
        or _is_not_continuation(second)
    )


@kernel_part
def _sequence(address: int, end: int) -> tuple[bool, int]:  # noqa: PLR0911  one return per case
    """Return whether a valid sequence begins here, and how many bytes are copied or replaced."""
    first = load_byte(address)
    rest = end - address - 1
    if first < 0x80:  # noqa: PLR2004
        return True, 1
    if 0xC2 <= first < _FIRST_OF_3:  # noqa: PLR2004
        valid = rest >= 1 and not _is_not_continuation(load_byte(address + 1))
        return valid, 2 if valid else 1
    if _FIRST_OF_3 <= first < _FIRST_OF_4:
        if rest < 1 or _is_malformed_3(first, load_byte(address + 1)):
            return False, 1
        if rest < 2 or _is_not_continuation(load_byte(address + 2)):  # noqa: PLR2004
            return False, 2
        is_surrogate = first == 0xED and load_byte(address + 1) >= 0xA0  # noqa: PLR2004
        return not is_surrogate, 3
    if _FIRST_OF_4 <= first <= _LAST_OF_4:
        if rest < 1 or _is_malformed_4(first, load_byte(address + 1)):
            return False, 1
        if rest < 2 or _is_not_continuation(load_byte(address + 2)):  # noqa: PLR2004
            return False, 2
        valid = rest >= 3 and not _is_not_continuation(load_byte(address + 3))  # noqa: PLR2004
        return valid, 4 if valid else 3
    return False, 1


@kernel_part
def is_utf8(address: int, count: int) -> bool:
    """Return whether all bytes are UTF-8 as Java and Python accept it, without surrogates."""
    end = address + count
    while address < end:
        valid, length = _sequence(address, end)
        if not valid:
            return False
        address += length
    return True


@kernel_part
def write_utf8(target: int, source: int, count: int) -> int:
    """Write bytes as valid UTF-8, which takes up to three times as many; return the address after.

    The two must not overlap.
    """
    end = source + count
    while source < end:
        valid, length = _sequence(source, end)
        if valid:
            for index in range(length):
                move_byte(target + index, source + index)
            target += length
        else:
            store_uint8(target, 0xEF)
            store_uint8(target + 1, 0xBF)
            store_uint8(target + 2, 0xBD)
            target += 3
        source += length
    return target
