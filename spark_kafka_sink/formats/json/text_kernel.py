"""Strings in JSON as parts of compiled loops: escapes, base64, dates and timestamps."""

from __future__ import annotations

from typing import Final

from spark_kafka_sink.record.kernel.kernel_support import (
    add_words,
    kernel_part,
    load_byte,
    load_int64,
    significant_bits,
    store_uint8,
    subtract_words,
)

#: What `scan_string` says of a string.
HAS_ESCAPES: Final = 1
HAS_MORE_THAN_ASCII: Final = 2

_QUOTE, _BACKSLASH, _MINUS, _PLUS, _COLON, _POINT, _Z, _T, _SPACE = b'"\\-+:.ZT '
_ZERO: Final = ord("0")
_EVERY_BYTE: Final = 0x0101010101010101
_HIGH_BITS: Final = -0x7F7F7F7F7F7F7F80
_QUOTES: Final = _QUOTE * _EVERY_BYTE
_BACKSLASHES: Final = _BACKSLASH * _EVERY_BYTE
_SPACES: Final = _SPACE * _EVERY_BYTE
_HAS_ESCAPES, _HAS_MORE = HAS_ESCAPES, HAS_MORE_THAN_ASCII
_DAYS_TO_1970: Final = 719_468
_DAYS_OF_400_YEARS: Final = 146_097
_MOST_OFFSET: Final = 18 * 60
_MICROSECONDS: Final = 1_000_000
_DAY: Final = 86_400 * _MICROSECONDS
_MAX_DAYS: Final = (2**63 - 1) // _DAY


@kernel_part
def scan_string(position: int, end: int) -> tuple[int, int]:
    """Return the address of the closing quotation mark, and what is before it.

    The address is 0 if there is none, or a character that must be escaped.
    """
    found = 0
    while True:
        while end - position >= 8:  # noqa: PLR2004  the bytes of a word
            word = load_int64(position)
            quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
            marks = (
                (subtract_words(quotes, _EVERY_BYTE) & ~quotes)
                | (subtract_words(backslashes, _EVERY_BYTE) & ~backslashes)
                | (subtract_words(word, _SPACES) & ~word)
            ) & _HIGH_BITS
            if word & _HIGH_BITS:
                found |= _HAS_MORE
            if marks:
                # Only the lowest mark is certain to be one.
                position += (significant_bits(marks & subtract_words(0, marks)) - 1) >> 3
                break
            position += 8
        if position >= end:
            return 0, 0
        byte = load_byte(position)
        if byte == _QUOTE:
            return position, found
        if byte < _SPACE:
            return 0, 0
        if byte == _BACKSLASH:
            found |= _HAS_ESCAPES
            position += 1
        elif byte & 0x80:
            found |= _HAS_MORE
        position += 1


@kernel_part
def _hex(position: int) -> int:
    """Return a number of four hexadecimal digits, -1 if they are something else."""
    number = 0
    for at in range(position, position + 4):
        byte = load_byte(at)
        digit = byte - _ZERO
        if not 0 <= digit <= 9:  # noqa: PLR2004
            digit = (byte | 0x20) - 87
            if not 10 <= digit <= 15:  # noqa: PLR2004
                return -1
        number = number << 4 | digit
    return number


@kernel_part
def _store_character(target: int, code: int) -> int:
    """Write a character as UTF-8; return the address behind it."""
    if code < 0x80:  # noqa: PLR2004
        store_uint8(target, code)
        return target + 1
    if code < 0x800:  # noqa: PLR2004
        store_uint8(target, 0xC0 | code >> 6)
    else:
        if code < 0x10000:  # noqa: PLR2004
            store_uint8(target, 0xE0 | code >> 12)
        else:
            store_uint8(target, 0xF0 | code >> 18)
            target += 1
            store_uint8(target, 0x80 | (code >> 12 & 0x3F))
        target += 1
        store_uint8(target, 0x80 | (code >> 6 & 0x3F))
    store_uint8(target + 1, 0x80 | (code & 0x3F))
    return target + 2


