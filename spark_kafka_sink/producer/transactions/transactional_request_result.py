"""The outcome of a transactional operation, for the thread that waits for it.

This is Java's TransactionalRequestResult. The network thread completes it once. The caller may wait
any number of times: after a timeout it can wait again for the same operation instead of starting it
twice.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable


class TransactionalRequestResult:
    """The outcome of an operation: pending, successful or failed."""

    def __init__(self, operation: str) -> None:
        """Create a pending outcome; `operation` is the name of the caller's method."""
        self.operation = operation
        #: The error that it failed with; None if it has not failed.
        self.error: Exception | None = None
        #: Whether the caller has received the outcome: only then may another operation begin.
        self.is_acked = False
        self._ended = threading.Event()

    def done(self) -> None:
        """Mark the operation as successful, unless it has ended already."""
        self._ended.set()

    def fail(self, error: Exception) -> None:
        """Mark the operation as failed, unless it has ended already."""
        if not self._ended.is_set():
            self.error = error
            self._ended.set()

    @property
    def is_completed(self) -> bool:
        """Whether it has ended, successfully or not."""
        return self._ended.is_set()

    def wait(
        self,
        timeout: float | None,
        last_error: Callable[[], Exception | None] = lambda: None,
        *,
        limit: float | None = None,
    ) -> None:
        """Wait at most `timeout` seconds for the end; raise the error if the operation failed.

        `last_error` returns the latest network error, for the message after a timeout; `limit` is
        max.block.ms, part of which the caller may have used already.

        Raises KafkaTimeoutError when the timeout expires: the operation continues, and a repeated
        call waits for the same operation.
        """
        if not self._ended.wait(timeout):
            cause = last_error()
            raise KafkaTimeoutError(
                f"{self.operation} did not complete within {limit or timeout:g} s (max.block.ms) "
                f"and is still in progress: call {self.operation} again to wait for it, or close "
                "the producer" + ("" if cause is None else f". The last network error was: {cause}")
            ) from cause
        self.is_acked = True
        if self.error is not None:
            raise self.error
