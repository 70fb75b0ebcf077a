"""The methods of measurement: alternating rounds after a warm-up, with the best round of each.

Two contestants that are nearly equal are measured in pairs instead: the median and the spread of
the ratios within the pairs.

One round runs every contestant once, so that a slow minute of the machine affects all of them; the
first round is a warm-up. Figures from different machines, or from different times, are hardly
comparable: compare ratios within one run.
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from benchmarks.processes import cpu_seconds_between, cpu_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")
Name = TypeVar("Name")
MILLION = 1_000_000


class Spread(NamedTuple):
    """The median and the spread of repeated measurements."""

    median: float
    lower_quartile: float
    upper_quartile: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize one or more values; quartiles are interpolated between neighbours."""
        several = [*values, *values] if len(values) == 1 else values
        lower, median, upper = statistics.quantiles(several, n=4, method="inclusive")
        return cls(median, lower, upper, min(values), max(values))

    def cells(self) -> list[str]:
        """Return the cells of a table's `SPREAD_COLUMNS`."""
        return [
            f"{self.median:.3f}",
            f"{self.lower_quartile:.3f}-{self.upper_quartile:.3f}",
            f"{self.least:.3f}-{self.most:.3f}",
        ]


SPREAD_COLUMNS = ("median", "quartiles", "min-max")


@dataclass
class Trial:
    """One run of one contestant, with its wall-clock and CPU time."""

    rows: int
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Million rows per second."""
        return self.rows / self.seconds / MILLION

    @property
    def cpu_per_million(self) -> float:
        """CPU seconds per million rows, of all our processes except the broker."""
        return self.cpu_seconds / self.rows * MILLION


@contextmanager
def trial(rows: int, *, exclude: Sequence[int] = ()) -> Iterator[Trial]:
    """Measure a block that handles `rows` rows, without the CPU time of processes in `exclude`."""
    result = Trial(rows)
    before = cpu_times(exclude)
    started = time.perf_counter()
    yield result
    result.seconds = time.perf_counter() - started
    result.cpu_seconds = cpu_seconds_between(before, cpu_times(exclude))


def alternate(contestants: Mapping[Name, Callable[[], T]], *, rounds: int) -> dict[Name, list[T]]:
    """Run all contestants in alternating rounds; return the results of each after the warm-up."""
    results: dict[Name, list[T]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            progress(f"round {number}/{rounds}: {name}" if number else f"warming up: {name}")
            result = run()
            if number:
                results[name].append(result)
    progress("")
    return results


def contest(contestants: Mapping[str, Callable[[], Trial]], *, rounds: int) -> dict[str, Trial]:
    """Run all contestants in alternating rounds; return the fastest trial of each."""
    results = alternate(contestants, rounds=rounds)
    return {name: max(trials, key=lambda each: each.rate) for name, trials in results.items()}


def paired_ratios(
    first: Callable[[], Trial], second: Callable[[], Trial], *, pairs: int
) -> list[float]:
    """Measure pairs of trials; return the ratio of first to second for each pair.

    The order alternates from pair to pair. Both are warmed up first.
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
    """Print the progress to stderr: in place on a terminal, otherwise line by line."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K  {text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(f"  {text}", file=sys.stderr, flush=True)


def heading(text: str) -> None:
    """Print the heading of a section of the results."""
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, with the first column aligned left and the others right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip(), flush=True)


def verdict(value: float, *, at_least: float | None = None, at_most: float | None = None) -> str:
    """Return the target, and whether the value meets it."""
    if at_least is not None:
        return f">= {at_least:g} {'met' if value >= at_least else 'MISSED'}"
    return f"<= {at_most:g} {'met' if value <= at_most else 'MISSED'}"