@kernel_part
def unescape(target: int, source: int, end: int) -> int:  # noqa: C901, PLR0911, PLR0912
    """Write a string without its escapes; return the address behind, 0 if one is wrong.

    It becomes no longer. With 0 for the target nothing is written, and 1 is returned.
    """
    writes = target != 0
    if not writes:
        target = 1
    while source < end:
        byte = load_byte(source)
        source += 1
        if byte != _BACKSLASH:
            if writes:
                store_uint8(target, byte)
                target += 1
            continue
        byte = load_byte(source)
        source += 1
        if byte == 0x75:  # noqa: PLR2004  u
            if end - source < 4:  # noqa: PLR2004
                return 0
            code = _hex(source)
            source += 4
            if code < 0 or 0xDC00 <= code <= 0xDFFF:  # noqa: PLR2004
                return 0
            if 0xD800 <= code < 0xDC00:  # noqa: PLR2004
                if end - source < 6 or load_byte(source) != _BACKSLASH:  # noqa: PLR2004
                    return 0
                if load_byte(source + 1) != 0x75:  # noqa: PLR2004
                    return 0
                second = _hex(source + 2)
                source += 6
                if not 0xDC00 <= second <= 0xDFFF:  # noqa: PLR2004
                    return 0
                code = 0x10000 + ((code - 0xD800) << 10) + second - 0xDC00
            if writes:
                target = _store_character(target, code)
            continue
        if byte == 0x6E:  # noqa: PLR2004  n
            byte = 10
        elif byte == 0x74:  # noqa: PLR2004  t
            byte = 9
        elif byte == 0x72:  # noqa: PLR2004  r
            byte = 13
        elif byte == 0x62:  # noqa: PLR2004  b
            byte = 8
        elif byte == 0x66:  # noqa: PLR2004  f
            byte = 12
        elif byte not in (_QUOTE, _BACKSLASH, 0x2F):
            return 0
        if writes:
            store_uint8(target, byte)
            target += 1
    return target


@kernel_part
def _base64_digit(byte: int) -> int:
    if 0x41 <= byte <= 0x5A:  # noqa: PLR2004
        return byte - 0x41
    if 0x61 <= byte <= 0x7A:  # noqa: PLR2004
        return byte - 0x61 + 26
    if 0x30 <= byte <= 0x39:  # noqa: PLR2004
        return byte - 0x30 + 52
    if byte == 0x2B:  # noqa: PLR2004
        return 62
    return 63 if byte == 0x2F else -1  # noqa: PLR2004


@kernel_part
def decode_base64(address: int, size: int) -> int:
    """Decode a string in its place; return the number of bytes, -1 if it is not base64."""
    if size & 3:
        return -1
    padding = 0
    if size and load_byte(address + size - 1) == 0x3D:  # noqa: PLR2004  =
        padding = 2 if load_byte(address + size - 2) == 0x3D else 1  # noqa: PLR2004
    target = address
    for source in range(address, address + size, 4):
        pad = padding if source == address + size - 4 else 0
        digits = 0
        for at in range(4):
            digit = 0
            if at < 4 - pad:
                digit = _base64_digit(load_byte(source + at))
                if digit < 0:
                    return -1
            digits = digits << 6 | digit
        store_uint8(target, digits >> 16)
        store_uint8(target + 1, digits >> 8 & 0xFF)
        store_uint8(target + 2, digits & 0xFF)
        target += 3
    return target - address - padding


@kernel_part
def _digits(position: int, count: int) -> int:
    """Return a number of decimal digits, a negative one if they are something else."""
    number = 0
    for at in range(position, position + count):
        digit = load_byte(at) - _ZERO
        if not 0 <= digit <= 9:  # noqa: PLR2004
            return -1_000_000_000_000
        number = number * 10 + digit
    return number


@kernel_part
def parse_date(position: int, end: int) -> tuple[int, int]:
    """Read a date; return the days since 1970, and the address behind, 0 if there is none."""
    is_negative = position < end and load_byte(position) == _MINUS
    if position < end and load_byte(position) in (_MINUS, _PLUS):
        position += 1
    size = 0
    while size < 7 and position + size < end and load_byte(position + size) != _MINUS:  # noqa: PLR2004
        size += 1
    if not 4 <= size <= 6 or end - position - size < 6:  # noqa: PLR2004
        return 0, 0
    year = _digits(position, size)
    position += size
    month, day = _digits(position + 1, 2), _digits(position + 4, 2)
    if year < 0 or load_byte(position + 3) != _MINUS or not 1 <= month <= 12 or day < 1:  # noqa: PLR2004
        return 0, 0
    if is_negative:
        year = -year
    is_leap = year & 3 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = 31
    if month == 2:  # noqa: PLR2004
        days = 29 if is_leap else 28
    elif month in (4, 6, 9, 11):
        days = 30
    if day > days:
        return 0, 0
    # Years begin in March, and eras are 400 of them.
    if month <= 2:  # noqa: PLR2004
        year -= 1
        month += 12
    era = year // 400
    of_era = year - 400 * era
    of_year = (153 * (month - 3) + 2) // 5 + day - 1
    of_days = of_era * 365 + (of_era >> 2) - of_era // 100 + of_year
    return era * _DAYS_OF_400_YEARS + of_days - _DAYS_TO_1970, position + 6


