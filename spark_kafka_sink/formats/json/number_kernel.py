"""Numbers in JSON as parts of compiled loops: texts to numbers, and back, rounded correctly.

A floating-point number is read by the algorithm of Eisel and Lemire ("Number Parsing at a Gigabyte
per Second", 2021), which finds the nearest number or says that it cannot. It is written by that of
Giulietti ("The Schubfach way to render doubles", 2020), which Java has from version 19 on: the
fewest digits that are read as the same number, of two such texts the nearest, and two digits at
least.

Numbers of 64 bits are unsigned where an algorithm has unsigned ones; `_less` compares those.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from spark_kafka_sink.formats.json.plan import MOST_CHARACTERS
from spark_kafka_sink.record.kernel.kernel_support import (
    add_words,
    kernel_part,
    load_byte,
    load_int32,
    load_int64,
    move_byte,
    multiply_high,
    multiply_words,
    significant_bits,
    store_int32,
    store_int64,
    store_uint8,
    subtract_words,
)

#: What `parse_float` returns beside bits.
NUMBER: Final = 0
TOO_LARGE: Final = 1
HARD: Final = 2

#: The powers of ten by which numbers of up to 19 digits become neither zero nor too large.
_FIRST_POWER: Final = -345
_LAST_POWER: Final = 310
#: Those that Schubfach needs: from -292 to 324.
_FIRST_FACTOR: Final = -292
_LAST_FACTOR: Final = 324
_DECIMAL_POWERS: Final = 39
_WORD: Final = 1 << 64


def _signed(number: int) -> int:
    return number - _WORD if number >= _WORD >> 1 else number


def _power(exponent: int) -> tuple[int, int]:
    """Return the first 128 bits of a power of ten, the upper ones first."""
    if exponent >= 0:
        power = 10**exponent
        size = power.bit_length()
        bits = power << (128 - size) if size <= 128 else power >> (size - 128)  # noqa: PLR2004
    else:
        power = 10**-exponent
        bits = (1 << (127 + power.bit_length())) // power
        if bits.bit_length() > 128:  # noqa: PLR2004
            bits >>= 1
    return _signed(bits >> 64), _signed(bits & (_WORD - 1))


def _factor(exponent: int) -> tuple[int, int]:
    """Return Schubfach's factor for a power of ten, rounded up, in two parts of 63 bits."""
    shift = 125 - _floor_log2(exponent)
    power = 10 ** abs(exponent)
    if exponent >= 0:
        bits = power << shift if shift >= 0 else power >> -shift
    else:
        bits = (1 << shift) // power
    bits += 1
    return bits >> 63, bits & ((1 << 63) - 1)


def _floor_log2(exponent: int) -> int:
    """Return the floor of the binary logarithm of a power of ten."""
    power: int = 10 ** abs(exponent)
    return power.bit_length() - 1 if exponent >= 0 else -(power - 1).bit_length()


