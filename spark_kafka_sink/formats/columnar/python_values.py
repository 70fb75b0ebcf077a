"""Python's values of what interpreters of payloads return: moments for numbers, dicts for pairs.

Each function returns how such values are converted, or None if they are right already.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LOCAL_EPOCH: Final = EPOCH.replace(tzinfo=None)
EPOCH_DAY: Final = EPOCH.date().toordinal()
_DAY: Final = dt.timedelta(days=1) // dt.timedelta(microseconds=1)

#: Converts a value that is not null; raises `MomentError`.
Convert: TypeAlias = Callable[[Any], Any]


class MomentError(Exception):
    """A value that Python's type does not have; `path` grows on the way out."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.path = ""

    def within(self, name: str) -> MomentError:
        """Return the error of a value that has this one under a name."""
        self.path = f"{name}{self.path}"
        return self


def of_leaf(kind: Any) -> Convert | None:
    """Return how values of a type of Arrow without parts become moments of Python."""
    if pa.types.is_timestamp(kind):
        start = LOCAL_EPOCH if kind.tz is None else EPOCH
        return lambda value: _added(start, value)
    if pa.types.is_date(kind):
        return _date
    if pa.types.is_time(kind):
        return time_of_day
    if pa.types.is_duration(kind):
        return lambda value: dt.timedelta(microseconds=value)
    return None


def of_record(fields: Iterable[tuple[str, Convert | None]]) -> Convert | None:
    """Return how the fields of a dict are converted, in place."""
    parts = [(name, convert) for name, convert in fields if convert is not None]
    if not parts:
        return None

    def convert_record(value: Any) -> Any:
        for name, convert in parts:
            item = value[name]
            if item is not None:
                try:
                    value[name] = convert(item)
                except MomentError as error:
                    raise error.within(f".{name}") from None
        return value

    return convert_record


def of_items(convert: Convert | None) -> Convert | None:
    """Return how the items of a list are converted."""
    if convert is None:
        return None

    def convert_items(value: Any) -> Any:
        try:
            return [None if item is None else convert(item) for item in value]
        except MomentError as error:
            raise error.within("[]") from None

    return convert_items


def of_entries(convert: Convert | None) -> Convert:
    """Return how a list of pairs becomes a dict."""
    if convert is None:
        return dict

    def convert_entries(value: Any) -> Any:
        try:
            return {key: None if item is None else convert(item) for key, item in value}
        except MomentError as error:
            raise error.within("{}") from None

    return convert_entries


def _added(start: dt.datetime, micros: int) -> dt.datetime:
    try:
        return start + dt.timedelta(microseconds=micros)
    except OverflowError:
        raise MomentError("the timestamp is not between the years 1 and 9999") from None


def _date(days: int) -> dt.date:
    try:
        return dt.date.fromordinal(days + EPOCH_DAY)
    except (OverflowError, ValueError):
        raise MomentError("the date is not between the years 1 and 9999") from None


def time_of_day(micros: int) -> dt.time:
    """Return the time after so many microseconds of a day."""
    if not 0 <= micros < _DAY:
        raise MomentError("the number is no time of the day")
    return (LOCAL_EPOCH + dt.timedelta(microseconds=micros)).time()