@kernel_part
def parse_timestamp(  # noqa: C901, PLR0911, PLR0912, PLR0915
    position: int, end: int, has_zone: int
) -> tuple[int, bool]:
    """Read a timestamp; return the microseconds since 1970, and whether it is one."""
    days, position = parse_date(position, end)
    if position == 0 or end - position < 6:  # noqa: PLR2004
        return 0, False
    if load_byte(position) not in (_T, _SPACE) or load_byte(position + 3) != _COLON:
        return 0, False
    hour, minute = _digits(position + 1, 2), _digits(position + 4, 2)
    position += 6
    second, fraction = 0, 0
    if position < end and load_byte(position) == _COLON:
        if end - position < 3:  # noqa: PLR2004
            return 0, False
        second = _digits(position + 1, 2)
        position += 3
        if position < end and load_byte(position) == _POINT:
            position += 1
            size = 0
            while position < end and 0 <= load_byte(position) - _ZERO <= 9:  # noqa: PLR2004
                if size < 6:  # noqa: PLR2004
                    fraction = fraction * 10 + load_byte(position) - _ZERO
                size += 1
                position += 1
            if not 1 <= size <= 9:  # noqa: PLR2004
                return 0, False
            while size < 6:  # noqa: PLR2004
                fraction *= 10
                size += 1
    if not 0 <= hour <= 23 or not 0 <= minute <= 59 or not 0 <= second <= 59:  # noqa: PLR2004
        return 0, False
    offset = 0
    if has_zone:
        if position >= end:
            return 0, False
        sign = load_byte(position)
        if sign == _Z:
            position += 1
        elif sign in (_PLUS, _MINUS):
            if end - position < 6 or load_byte(position + 3) != _COLON:  # noqa: PLR2004
                return 0, False
            hours, minutes = _digits(position + 1, 2), _digits(position + 4, 2)
            offset = hours * 60 + minutes
            if hours < 0 or not 0 <= minutes <= 59 or offset > _MOST_OFFSET:  # noqa: PLR2004
                return 0, False
            if sign == _MINUS:
                offset = -offset
            position += 6
        else:
            return 0, False
    if position != end:
        return 0, False
    rest = (hour * 3600 + (minute - offset) * 60 + second) * _MICROSECONDS + fraction
    if rest < 0:
        days -= 1
        rest += _DAY
    elif rest >= _DAY:
        days += 1
        rest -= _DAY
    # From the nearer midnight, so that nothing overflows.
    if days < 0:
        days += 1
        rest -= _DAY
    if days > _MAX_DAYS or days < -_MAX_DAYS:
        return 0, False
    micros = days * _DAY
    total = add_words(micros, rest)
    if (micros > 0 and total < 0) or (micros < 0 and total > 0):
        return 0, False
    return total, True


@kernel_part
def plain_size(address: int, size: int) -> tuple[int, int]:
    """Return how many bytes of a text need no escapes, and whether one is more than ASCII."""
    found = 0
    position, end = address, address + size
    while end - position >= 8:  # noqa: PLR2004  the bytes of a word
        word = load_int64(position)
        quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
        marks = (
            (subtract_words(quotes, _EVERY_BYTE) & ~quotes)
            | (subtract_words(backslashes, _EVERY_BYTE) & ~backslashes)
            | (subtract_words(word, _SPACES) & ~word)
        ) & _HIGH_BITS
        if word & _HIGH_BITS:
            found = _HAS_MORE
        if marks:
            # Those that follow may be more than ASCII.
            return position - address, _HAS_MORE
        position += 8
    while position < end:
        byte = load_byte(position)
        if byte < _SPACE or byte in (_QUOTE, _BACKSLASH):
            return position - address, _HAS_MORE
        if byte & 0x80:
            found = _HAS_MORE
        position += 1
    return size, found


