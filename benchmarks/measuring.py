"""How things are measured: in alternating rounds, warm, the best round of each counts.

One round runs every contestant once, so that a slow minute of the machine hits all of them; the
first round only warms up. Figures of different machines, or of different minutes, say little:
what counts are the ratios within one run.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.processes import cpu_seconds_between, cpu_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MILLION = 1_000_000


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
