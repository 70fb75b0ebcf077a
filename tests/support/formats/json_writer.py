"""JSON as Spark's `to_json` writes it, in Python: the oracle of the compiled encoder."""

from __future__ import annotations

import base64
import json
import re
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from spark_kafka_sink.formats.columnar.sources import (
    is_any_binary,
    is_any_list,
    is_any_string,
    value_type,
)

_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_SECONDS = 86_400


def encode(arrow_type: pa.DataType, value: Any) -> str:
    """Return the text for a value that is not null; times are raw numbers."""
    kind = value_type(arrow_type)
    if pa.types.is_struct(kind):
        members = [
            f"{_string(field.name)}:{encode(field.type, value[field.name])}"
            for field in kind
            if value[field.name] is not None
        ]
        return "{" + ",".join(members) + "}"
    if is_any_list(kind):
        return "[" + ",".join(_item(kind.value_type, item) for item in value) + "]"
    if pa.types.is_map(kind):
        members = [
            f"{_key(kind.key_type, key)}:{_item(kind.item_type, item)}" for key, item in value
        ]
        return "{" + ",".join(members) + "}"
    return _leaf(kind, value)


def _item(arrow_type: pa.DataType, value: Any) -> str:
    return "null" if value is None else encode(arrow_type, value)


def _key(arrow_type: pa.DataType, value: Any) -> str:
    text = encode(arrow_type, value)
    return text if text.startswith('"') else f'"{text}"'


def _leaf(kind: Any, value: Any) -> str:  # noqa: PLR0911  one for each type
    if pa.types.is_boolean(kind):
        return "true" if value else "false"
    if pa.types.is_integer(kind):
        return str(value)
    if pa.types.is_floating(kind):
        return float_text(value, is_single=kind != pa.float64())
    if pa.types.is_decimal(kind):
        return str(value)
    if is_any_binary(kind):
        return f'"{base64.b64encode(value).decode()}"'
    if is_any_string(kind):
        return _string(value)
    if pa.types.is_date(kind):
        return f'"{_day(value if pa.types.is_date32(kind) else value // (_DAY_SECONDS * 1000))}"'
    seconds, rest = divmod(value, _UNITS[kind.unit])
    micros = rest * 1_000_000 // _UNITS[kind.unit]
    days, seconds = divmod(seconds, _DAY_SECONDS)
    fraction = f"{micros:06}" if micros % 1000 else f"{micros // 1000:03}"
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction}"
    return f'"{_day(days)}T{clock}{"Z" if kind.tz else ""}"'


def _string(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return re.sub(
        r"(?<!\\)((?:\\\\)*\\u)([0-9a-f]{4})", lambda found: found[1] + found[2].upper(), quoted
    )


def _day(days: int) -> str:
    # The calendar repeats after 400 years.
    periods, rest = divmod(days, 146_097)
    day = date(1970, 1, 1) + timedelta(days=rest)
    year = day.year + 400 * periods
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04}-{day.month:02}-{day.day:02}"


def float_text(value: float, *, is_single: bool) -> str:
    """Return a number as Java's `toString` does from version 19 on."""
    if not np.isfinite(value):
        return {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}[str(float(value))]
    exact = np.float32(value) if is_single else np.float64(value)
    sign = "-" if np.signbit(exact) else ""
    if exact == 0:
        return f"{sign}0.0"
    digits, exponent = _parts(np.format_float_scientific(abs(exact), unique=True))
    if len(digits) == 1:  # Two digits at least.
        digits, exponent = _parts(f"{Decimal(float(abs(exact))):.1e}")
    if 0 <= exponent < 7:
        digits = digits.ljust(exponent + 2, "0")
        return f"{sign}{digits[: exponent + 1]}.{digits[exponent + 1 :]}"
    if -3 <= exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _parts(text: str) -> tuple[str, int]:
    mantissa, exponent = text.split("e")
    return mantissa.replace(".", "").rstrip("0"), int(exponent)