@kernel_part
def write_escaped(target: int, source: int, size: int) -> int:
    """Write a text with escapes, as Jackson does; return the address behind it."""
    for position in range(source, source + size):
        byte = load_byte(position)
        if byte >= _SPACE and byte not in (_QUOTE, _BACKSLASH):
            store_uint8(target, byte)
            target += 1
            continue
        store_uint8(target, _BACKSLASH)
        letter = byte
        if byte == 8:  # noqa: PLR2004
            letter = 0x62
        elif byte == 9:  # noqa: PLR2004
            letter = 0x74
        elif byte == 10:  # noqa: PLR2004
            letter = 0x6E
        elif byte == 12:  # noqa: PLR2004
            letter = 0x66
        elif byte == 13:  # noqa: PLR2004
            letter = 0x72
        elif byte < _SPACE:
            store_uint8(target + 1, 0x75)
            store_uint8(target + 2, _ZERO)
            store_uint8(target + 3, _ZERO)
            store_uint8(target + 4, _ZERO + (byte >> 4))
            digit = byte & 15
            store_uint8(target + 5, (_ZERO if digit < 10 else 55) + digit)  # noqa: PLR2004
            target += 6
            continue
        store_uint8(target + 1, letter)
        target += 2
    return target


@kernel_part
def _base64_letter(digit: int) -> int:
    if digit < 26:  # noqa: PLR2004
        return 0x41 + digit
    if digit < 52:  # noqa: PLR2004
        return 0x61 - 26 + digit
    if digit < 62:  # noqa: PLR2004
        return 0x30 - 52 + digit
    return 0x2B if digit == 62 else 0x2F  # noqa: PLR2004


@kernel_part
def encode_base64(target: int, source: int, size: int) -> int:
    """Write bytes as base64; return the address behind."""
    for at in range(0, size, 3):
        rest = size - at
        bits = load_byte(source + at) << 16
        if rest > 1:
            bits |= load_byte(source + at + 1) << 8
        if rest > 2:  # noqa: PLR2004
            bits |= load_byte(source + at + 2)
        store_uint8(target, _base64_letter(bits >> 18))
        store_uint8(target + 1, _base64_letter(bits >> 12 & 63))
        store_uint8(target + 2, _base64_letter(bits >> 6 & 63) if rest > 1 else 0x3D)
        store_uint8(target + 3, _base64_letter(bits & 63) if rest > 2 else 0x3D)  # noqa: PLR2004
        target += 4
    return target


@kernel_part
def _write_digits(target: int, number: int, count: int) -> int:
    """Write a number with so many digits; return the address behind."""
    for at in range(count - 1, -1, -1):
        rest = number // 10
        store_uint8(target + at, _ZERO + number - 10 * rest)
        number = rest
    return target + count


@kernel_part
def write_date(target: int, days: int) -> int:
    """Write the date of a day since 1970, as Spark does; return the address behind."""
    days += _DAYS_TO_1970
    era = days // _DAYS_OF_400_YEARS
    of_era = days - era * _DAYS_OF_400_YEARS
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    day = of_era - (365 * year + (year >> 2) - year // 100)
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5 - 1
    year += 400 * era
    month += 3
    if month > 12:  # noqa: PLR2004
        month -= 12
        year += 1
    if year < 0:
        store_uint8(target, _MINUS)
        target += 1
        year = -year
    elif year > 9999:  # noqa: PLR2004
        store_uint8(target, _PLUS)
        target += 1
    digits, more = 4, year // 10_000
    while more:
        more //= 10
        digits += 1
    target = _write_digits(target, year, digits)
    store_uint8(target, _MINUS)
    target = _write_digits(target + 1, month, 2)
    store_uint8(target, _MINUS)
    return _write_digits(target + 1, day, 2)


@kernel_part
def write_timestamp(target: int, moment: int, units: int, has_zone: int) -> int:
    """Write a moment since 1970 that has so many units in a second; return the address behind.

    Milliseconds are written as Spark does, and microseconds if there are any.
    """
    seconds = moment // units
    rest = moment - seconds * units
    micros = rest * (_MICROSECONDS // units) if units <= _MICROSECONDS else rest // 1000
    days = seconds // 86_400
    seconds -= 86_400 * days
    target = write_date(target, days)
    store_uint8(target, _T)
    target = _write_digits(target + 1, seconds // 3600, 2)
    store_uint8(target, _COLON)
    target = _write_digits(target + 1, seconds // 60 % 60, 2)
    store_uint8(target, _COLON)
    target = _write_digits(target + 1, seconds % 60, 2)
    store_uint8(target, _POINT)
    millis = micros // 1000
    if millis * 1000 == micros:
        target = _write_digits(target + 1, millis, 3)
    else:
        target = _write_digits(target + 1, micros, 6)
    if has_zone:
        store_uint8(target, _Z)
        target += 1
    return target
