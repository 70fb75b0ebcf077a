"""Lineage on the driver: sending events, and what its Python processes know of each other's work.

Spark plans reads, plans writes and commits them in Python processes of the driver, most of which
end soon, and in no order that a process could rely on. So what one must know of another is in
files of the application, as the reports are (`report_store`): the reads that were planned, the
streams that are read now, and what was last sent about a run.

Nothing here may fail or hold up a job. A thread sends the events, with OpenLineage's own client
and its settings (environment variables `OPENLINEAGE_...`). Whoever wants an event to be sent before
the application may end waits for it, for two seconds at most; a process whose backend did not
answer in time does not wait for it again until it does. Whatever goes wrong is one line in the log.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from queue import Empty, Full, Queue
from threading import Event, Lock, Thread, get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.spark.report_store import (
    ReportStore,
    driver_directory,
    oldest_first,
    replace_file,
    session_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    #: Sends an event, or raises.
    Emit = Callable[[Mapping[str, Any]], None]

logger = logging.getLogger(__name__)

#: How long one waits for an event to be sent, in seconds.
WAIT_SECONDS: Final = 2.0
#: How many events may wait for a slow backend; more are dropped.
_MOST_WAITING: Final = 100
#: How long an idle thread stays, in seconds.
_IDLE_SECONDS: Final = 10.0
#: How many reads without a write are kept.
_MOST_KEPT: Final = 50
#: How many streams and runs are remembered: more than run side by side. A stream that was forgotten
#: would send START again with each micro-batch.
_MOST_STREAMS: Final = 1000
#: How long before the start of a micro-batch Spark may have planned what it reads, in seconds.
_PLANNED_SECONDS: Final = 60.0
#: How long the thread waits for a transport that sends in threads of its own, in seconds.
_SENT_SECONDS: Final = 60.0
_LIBRARY: Final = "openlineage"
#: How the loggers begin whose lines may have addresses with passwords, and one for each retry.
_LOGGERS: Final = (f"{_LIBRARY}.", "urllib3.")
#: The logger that warns of an event that was not sent, instead of raising.
_COMPOSITE: Final = "openlineage.client.transport.composite"
#: The logger of a transport that sends, and fails, in a thread of its own.
_ASYNC: Final = "openlineage.client.transport.async_http"
#: What the client logs if it has no settings; `connect_client` raises instead.
_NO_SETTINGS: Final = "will print events to console"
#: With these, `requests` would follow by a GET without the event, and lose it.
_LOSING_REDIRECTS: Final = (301, 302, 303)


def check_library() -> None:
    """Raise ConfigError if the library of OpenLineage is not installed here."""
    if find_spec(_LIBRARY) is None:
        raise ConfigError(
            "lineage=openlineage requires the library openlineage on the driver: "
            "pip install 'spark-kafka-sink[lineage]' there, or remove the option"
        )


@contextmanager
def best_effort() -> Iterator[None]:
    """Report any error as the reason why lineage is incomplete."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 -- whatever it is, no job fails for its lineage
        report_trouble(_reason(error))


def report_trouble(reason: str) -> None:
    """Log once in the application that lineage events are missing."""
    with suppress(OSError):
        store = ReportStore.of_driver()
        if store is not None and not store.is_first("lineage"):
            return
    logger.warning(
        "Kafka: lineage is incomplete: %s. Reads and writes go on without it, and this is not said "
        "again",
        reason,
    )


