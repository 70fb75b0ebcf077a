"""The commits of a stream's progress to `commitGroup`, for lag monitors.

Nothing reads the group. So a commit never delays a micro-batch: a thread makes it, and if several
come meanwhile, only the last counts. A failure is a warning, the same one only once.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from spark_kafka_sink.spark.source_group import refusals_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_kafka_sink.errors import KafkaError
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.spark.source.offsets_json import Offsets

    Commit = Callable[[str, Offsets], Mapping[TopicPartition, KafkaError]]

logger = logging.getLogger(__name__)

OPTION = "commitGroup"


class GroupCommits:
    """The commits of one stream to one group."""

    def __init__(self, group_id: str, commit: Commit) -> None:
        """Store how to commit; no thread is started yet."""
        self._group_id = group_id
        self._commit = commit
        self._lock = threading.Lock()
        self._next: Offsets | None = None
        self._thread: threading.Thread | None = None
        self._last_warning: str | None = None

    def put(self, offsets: Offsets) -> None:
        """Commit these offsets soon; never waits and never raises."""
        with self._lock:
            self._next = offsets
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="kafka-commit-group", daemon=True
                )
                self._thread.start()

    def wait(self, timeout: float) -> None:
        """Wait until the last offsets are committed, at most `timeout` seconds."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._lock:
                offsets, self._next = self._next, None
                if offsets is None:
                    self._thread = None
                    return
            try:
                cause = refusals_text(self._commit(self._group_id, offsets), OPTION)
            except Exception as error:  # noqa: BLE001 -- it must not end the thread
                cause = str(error) or type(error).__name__
            self._warn(cause)

    def _warn(self, cause: str) -> None:
        if cause and cause != self._last_warning:
            logger.warning(
                "the progress of the query was not committed to %s %r, which changes nothing else: "
                "%s",
                OPTION,
                self._group_id,
                cause,
            )
        self._last_warning = cause
