"""Building blocks of what notebooks show: tables with bars, in plain HTML with inline styles.

Every text is escaped. Colours are those of the page, or grey and blue tones that can be read on
light and on dark backgrounds, so nothing here needs a style sheet or a script. The size of the
result is bounded, whatever the number of rows.
"""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The number of rows that a table shows; it only counts the others.
MAX_ROWS: Final = 20
#: The longest text in a cell, in characters.
MAX_TEXT: Final = 200
_KILO: Final = 1000

_BLOCK: Final = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.5;margin:4px 0"
_TITLE: Final = "font-weight:600;margin:2px 0;overflow-wrap:anywhere"
_NOTE: Final = "opacity:.75;margin:2px 0"
_SCROLL: Final = "overflow-x:auto;max-width:100%"
_TABLE: Final = (
    "border-collapse:collapse;border:none;margin:4px 0;font-variant-numeric:tabular-nums"
)
_CELL: Final = (
    "padding:2px 10px 2px 0;border:none;border-bottom:1px solid rgba(128,128,128,.3);"
    "background:transparent;color:inherit;vertical-align:top"
)
_BAR: Final = "background:rgba(66,133,244,.75);height:10px;border-radius:2px;min-width:1px"
_BAR_CELL: Final = "min-width:40px;width:160px;vertical-align:middle"


def block(title: str, *parts: str, notes: Iterable[str] = ()) -> str:
    """Return HTML with a title, parts that are HTML already, and notes."""
    lines = [f'<div style="{_BLOCK}">', f'<div style="{_TITLE}">{text(title)}</div>', *parts]
    lines += [f'<div style="{_NOTE}">{text(note)}</div>' for note in notes]
    return "\n".join([*lines, "</div>"])


def facts(values: Mapping[str, object], *, aligned: bool = False) -> str:
    """Return a table of names and values, without those that are None.

    Values are at the left, or numbers at the right with `aligned`: for values of one kind.
    """
    rows = [(name, value) for name, value in values.items() if value is not None]
    return table(None, rows, count=len(rows), plain=frozenset() if aligned else {1})


def table(
    headings: Sequence[str] | None,
    rows: Iterable[Sequence[object]],
    *,
    count: int,
    things: tuple[str, str] = ("row", "rows"),
    bars: int | None = None,
    most: int = MAX_ROWS,
    plain: frozenset[int] | set[int] = frozenset(),
) -> str:
    """Return a table of the first `most` of `count` rows, and how many more there are.

    `things` is what to call a row and several rows. Numbers are aligned right, except in the
    columns `plain`. `bars` is the column whose numbers are drawn as bars, too, in a column at its
    right: each is compared with the largest that is shown. Without any number above 0, there is no
    column of bars.
    """
    shown = list(islice(rows, most))
    largest = 0.0
    if bars is not None:
        largest = max((_length(row[bars]) for row in shown), default=0.0)
        bars = bars if largest else None
    lines = [f'<div style="{_SCROLL}"><table style="{_TABLE}">']
    if headings is not None:
        numeric = [any(_is_number(row[number]) for row in shown) for number in range(len(headings))]
        cells = [
            _cell("th", text(heading), right=numeric[number] and number not in plain)
            for number, heading in enumerate(headings)
        ]
        if bars is not None:
            cells.insert(bars + 1, _cell("th", ""))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    for row in shown:
        cells = [
            _cell("td", text(value), right=_is_number(value) and number not in plain)
            for number, value in enumerate(row)
        ]
        if bars is not None:
            cells.insert(bars + 1, _bar(_length(row[bars]), largest))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    lines.append("</table></div>")
    if count > len(shown):
        lines.append(f'<div style="{_NOTE}">{text(more(count - len(shown), things))}</div>')
    return "\n".join(lines)


def text(value: object) -> str:
    """Return a value as escaped text: numbers with separators, None as a dash, long text cut."""
    if value is None:
        return "&ndash;"
    if isinstance(value, float) and value.is_integer():
        return f"{value:,.0f}"
    if isinstance(value, float):
        # A rate, such as that of compression, needs more than one decimal.
        shown = f"{value:.2g}" if 0 < abs(value) < 1 else f"{value:,.1f}"
        return shown if isfinite(value) else "&ndash;"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escape(shortened(str(value)))


def shortened(value: str, length: int = MAX_TEXT) -> str:
    """Return at most `length` characters of a text, with a mark where it was cut."""
    return value if len(value) <= length else value[: length - 1] + "\N{HORIZONTAL ELLIPSIS}"


def counted(count: int, one: str, several: str | None = None) -> str:
    """Return a number with its noun: `1 row`, `2,000 rows`."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def more(count: int, things: tuple[str, str]) -> str:
    """Return how many things are not shown."""
    return f"... and {count:,} more {things[count != 1]}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return names separated by commas: the first `most`, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def size(count: float) -> str:
    """Return a number of bytes in a suitable unit (powers of 1000)."""
    units = iter(("bytes", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while count >= _KILO and unit != "TB":
        count, unit = count / _KILO, next(units)
    return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"


def moment(milliseconds: int) -> str:
    """Return a time since 1970 in words (UTC), or its number if there is no such date."""
    try:
        instant = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return instant.isoformat(sep=" ", timespec="milliseconds")


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _length(value: object) -> float:
    is_length = isinstance(value, int | float) and isfinite(value) and value > 0
    return float(value) if is_length else 0.0  # type: ignore[arg-type]  # the line above checks it


def _cell(tag: str, content: str, *, right: bool = False, style: str = "") -> str:
    align = f"text-align:{'right' if right else 'left'}"
    return f'<{tag} style="{_CELL};{align}{style}">{content}</{tag}>'


def _bar(value: float, largest: float) -> str:
    width = 100 * value / largest if largest else 0.0
    bar = f'<div style="{_BAR};width:{width:.1f}%"></div>' if value else ""
    return _cell("td", bar, style=f";{_BAR_CELL}")


def printable(text: str) -> str:
    r"""Return the text on one line, with control and format characters as escapes such as `\x1b`.

    A terminal interprets control characters (ECMA-48), reverses text after some Unicode format
    characters, and cannot display surrogates.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