def _reason(error: BaseException) -> str:
    """Describe an error without its text, which may have an address with a password."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, ImportError | ConfigError):
        return str(error)
    return type(error).__name__ if status is None else f"the backend answered HTTP {status}"


class EventSender:
    """Sends events one after another in a thread, which ends when it is idle.

    `connect` returns what sends an event, and is called in that thread; `trouble` is told the
    reason why an event was not sent.
    """

    def __init__(self, connect: Callable[[], Emit], trouble: Callable[[str], None]) -> None:
        self._connect = connect
        self._trouble = trouble
        self._lock = Lock()
        self._events: Queue[tuple[Mapping[str, Any], Event]] = Queue(_MOST_WAITING)
        self._thread: Thread | None = None
        self._emit: Emit | None = None
        #: Whether the backend has not answered in time, and not since.
        self._is_late = False

    def send(self, event: Mapping[str, Any], wait: float = 0.0) -> bool:
        """Send an event soon; return whether it was sent within `wait` seconds; never raises."""
        sent = Event()
        with self._lock:
            try:
                self._events.put_nowait((event, sent))
            except Full:
                self._trouble("the backend takes events too slowly")
                return False
            if self._thread is None:
                self._thread = Thread(target=self._run, name="kafka-lineage", daemon=True)
                self._thread.start()
        if not wait or self._is_late:
            return False
        if sent.wait(wait):
            return True
        self._is_late = True
        self._trouble(f"an event could not be sent within {wait:g} s")
        return False

    def _run(self) -> None:
        with _ClientLines(self._trouble) as lines:
            while True:
                try:
                    event, sent = self._events.get(timeout=_IDLE_SECONDS)
                except Empty:
                    with self._lock:
                        if self._events.empty():
                            self._thread = None
                            return
                    continue
                self._send(event, lines)
                sent.set()

    def _send(self, event: Mapping[str, Any], lines: _ClientLines) -> None:
        try:
            if self._emit is None:
                self._emit = self._connect()
                lines.filter()
            self._emit(event)
        except Exception as error:  # noqa: BLE001 -- it must not end the thread
            self._trouble(_reason(error))
        else:
            self._is_late = False


class _ClientLines:
    """Filters what the client of OpenLineage logs in the thread that created this.

    Lines about failures and retries are dropped: they may contain secrets, and there is one for
    each event or attempt. Instead, `trouble` is told the text of a failure without its arguments.
    Other threads and other lines are not affected.
    """

    def __init__(self, trouble: Callable[[str], None]) -> None:
        self._trouble = trouble
        self._thread = get_ident()
        self._loggers: dict[str, logging.Logger] = {}

    def __enter__(self) -> Self:
        with suppress(ImportError):
            import_module(f"{_LIBRARY}.client")
        self.filter()
        return self

    def __exit__(self, *_: object) -> None:
        for of_client in self._loggers.values():
            of_client.removeFilter(self._is_kept)

    def filter(self) -> None:
        """Filter the loggers that there are by now: a transport is imported when it is created."""
        for name in list(logging.root.manager.loggerDict):
            if name.startswith(_LOGGERS) and name not in self._loggers:
                self._loggers[name] = logging.getLogger(name)
                self._loggers[name].addFilter(self._is_kept)

    def _is_kept(self, record: logging.LogRecord) -> bool:
        is_ours = record.thread == self._thread or record.name == _ASYNC
        if not is_ours or record.levelno < logging.WARNING:
            return True
        if not record.name.startswith(_LIBRARY):
            return False
        if record.levelno >= logging.ERROR or record.name == _COMPOSITE:
            text = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
            self._trouble(f"OpenLineage's client said: {text.replace('%s', '...').strip(' :')}")
            return False
        return _NO_SETTINGS not in str(record.msg)


def connect_client() -> Emit:
    """Create the client of OpenLineage, which reads its settings; raises what it raises.

    Raises ConfigError if nothing says where events go.
    """
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import (
        InputDataset,
        Job,
        OutputDataset,
        Run,
        RunEvent,
        RunState,
    )

    client = OpenLineageClient()
    transport = client.transport
    if transport.kind == "console" and (client.config.transport or {}).get("type") != "console":
        raise ConfigError(
            "no setting of OpenLineage names a backend: set OPENLINEAGE_URL or another one in the "
            "driver's environment before the session starts"
        )
    for one in (transport, *getattr(transport, "transports", ())):
        session = getattr(one, "session", None)
        if session is not None:
            session.hooks["response"].append(_refuse_losing_redirect)
    # Of transports that send in threads of their own.
    wait_until_sent = getattr(transport, "wait_for_completion", None)

    def emit(event: Mapping[str, Any]) -> None:
        client.emit(
            RunEvent(
                eventType=RunState(event["eventType"]),
                eventTime=event["eventTime"],
                producer=event["producer"],
                run=Run(**event["run"]),
                job=Job(**event["job"]),
                inputs=[InputDataset(**inputs) for inputs in event["inputs"]],
                outputs=[OutputDataset(**outputs) for outputs in event["outputs"]],
            )
        )
        if wait_until_sent is not None:
            wait_until_sent(_SENT_SECONDS)

    return emit


def _refuse_losing_redirect(response: Any, **_: object) -> None:
    """Raise _RedirectError if `requests` would follow a redirect without the event."""
    if response.status_code in _LOSING_REDIRECTS:
        raise _RedirectError(response)


class _RedirectError(Exception):
    """An event was answered with a redirect that loses it."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.response = response


_sender = EventSender(connect_client, report_trouble)


