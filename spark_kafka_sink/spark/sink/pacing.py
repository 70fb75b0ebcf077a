"""The pace of a write: `maxBytesPerSecond` and `maxRecordsPerSecond`, kept by all of its tasks.

No task knows how many others run. So the tasks of one executor, which are processes on one machine,
share a token bucket in a file, and the rate is divided among the executors only.

- `Pace` is the bucket, a value: each method takes the time and returns the next value. Rows are
  known when they are reserved. Bytes count as brokers' quotas count them, compressed and with the
  headers of their batches, so they are estimated when they are reserved, and settled once sent.
- A task reserves each part of its rows in turn and appends it when it is due. Before it pauses, it
  flushes: what it has appended is then sent, and no timeout of a record passes in a pause.
- A part is a tenth of a second's worth, and the bucket allows a task to be a little early or late,
  so that in ten seconds at most `SPARE` seconds' worth more is sent, by however many tasks.
- Nothing needs to be undone if a task is killed: what it had reserved counts as sent.

Spark kills the worker of a cancelled task, so a pause ends with its process.
"""

from __future__ import annotations

import fcntl
import math
import os
import struct
import time
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from spark_kafka_sink.errors import ConfigError, KafkaError, KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from spark_kafka_sink.config.sink_options import PaceOptions

#: The seconds' worth of a part, of parts that may be early before a task pauses, and of time that
#: is made up for after there was nothing to send, or a flush took long.
_PART: Final = 0.1
_AHEAD: Final = 0.1
_LATE: Final = 0.2
#: The seconds' worth that may be sent beyond the rate, however long the time is.
SPARE: Final = _PART + _AHEAD + _LATE
#: How often a task that pauses looks whether it may go on sooner, in seconds.
_LOOK: Final = 0.25
#: How old an estimate of bytes gets, in seconds, while the task sends without a pause.
_SETTLE: Final = 1.0
#: What a record takes beside its columns, roughly.
_RECORD_OVERHEAD: Final = 12
_LOCAL_DIRECTORIES: Final = "SPARK_LOCAL_DIRS"
_KEPT_SECONDS: Final = 24 * 60 * 60
#: The number of executors on YARN and Kubernetes if spark.executor.instances is not set.
_DEFAULT_EXECUTORS: Final = 2
_NO_LIMIT: Final = 2**31 - 1
#: More than a batch of Arrow has.
_MOST_ROWS: Final = 2**31


class Limits(NamedTuple):
    """The rates of one executor, per second; None for no limit."""

    rows: float | None
    bytes: float | None

    def rows_of_part(self, row_size: float, ratio: float) -> int:
        """Return how many rows of this size a part has, at least one."""
        rows = float(_MOST_ROWS) if self.rows is None else self.rows * _PART
        if self.bytes is not None and ratio:
            rows = min(rows, self.bytes * _PART / (row_size * ratio))
        return max(int(rows), 1)


class Place(NamedTuple):
    """The place of reserved rows among all."""

    rows_due_at: float
    #: The bytes reserved before, not compressed.
    bytes_before: int


@dataclass(frozen=True, slots=True)
class Pace:
    """How far the tasks of an executor are; times are in seconds of its monotonic clock."""

    #: When the next rows are due.
    rows_due_at: float
    #: When the next bytes would be due, if nothing had been reserved beyond what is settled.
    bytes_due_at: float
    #: Bytes as reserved, not compressed.
    reserved: int = 0
    settled: int = 0
    #: How many bytes are sent for a reserved one, by the last settlements.
    ratio: float = 1.0

    @classmethod
    def begun(cls, now: float) -> Self:
        """Return the pace of a write that begins."""
        return cls(now, now)

    def reserve(self, limits: Limits, rows: int, size: int, now: float) -> tuple[Pace, Place]:
        """Reserve rows of `size` bytes, not compressed; return their place, too."""
        place = Place(max(self.rows_due_at, now - _LATE), self.reserved)
        late = now - _LATE - self._bytes_due(limits, self.reserved)
        return (
            replace(
                self,
                rows_due_at=place.rows_due_at + (0 if limits.rows is None else rows / limits.rows),
                bytes_due_at=self.bytes_due_at + max(late, 0),
                reserved=self.reserved + size,
            ),
            place,
        )

    def due_at(self, limits: Limits, place: Place) -> float:
        """Return when rows with this place may be sent."""
        return max(place.rows_due_at, self._bytes_due(limits, place.bytes_before))

    def _bytes_due(self, limits: Limits, before: int) -> float:
        if limits.bytes is None:
            return self.bytes_due_at
        return self.bytes_due_at + max(before - self.settled, 0) * self.ratio / limits.bytes

    def settle(self, limits: Limits, size: int, sent: int) -> Pace:
        """Replace the estimate for `size` reserved bytes by what was sent for them."""
        if limits.bytes is None or not size:
            return self
        # Few rows compress less.
        weight = min(size / (limits.bytes * _PART), 1.0) / 2 if self.settled else 1.0
        return replace(
            self,
            bytes_due_at=self.bytes_due_at + sent / limits.bytes,
            settled=self.settled + size,
            ratio=self.ratio + weight * (sent / size - self.ratio),
        )