def _tables() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the powers, the factors, and the powers of ten up to those of a decimal."""
    numbers: list[int] = []
    for exponent in range(_FIRST_POWER, _LAST_POWER + 1):
        numbers += _power(exponent)
    for exponent in range(_FIRST_FACTOR, _LAST_FACTOR + 1):
        numbers += _factor(exponent)
    for exponent in range(_DECIMAL_POWERS):
        power = 10**exponent
        numbers += (_signed(power & (_WORD - 1)), power >> 64)
    return np.array(numbers, np.int64)


#: The numbers that the functions need; its address is their argument `tables`.
TABLES: Final = _tables()
_FACTORS: Final = 16 * (_LAST_POWER - _FIRST_POWER + 1)
_LIMITS: Final = _FACTORS + 16 * (_LAST_FACTOR - _FIRST_FACTOR + 1)
_ZERO_POWER: Final = -16 * _FIRST_POWER
_ZERO_FACTOR: Final = _FACTORS - 16 * _FIRST_FACTOR

_MIN: Final = -(1 << 63)
_MAX: Final = (1 << 63) - 1
_MOST_CHARACTERS: Final = MOST_CHARACTERS
_NUMBER, _TOO_LARGE, _HARD = NUMBER, TOO_LARGE, HARD
#: The powers of five that fit into 63 bits.
_MOST_FIVES: Final = 27
#: The digits that fit into 64 bits.
_MOST_DIGITS: Final = 19
_MOST_EXPONENT: Final = 10_000
_ZERO, _NINE, _POINT, _MINUS, _PLUS = b"09.-+"
_E: Final = ord("e")
_CASE: Final = 0x20
_EXA: Final = 10**18
_BILLION: Final = 10**9
_32_BITS: Final = 0xFFFFFFFF
_INFINITY: Final = int.from_bytes(b"Infinity", "little")
#: Where `write_decimal` calculates: behind the longest text, 16 bytes and 45 digits.
_WORK: Final = 48


@kernel_part
def _less(one: int, other: int) -> bool:
    """Compare unsigned numbers."""
    return (one ^ _MIN) < (other ^ _MIN)


@kernel_part
def read_integer(position: int, end: int) -> tuple[int, int]:
    """Read an integer of 64 bits; return it and the address behind it, 0 if there is none."""
    is_negative = position < end and load_byte(position) == _MINUS
    if is_negative:
        position += 1
    start = position
    number = 0
    while position < end:
        digit = load_byte(position) - _ZERO
        if not 0 <= digit <= 9:  # noqa: PLR2004
            break
        number = add_words(multiply_words(number, 10), digit)
        position += 1
        if position - start > _MOST_DIGITS:
            return 0, 0
    size = position - start
    if size == 0 or (size > 1 and load_byte(start) == _ZERO):
        return 0, 0
    if is_negative:
        number = subtract_words(0, number)
        return number, 0 if number > 0 else position
    return number, 0 if number < 0 else position


@kernel_part
def _exponent(position: int, end: int) -> tuple[int, int]:
    """Read what is behind an E; return it, within bounds, and the address behind, 0 if wrong."""
    is_negative = False
    if position < end and load_byte(position) in (_MINUS, _PLUS):
        is_negative = load_byte(position) == _MINUS
        position += 1
    start = position
    number = 0
    while position < end and _ZERO <= load_byte(position) <= _NINE:
        number = min(number * 10 + load_byte(position) - _ZERO, _MOST_EXPONENT)
        position += 1
    return -number if is_negative else number, 0 if position == start else position


@kernel_part
def scan_number(  # noqa: C901, PLR0912
    position: int, end: int
) -> tuple[int, int, int, int, int]:
    """Read a number; return the address behind it, and its parts.

    They are: the first 19 digits, the power of ten by which these are multiplied, whether others
    than zeros follow, and the address behind all digits. The address behind it is 0 if there is no
    number.
    """
    begin = position
    if position < end and load_byte(position) == _MINUS:
        position += 1
    start = position
    digits, exponent, number = 0, 0, 0
    is_cut = 0
    while position < end:
        digit = load_byte(position) - _ZERO
        if not 0 <= digit <= 9:  # noqa: PLR2004
            break
        position += 1
        if digits < _MOST_DIGITS:
            number = add_words(multiply_words(number, 10), digit)
            digits += number != 0
        else:
            exponent += 1
            is_cut |= digit != 0
    size = position - start
    if size == 0 or (size > 1 and load_byte(start) == _ZERO):
        return 0, 0, 0, 0, 0
    if position < end and load_byte(position) == _POINT:
        position += 1
        start = position
        while position < end:
            digit = load_byte(position) - _ZERO
            if not 0 <= digit <= 9:  # noqa: PLR2004
                break
            position += 1
            if digits < _MOST_DIGITS:
                number = add_words(multiply_words(number, 10), digit)
                digits += number != 0
                exponent -= 1
            else:
                is_cut |= digit != 0
        if position == start:
            return 0, 0, 0, 0, 0
    digits_end = position
    if position < end and load_byte(position) | _CASE == _E:
        power, position = _exponent(position + 1, end)
        exponent += power
    if position - begin > _MOST_CHARACTERS:
        return 0, 0, 0, 0, 0
    return position, number, exponent, is_cut, digits_end


@kernel_part
def _nearest(number: int, exponent: int, bits: int, tables: int) -> int:
    """Return the nearest floating-point number without its sign, or -1 if it cannot be told.

    Those of 64 bits have 52 bits behind the point, those of 32 bits have 23.
    """
    top = 11 if bits == 52 else 8  # noqa: PLR2004
    zeros = 64 - significant_bits(number)
    number <<= zeros
    binary = (217706 * exponent >> 16) + 64 + (1 << (top - 1)) - 1 - zeros
    address = tables + _ZERO_POWER + 16 * exponent
    power = load_int64(address)
    upper, lower = multiply_high(number, power), multiply_words(number, power)
    # The bits that are not kept, of a product that may have a zero at its beginning.
    mask = (1 << (61 - bits)) - 1
    if upper & mask == mask and _less(add_words(lower, number), number):
        second = load_int64(address + 8)
        more, rest = multiply_high(number, second), multiply_words(number, second)
        both = add_words(lower, more)
        carried = upper + 1 if _less(both, lower) else upper
        if carried & mask == mask and both == -1 and _less(add_words(rest, number), number):
            return -1
        upper, lower = carried, both
    first = (upper >> 63) & 1
    shift = first + 61 - bits
    mantissa = (upper >> shift) & ((1 << (64 - shift)) - 1)
    binary -= 1 - first
    if lower == 0 and upper & mask == 0 and mantissa & 3 == 1:
        return -1
    mantissa = (mantissa + (mantissa & 1)) >> 1
    if mantissa >> (bits + 1):
        mantissa >>= 1
        binary += 1
    if binary <= 0 or binary >= (1 << top) - 1:
        return -1
    return (binary << bits) | (mantissa & ((1 << bits) - 1))


@kernel_part
def _rounded(number: int, exponent: int, bits: int) -> int:
    """Return the nearest floating-point number to a product with a power of two, or -1."""
    top = 11 if bits == 52 else 8  # noqa: PLR2004
    shift = significant_bits(number) - bits - 1
    if shift > 0:
        rest, half = number & ((1 << shift) - 1), 1 << (shift - 1)
        number >>= shift
        if rest > half or (rest == half and number & 1):
            number += 1
        if number >> (bits + 1):
            number >>= 1
            shift += 1
    else:
        number <<= -shift
    binary = exponent + shift + bits + (1 << (top - 1)) - 1
    if binary <= 0 or binary >= (1 << top) - 1:
        return -1
    return (binary << bits) | (number & ((1 << bits) - 1))


@kernel_part
def _exact(number: int, exponent: int, bits: int) -> int:
    """Return the nearest floating-point number if the power of five is no fraction, else -1.

    It is often so (0.25), and such numbers are those for which `_nearest` knows too little.
    """
    if number < 0 or not -_MOST_FIVES <= exponent <= _MOST_FIVES:
        return -1
    power = 1
    for _ in range(abs(exponent)):
        power *= 5
    if exponent < 0:
        quotient = number // power
        return _rounded(quotient, exponent, bits) if quotient * power == number else -1
    product = multiply_words(number, power)
    if product < 0 or multiply_high(number, power):
        return -1
    return _rounded(product, exponent, bits)


@kernel_part
def parse_float(  # noqa: PLR0917  by position, as kernels get arguments
    number: int, exponent: int, is_cut: int, sign: int, bits: int, tables: int
) -> tuple[int, int]:
    """Return what is known of the nearest floating-point number, and its bits."""
    sign_bit = sign << (63 if bits == 52 else 31)  # noqa: PLR2004
    if number == 0 or exponent < _FIRST_POWER:
        return _NUMBER, sign_bit
    if exponent > _LAST_POWER:
        return _TOO_LARGE, 0
    nearest = _nearest(number, exponent, bits, tables)
    if is_cut:
        # If the next number is rounded to the same one, so are all between the two.
        if nearest != _nearest(add_words(number, 1), exponent, bits, tables):
            nearest = -1
    elif nearest < 0:
        nearest = _exact(number, exponent, bits)
    return (_HARD, 0) if nearest < 0 else (_NUMBER, sign_bit | nearest)


@kernel_part
def parse_decimal(  # noqa: C901, PLR0912, PLR0917  by position, as kernels get arguments
    target: int, start: int, digits_end: int, end: int, precision: int, scale: int, tables: int
) -> bool:
    """Write a number, rounded half away from zero, as one of 128 bits; return whether it fits.

    Its digits end before an exponent, which may be there.
    """
    exponent = scale
    if digits_end < end:
        power, _ = _exponent(digits_end + 1, end)
        exponent += power
    is_negative = load_byte(start) == _MINUS
    if is_negative:
        start += 1
    point = start
    while point < digits_end and load_byte(point) != _POINT:
        point += 1
    if point < digits_end:
        exponent -= digits_end - point - 1
    while start < digits_end and load_byte(start) in (_ZERO, _POINT):
        start += 1
    digits = digits_end - start
    if start < point < digits_end:
        digits -= 1
    kept = digits + exponent
    low, high = 0, 0
    if digits > 0 and kept >= 0:
        if kept > precision:
            return False
        count = 0
        rounds_up = False
        for position in range(start, digits_end):
            digit = load_byte(position) - _ZERO
            if digit < 0:
                continue
            if count == kept:
                rounds_up = digit >= 5  # noqa: PLR2004
                break
            high = high * 10 + multiply_high(low, 10)
            low = add_words(multiply_words(low, 10), digit)
            if _less(low, digit):
                high += 1
            count += 1
        for _ in range(kept - count):
            high = high * 10 + multiply_high(low, 10)
            low = multiply_words(low, 10)
        if rounds_up:
            low = add_words(low, 1)
            if low == 0:
                high += 1
        limit = tables + _LIMITS + 16 * precision
        if low == load_int64(limit) and high == load_int64(limit + 8):
            return False
    if is_negative:
        low = subtract_words(0, low)
        high = ~high if low else -high
    store_int64(target, low)
    store_int64(target + 8, high)
    return True


@kernel_part
def _count_digits(number: int) -> int:
    """Return how many digits a number from 0 on has."""
    digits = 1
    while number >= 10:  # noqa: PLR2004
        number //= 10
        digits += 1
    return digits


@kernel_part
def write_integer(position: int, number: int) -> int:
    """Write an integer; return the address behind it."""
    if number < 0:
        store_uint8(position, _MINUS)
        position += 1
        if number == _MIN:
            store_uint8(position, _NINE)
            position += 1
            number = -(number + 9 * _EXA)
        else:
            number = -number
    end = position + _count_digits(number)
    at = end
    while at > position:
        at -= 1
        rest = number // 10
        store_uint8(at, _ZERO + number - 10 * rest)
        number = rest
    return end


@kernel_part
def _write_digits(position: int, number: int, digits: int, point: int) -> int:
    """Write so many digits with a point behind some of them; return the address behind."""
    end = position + digits
    if point < digits:
        end += 1
        store_uint8(position + point, _POINT)
    for at in range(digits - 1, -1, -1):
        rest = number // 10
        store_uint8(position + at + (at >= point), _ZERO + number - 10 * rest)
        number = rest
    return end


@kernel_part
def _write_scientific(position: int, digits: int, exponent: int) -> int:
    """Write a number that is 0.digits times a power of ten, as Java does; return the end."""
    while True:
        rest = digits // 10
        if digits != 10 * rest or digits < 10:  # noqa: PLR2004
            break
        digits = rest
    count = _count_digits(digits)
    if 0 < exponent <= 7:  # noqa: PLR2004
        position = _write_digits(position, digits, count, exponent)
        for _ in range(exponent - count):
            store_uint8(position, _ZERO)
            position += 1
        if count <= exponent:
            store_uint8(position, _POINT)
            store_uint8(position + 1, _ZERO)
            position += 2
        return position
    if -3 < exponent <= 0:  # noqa: PLR2004
        store_uint8(position, _ZERO)
        store_uint8(position + 1, _POINT)
        position += 2
        for _ in range(-exponent):
            store_uint8(position, _ZERO)
            position += 1
        return _write_digits(position, digits, count, count)
    position = _write_digits(position, digits, count, 1)
    if count == 1:
        store_uint8(position, _POINT)
        store_uint8(position + 1, _ZERO)
        position += 2
    store_uint8(position, 0x45)  # E
    return write_integer(position + 1, exponent - 1)


@kernel_part
def _rounded_product(upper: int, lower: int, number: int) -> int:
    """Return the upper bits of a product with a factor; the last is set if any below are."""
    carried = add_words(multiply_words(upper, number) >> 1 & _MAX, multiply_high(lower, number))
    # The sum has 64 bits, and its first bit belongs to the result.
    word = multiply_high(upper, number) + (carried >> 63 & 1)
    return word | (carried & _MAX != 0)


@kernel_part
def _floor_log10_of_2(exponent: int) -> int:
    return exponent * 661_971_961_083 >> 41


@kernel_part
def _fewest_digits(number: int, exponent: int, bits: int, tables: int) -> tuple[int, int]:
    """Return the digits and the power of ten for a number times a power of two."""
    odd = number & 1
    smallest = -1074 if bits == 52 else -149  # noqa: PLR2004
    center = number << 2
    right = center + 2
    if number != 1 << bits or exponent == smallest:
        left = center - 2
        power = _floor_log10_of_2(exponent)
    else:
        # The number before a power of two is nearer.
        left = center - 1
        power = exponent * 661_971_961_083 - 274_743_187_321 >> 41
    shift = exponent + (-power * 913_124_641_741 >> 38) + 2
    factor = tables + _ZERO_FACTOR - 16 * power
    upper, lower = load_int64(factor), load_int64(factor + 8)
    center = _rounded_product(upper, lower, center << shift)
    left = _rounded_product(upper, lower, left << shift) + odd
    right = _rounded_product(upper, lower, right << shift) - odd
    below = center >> 2
    if below >= 100:  # noqa: PLR2004
        tens = below // 10 * 10
        is_below, is_above = left <= tens << 2, (tens + 10) << 2 <= right
        if is_below != is_above:
            return (tens if is_below else tens + 10), power
    above = below + 1
    is_below, is_above = left <= below << 2, above << 2 <= right
    if is_below != is_above:
        return (below if is_below else above), power
    distance = center - ((below + above) << 1)
    return (below if distance < 0 or (distance == 0 and below & 1 == 0) else above), power


@kernel_part
def write_float(position: int, word: int, bits: int, tables: int) -> int:
    """Write a floating-point number of 64 or 32 bits, as Java does; return the address behind."""
    top = 11 if bits == 52 else 8  # noqa: PLR2004
    binary = (word >> bits) & ((1 << top) - 1)
    number = word & ((1 << bits) - 1)
    is_negative = (word >> (bits + top)) & 1
    if binary == (1 << top) - 1:
        # Strings, as Jackson writes what is not a number in JSON.
        store_uint8(position, 0x22)
        position += 1
        if number:
            store_int64(position, 0x224E614E)  # NaN"
            return position + 4
        if is_negative:
            store_uint8(position, _MINUS)
            position += 1
        store_int64(position, _INFINITY)
        store_uint8(position + 8, 0x22)
        return position + 9
    if is_negative:
        store_uint8(position, _MINUS)
        position += 1
    if binary == 0 and number == 0:
        store_int64(position, 0x302E30)  # 0.0
        return position + 3
    smallest = -1074 if bits == 52 else -149  # noqa: PLR2004
    tenths = 0
    if binary:
        number |= 1 << bits
        exponent = smallest + binary - 1
        whole = number >> -exponent if -bits <= exponent < 0 else 0
        if whole and whole << -exponent == number:
            return _write_scientific(position, whole, _count_digits(whole))
    else:
        exponent = smallest
        if number < (3 if bits == 52 else 8):  # noqa: PLR2004
            # Two digits at least.
            number *= 10
            tenths = 1
    digits, power = _fewest_digits(number, exponent, bits, tables)
    return _write_scientific(position, digits, _count_digits(digits) + power - tenths)


@kernel_part
def _decimal_chunk(address: int) -> int:
    """Divide a number of 128 bits by a billion, in its place; return the remainder."""
    rest = 0
    for word in (12, 8, 4, 0):
        value = rest << 32 | (load_int32(address + word) & _32_BITS)
        quotient = value // _BILLION
        rest = value - quotient * _BILLION
        store_int32(address + word, quotient)
    return rest


@kernel_part
def write_decimal(  # noqa: C901
    position: int, source: int, scale: int
) -> int:
    """Write a number of 128 bits with so many digits behind the point, as Java's BigDecimal does.

    Return the address behind it. `ROOM` bytes behind the position are overwritten.
    """
    low, high = load_int64(source), load_int64(source + 8)
    if high < 0:
        store_uint8(position, _MINUS)
        position += 1
        low = subtract_words(0, low)
        high = ~high if low else -high
    # Behind what is written: the number while it is divided, and its digits, the last one first.
    work = position + _WORK
    store_int64(work, low)
    store_int64(work + 8, high)
    digits = 0
    while low or high:
        chunk = _decimal_chunk(work)
        low, high = load_int64(work), load_int64(work + 8)
        for _ in range(9):
            rest = chunk // 10
            store_uint8(work + 16 + digits, _ZERO + chunk - 10 * rest)
            chunk = rest
            digits += 1
    while digits > 1 and load_byte(work + 15 + digits) == _ZERO:
        digits -= 1
    if digits == 0:
        digits = 1
        store_uint8(work + 16, _ZERO)
    exponent = digits - 1 - scale
    is_plain = scale == 0 or exponent >= -6  # noqa: PLR2004
    point = digits - scale if is_plain else 1
    if is_plain and point <= 0:
        store_uint8(position, _ZERO)
        store_uint8(position + 1, _POINT)
        position += 2
        for _ in range(-point):
            store_uint8(position, _ZERO)
            position += 1
        point = digits
    for at in range(digits):
        if at == point:
            store_uint8(position, _POINT)
            position += 1
        move_byte(position, work + 15 + digits - at)
        position += 1
    if not is_plain:
        store_uint8(position, 0x45)  # E
        position = write_integer(position + 1, exponent)
    return position