def send(event: Mapping[str, Any], wait: float = 0.0) -> None:
    """Send an event soon, and wait for that, at most `wait` seconds; never raises."""
    _sender.send(event, wait)


class PlannedRead(NamedTuple):
    """What a read has planned: the input datasets of events, and the option `lineageJob`."""

    job: str | None
    inputs: list[dict[str, Any]]
    #: Seconds since 1970.
    planned_at: float
    #: Of a stream: the process that plans it as long as it runs.
    process_id: int | None = None


class LineageStore:
    """The files of one application; its methods raise OSError."""

    def __init__(self, root: Path, session: str) -> None:
        self._root = root
        self._session = session

    @classmethod
    def of_driver(cls, environ: Mapping[str, str] = os.environ) -> LineageStore | None:
        """Return the store of the application to which this process belongs; None outside Spark."""
        root = driver_directory("spark-kafka-sink-lineage", environ)
        return None if root is None else cls(root, session_name(environ))

    def add_read(self, read: PlannedRead) -> None:
        """Keep a read until a write takes it."""
        directory = self._directory("reads", self._session)
        name = f"{int(read.planned_at * 1e9):020d}-{uuid.uuid4().hex}.json"
        replace_file(directory / name, json.dumps(read), durable=False)
        _keep_newest(directory, _MOST_KEPT)

    def take_reads(self, job: str | None) -> list[PlannedRead]:
        """Return the reads of this session that no other write has taken, oldest first.

        Only those with the same `job` count, and those without one if it is None.
        """
        taken = []
        for path in sorted(self._directory("reads", self._session).glob("*.json")):
            # Another write may take it now.
            with suppress(FileNotFoundError):
                read = PlannedRead(*json.loads(path.read_text("utf-8")))
                if read.job == job:
                    path.unlink()
                    taken.append(read)
        return taken

    def set_stream(self, stream: str, read: PlannedRead) -> None:
        """Keep what the last micro-batch of a stream reads; `stream` is its run id."""
        directory = self._directory("streams")
        replace_file(directory / f"{stream}.json", json.dumps(read), durable=False)
        _keep_newest(directory, _MOST_STREAMS)

    def remove_stream(self, stream: str) -> None:
        """Forget a stream that has ended."""
        (self._directory("streams") / f"{stream}.json").unlink(missing_ok=True)

    def streams(
        self, job: str | None, *, at: float, is_alive: Callable[[int], bool]
    ) -> list[PlannedRead]:
        """Return the streams that have planned a micro-batch shortly before `at`.

        Only those with the same `job` count. `is_alive` tells whether a process runs.
        """
        found = []
        for path in sorted(self._directory("streams").glob("*.json")):
            with suppress(FileNotFoundError):
                read = PlannedRead(*json.loads(path.read_text("utf-8")))
                if (
                    read.job == job
                    and at - _PLANNED_SECONDS <= read.planned_at <= at
                    and (read.process_id is None or is_alive(read.process_id))
                ):
                    found.append(read)
        return found

    def run_state(self, run_id: str) -> dict[str, Any]:
        """Return what `set_run_state` has stored; empty if there is nothing."""
        try:
            return dict(json.loads((self._directory("runs") / run_id).read_text("utf-8")))
        except FileNotFoundError:
            return {}

    def set_run_state(self, run_id: str, state: Mapping[str, Any]) -> None:
        """Store what was last sent about the run of a stream."""
        directory = self._directory("runs")
        replace_file(directory / run_id, json.dumps(state), durable=False)
        _keep_newest(directory, _MOST_STREAMS)

    def remove_run(self, run_id: str) -> None:
        """Forget a run that has ended."""
        (self._directory("runs") / run_id).unlink(missing_ok=True)

    def runs(self) -> dict[str, dict[str, Any]]:
        """Return the states of all runs by their ids."""
        found = {}
        for path in self._directory("runs").iterdir():
            if not path.name.startswith("."):
                # It may end now.
                with suppress(FileNotFoundError):
                    found[path.name] = dict(json.loads(path.read_text("utf-8")))
        return found

    def _directory(self, *names: str) -> Path:
        directory = self._root.joinpath("-".join(names))
        self._root.mkdir(mode=0o700, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        return directory


def is_process_alive(process_id: int) -> bool:
    """Return whether a process of this machine runs."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _keep_newest(directory: Path, most: int) -> None:
    for path in oldest_first(directory)[:-most]:
        path.unlink(missing_ok=True)
