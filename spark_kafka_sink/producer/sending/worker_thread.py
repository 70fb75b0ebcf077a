"""A thread for work that would block the network thread: compressing and splitting batches.

It runs one job at a time. Each outcome is passed to the network thread, which alone decides what
happens next. A partition's batches are ordered by its queue, not by these jobs.
"""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from spark_kafka_sink.errors import ProducerClosedError
from spark_kafka_sink.network.daemon_thread import is_exiting

if TYPE_CHECKING:
    from collections.abc import Callable


class WorkOutcome(NamedTuple):
    """The return value of a job, or the error that it raised."""

    result: Any
    error: BaseException | None = None


#: Takes a job, and a function that receives its outcome on the network thread.
RunAside: TypeAlias = "Callable[[Callable[[], Any], Callable[[WorkOutcome], None]], None]"


class WorkerThread:
    """A worker for one producer; its thread starts with the first job."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], None], *, client_id: str) -> None:
        """Create the worker; `call_soon` runs a function on the network thread."""
        self._call_soon = call_soon
        self._jobs: queue.SimpleQueue[
            tuple[Callable[[], Any], Callable[[WorkOutcome], None]] | None
        ] = queue.SimpleQueue()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._name = f"kafka-producer-worker-thread | {client_id}"

    def run_aside(self, work: Callable[[], Any], then: Callable[[WorkOutcome], None]) -> None:
        """Run `work` on the worker thread, then `then` with its outcome on the network thread.

        At the end of the process, when no thread can be started, `work` runs on the network thread.
        Only the network thread may call this.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if not is_exiting():
                    raise
                self._call_soon(partial(then, self._outcome_of(work)))
                return
            self._thread = thread
        self._jobs.put((work, then))

    def close(self) -> None:
        """Wait for the running job, and fail the others with ProducerClosedError."""
        self._is_closing = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, then = job
            self._call_soon(partial(then, self._outcome_of(work)))

    def _outcome_of(self, work: Callable[[], Any]) -> WorkOutcome:
        if self._is_closing:
            return WorkOutcome(None, ProducerClosedError("the producer is closed"))
        try:
            return WorkOutcome(work())
        except BaseException as error:  # noqa: BLE001  passed to the network thread
            return WorkOutcome(None, error)
