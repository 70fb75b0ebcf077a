"""How things are measured: in alternating rounds, warm, the best round of each counts.

Or, where two things are nearly equal, in pairs: the ratio within each, their median and spread.

One round runs every contestant once, so that a slow minute of the machine hits all of them; the
first round only warms up. Figures of different machines, or of different minutes, say little:
what counts are the ratios within one run.
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.processes import cpu_seconds_between, cpu_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MILLION = 1_000_000


class Spread(NamedTuple):
    """What repeated measurements come to."""

    median: float
    lower_quartile: float
    upper_quartile: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up one value or more; quartiles lie between neighbours as their positions do."""
        several = [*values, *values] if len(values) == 1 else values
        lower, median, upper = statistics.quantiles(several, n=4, method="inclusive")
        return cls(median, lower, upper, min(values), max(values))

    def cells(self) -> list[str]:
        """Give the columns `SPREAD_COLUMNS` of a table."""
        return [
            f"{self.median:.3f}",
            f"{self.lower_quartile:.3f}-{self.upper_quartile:.3f}",
            f"{self.least:.3f}-{self.most:.3f}",
        ]


SPREAD_COLUMNS = ("median", "middle half", "least-most")


@dataclass
class Trial:
    """One run of one contestant; wall-clock and CPU time."""

    rows: int
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Million rows per second."""
        return self.rows / self.seconds / MILLION

    @property
    def cpu_per_million(self) -> float:
        """CPU seconds, of all our processes but the broker, per million rows."""
        return self.cpu_seconds / self.rows * MILLION


@contextmanager
def trial(rows: int, *, exclude: Sequence[int] = ()) -> Iterator[Trial]:
    """Measure a block that handles `rows` rows; `exclude` names processes whose CPU is not ours."""
    result = Trial(rows)
    before = cpu_times(exclude)
    started = time.perf_counter()
    yield result
    result.seconds = time.perf_counter() - started
    result.cpu_seconds = cpu_seconds_between(before, cpu_times(exclude))


def contest(contestants: Mapping[str, Callable[[], Trial]], *, rounds: int) -> dict[str, Trial]:
    """Run all contestants in alternating rounds; give the fastest trial of each."""
    best: dict[str, Trial] = {}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            progress(f"round {number}/{rounds}: {name}" if number else f"warming up: {name}")
            result = run()
            if number and (name not in best or result.rate > best[name].rate):
                best[name] = result
    progress("")
    return best


def paired_ratios(
    first: Callable[[], Trial], second: Callable[[], Trial], *, pairs: int
) -> list[float]:
    """Time pairs of trials, each one's turn to begin; give the first's seconds over the second's.

    Both are warmed up before.
    """
    ratios = []
    for number in range(pairs + 1):
        progress(f"pair {number}/{pairs}" if number else "warming up")
        if number % 2:
            one, other = first(), second()
        else:
            other, one = second(), first()
        if number:
            ratios.append(one.seconds / other.seconds)
    progress("")
    return ratios


def progress(text: str) -> None:
    """Show what is being done on stderr: in place on a terminal, else line by line."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K  {text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(f"  {text}", file=sys.stderr, flush=True)


def heading(text: str) -> None:
    """Begin a section of the results."""
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, the first column to the left and the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip(), flush=True)


def verdict(value: float, *, at_least: float | None = None, at_most: float | None = None) -> str:
    """Say whether a figure keeps its promise."""
    if at_least is not None:
        return f">= {at_least:g} {'met' if value >= at_least else 'MISSED'}"
    return f"<= {at_most:g} {'met' if value <= at_most else 'MISSED'}"