class SharedPace(Protocol):
    """The pace that the tasks of one executor share."""

    def read(self, now: float) -> Pace:
        """Return the pace; that of a write that begins if no task has reserved anything."""

    def change(self, now: float, change: Callable[[Pace], Pace]) -> Pace:
        """Replace the pace by what `change` makes of it; return that."""

    def close(self) -> None:
        """Close it for this task."""


class PaceFile:
    """A `SharedPace` in a file, which a task locks for as long as it takes to change it."""

    _LAYOUT: Final = struct.Struct("<ddqqd")

    def __init__(self, path: Path) -> None:
        """Choose the file; the first row opens it."""
        self._path = path
        self._file: int | None = None

    def read(self, now: float) -> Pace:
        """Return the pace (`SharedPace.read`); raises KafkaError."""
        return self._locked(fcntl.LOCK_SH, lambda file: self._read(file, now))

    def change(self, now: float, change: Callable[[Pace], Pace]) -> Pace:
        """Replace the pace (`SharedPace.change`); raises KafkaError."""

        def write(file: int) -> Pace:
            pace = change(self._read(file, now))
            os.pwrite(file, self._LAYOUT.pack(*astuple(pace)), 0)
            return pace

        return self._locked(fcntl.LOCK_EX, write)

    def _read(self, file: int, now: float) -> Pace:
        data = os.pread(file, self._LAYOUT.size, 0)
        return Pace(*self._LAYOUT.unpack(data)) if data else Pace.begun(now)

    def _locked(self, how: int, action: Callable[[int], Pace]) -> Pace:
        try:
            if self._file is None:
                self._file = self._open()
            fcntl.flock(self._file, how)
            try:
                return action(self._file)
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        except OSError as error:
            raise KafkaError(
                f"the tasks of an executor share their pace in the file {str(self._path)!r}, which "
                f"cannot be used ({error}): make Spark's temporary directory writable for its "
                "Python workers, or remove maxBytesPerSecond and maxRecordsPerSecond"
            ) from error

    def _open(self) -> int:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self._path, flags, 0o600)
        if not os.fstat(file).st_size:
            _remove_old(self._path.parent, time.time() - _KEPT_SECONDS)
        return file

    def close(self) -> None:
        """Close the file, which stays for the other tasks."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _remove_old(directory: Path, before: float) -> None:
    """Remove the files of writes that have changed none since `before`, in seconds since 1970."""
    for path in directory.iterdir():
        # Another task may remove it now.
        with suppress(OSError):
            if path.stat().st_mtime < before:
                path.unlink()


class Pacer:
    """The waits of one task. Only the thread that writes uses it."""

    def __init__(
        self,
        limits: Limits,
        shared: SharedPace,
        *,
        transaction_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Create it; a transaction of the task may be open for `transaction_seconds`."""
        self._limits = limits
        self._shared = shared
        self._transaction_seconds = transaction_seconds
        self._clock = clock
        self._sleep = sleep
        self._unsettled = 0
        self._ratio = 1.0
        #: Whether the task has sent a row.
        self._is_ready = False
        self._settled_at = -math.inf
        self._began_at: float | None = None
        #: How long the task has paused.
        self.waited_seconds = 0.0

    def close(self) -> None:
        """End the task."""
        self._shared.close()

    def begin(self) -> None:
        """Record that the transaction of the task begins now, if it has one."""
        self._began_at = self._clock()

    def parts(self, batch: pa.RecordBatch, flush: Callable[[], int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in parts, each when it is due.

        `flush` sends all parts before, and returns how many bytes were sent since its last call.
        Raises KafkaTimeoutError if the task's transaction would time out before a part is due.
        """
        row_size = batch.nbytes / batch.num_rows + _RECORD_OVERHEAD
        row = 0
        while row < batch.num_rows:
            # Connecting and loading the kernels takes time. Tasks that begin together would be
            # ready together, too, and send in one burst what was due meanwhile.
            rows = self._limits.rows_of_part(row_size, self._ratio) if self._is_ready else 1
            part = batch.slice(row, rows)
            for pause in self.pauses(part.num_rows, math.ceil(part.num_rows * row_size), flush):
                self._sleep(pause)
            yield part
            row += part.num_rows
            if not self._is_ready:
                self._is_ready = True
                self.settle(flush)

    def pauses(self, rows: int, size: int, flush: Callable[[], int]) -> Iterator[float]:
        """Reserve rows of `size` bytes, and yield how long to sleep, until they are due."""
        now = self._clock()
        places = []

        def reserve(pace: Pace) -> Pace:
            pace, place = pace.reserve(self._limits, rows, size, now)
            places.append(place)
            return pace

        pace = self._shared.change(now, reserve)
        [place] = places
        is_early = pace.due_at(self._limits, place) > now + _AHEAD
        if is_early or self._must_settle(pace, now):
            pace = self.settle(flush) or pace
        if is_early:
            began = self._clock()
            while (now := self._clock()) < (due_at := pace.due_at(self._limits, place)):
                self._check_transaction(due_at)
                yield min(due_at - now, _LOOK)
                pace = self._shared.read(self._clock())
            self.waited_seconds += now - began
        self._ratio = pace.ratio
        self._unsettled += size

    def settle(self, flush: Callable[[], int]) -> Pace | None:
        """Flush, and count what was sent; return the pace if there was anything to send."""
        if not self._unsettled:
            return None
        size, self._unsettled = self._unsettled, 0
        sent = flush()
        self._settled_at = self._clock()
        return self._shared.change(
            self._settled_at, lambda pace: pace.settle(self._limits, size, sent)
        )

    def _must_settle(self, pace: Pace, now: float) -> bool:
        """Return whether the estimate of bytes is none, or too old."""
        if self._limits.bytes is None:
            return False
        return not pace.settled or now - self._settled_at > _SETTLE

    def _check_transaction(self, due_at: float) -> None:
        if self._began_at is None or self._transaction_seconds is None:
            return
        if due_at - self._began_at > self._transaction_seconds:
            raise KafkaTimeoutError(
                f"the next rows of this task are due {due_at - self._began_at:,.0f} s after its "
                "transaction began, because of maxBytesPerSecond or maxRecordsPerSecond, and "
                "kafka.transaction.timeout.ms is "
                f"{self._transaction_seconds * 1000:.0f}: the brokers would abort the transaction. "
                "None of the rows is visible. Raise the rate, raise the timeout up to the brokers' "
                "transaction.max.timeout.ms, or write fewer rows at a time"
            )


def pacer_of(
    options: PaceOptions | None,
    name: str,
    get_property: Callable[[str], str | None],
    *,
    transaction_seconds: float | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Pacer | None:
    """Return the pacer of a task (in the worker); None without limits.

    All tasks of the write have the same `name`, and no others. Raises ConfigError if the number of
    executors is unknown, KafkaError if there is no directory for what they share.
    """
    if options is None:
        return None
    executors = options.executors or executors_of(get_property)
    if executors is None:
        raise ConfigError(
            "maxBytesPerSecond and maxRecordsPerSecond are divided among the executors, and the "
            f"configuration of Spark (spark.master is {get_property('spark.master')!r}) does not "
            "say how many there are: set pacedExecutors"
        )
    directories = environ.get(_LOCAL_DIRECTORIES, "")
    if not directories:
        raise KafkaError(
            f"the tasks of an executor share their pace in a file, and {_LOCAL_DIRECTORIES}, where "
            "Spark has its temporary files, is not set in this worker: remove maxBytesPerSecond "
            "and maxRecordsPerSecond"
        )
    shared = PaceFile(Path(directories.split(",")[0]) / "spark-kafka-sink-pace" / name)
    limits = Limits(
        None if options.records_per_second is None else options.records_per_second / executors,
        None if options.bytes_per_second is None else options.bytes_per_second / executors,
    )
    return Pacer(limits, shared, transaction_seconds=transaction_seconds)


def executors_of(get_property: Callable[[str], str | None]) -> int | None:
    """Return how many executors an application has at most; None if that is unknown.

    A task of a write has Spark's configuration in its local properties, in classic Spark and under
    Spark Connect (`SQLExecution.withSQLConfPropagated`).
    """
    master = get_property("spark.master") or ""
    if master.startswith("local-cluster["):
        return _number(master.removeprefix("local-cluster[").partition(",")[0])
    if master.startswith("local"):
        return 1
    if get_property("spark.dynamicAllocation.enabled") == "true":
        return _number(get_property("spark.dynamicAllocation.maxExecutors"))
    if master.startswith(("yarn", "k8s:")):
        return _number(get_property("spark.executor.instances") or str(_DEFAULT_EXECUTORS))
    most = _number(get_property("spark.cores.max"))
    each = _number(get_property("spark.executor.cores"))
    return None if most is None or each is None else max(most // each, 1)


def _number(text: str | None) -> int | None:
    """Return a number of a configuration; None if there is none, or no limit."""
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if 0 < number < _NO_LIMIT else None
