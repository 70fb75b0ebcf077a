"""The outcome of an operation on a transaction, for the thread that waits for it.

Java's TransactionalRequestResult. The network thread ends it once; the caller may wait for it any
number of times, so that an operation whose wait timed out can be waited for again instead of being
done twice.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable


class TransactionalRequestResult:
    """Done, failed, or not yet."""

    def __init__(self, operation: str) -> None:
        """`operation` is the caller's name for what is waited for."""
        self.operation = operation
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._acked = False

    def done(self) -> None:
        """Note the success, unless it has ended already."""
        self._ended.set()

    def fail(self, error: Exception) -> None:
        """Note the failure, unless it has ended already."""
        if not self._ended.is_set():
            self._error = error
            self._ended.set()

    @property
    def error(self) -> Exception | None:
        """Why it failed; None while it has not."""
        return self._error

    @property
    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    @property
    def is_successful(self) -> bool:
        """Whether it has ended well."""
        return self._ended.is_set() and self._error is None

    @property
    def is_acked(self) -> bool:
        """Whether the caller has learned of the end: only then may another operation begin."""
        return self._acked

    def wait(
        self,
        timeout: float | None,
        last_error: Callable[[], Exception | None] = lambda: None,
        *,
        limit: float | None = None,
    ) -> None:
        """Wait for the end, at most `timeout` seconds; raise the error that it failed with.

        `last_error` tells what went wrong last on the network, for who has waited in vain; `limit`
        is max.block.ms, of which the caller may have spent a part before.

        Raises KafkaTimeoutError when the time was too short: the operation goes on, and the same
        call made again waits for the rest of it.
        """
        if not self._ended.wait(timeout):
            cause = last_error()
            raise KafkaTimeoutError(
                f"{self.operation} did not end within {limit or timeout:g} s (max.block.ms) and "
                "goes on: "
                f"call {self.operation} again to wait for it, or close the producer"
                + ("" if cause is None else f". The last error of the network was: {cause}")
            ) from cause
        self._acked = True
        if self._error is not None:
            raise self._error
