"""A confluent-kafka writer that writes until it is stopped, with or without transactions.

It numbers its rows like `steady_writer` does, and tracks which of them must be found.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Self

import confluent_kafka
import numpy as np

from tests.support.record.numbered_rows import (
    DIGITS,
    RowCheck,
    RowNumbers,
    check_rows,
    read_numbers,
)

_SECONDS = 120
_ROWS_AT_ONCE = 50
#: One in this many transactions is aborted.
_ABORTED_EACH = 4


class ConfluentWriter:
    """An idempotent producer; a context manager that finishes the writing on exit."""

    def __init__(self, bootstrap_servers: str, topic: str, **settings: Any) -> None:
        """Create the producer."""
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 1,
                "retry.backoff.ms": 5,
                "topic.metadata.refresh.interval.ms": 500,
                "log_level": 0,
                **settings,
            }
        )
        self._is_transactional = "transactional.id" in settings
        self._sent = 0
        #: The numbers of the rows that must be found.
        self._written: list[RowNumbers] = []
        self._errors: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Start, and wait until rows are written."""
        self._thread.start()
        self.write_on(1)
        return self

    def __exit__(self, *_: object) -> None:
        """Finish; raise any error of the writer."""
        self._stop.set()
        self._thread.join(_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError(f"the writer of {self._topic} did not end within {_SECONDS} s")
        if self._errors:
            raise self._errors[0]

    @property
    def rows(self) -> int:
        """The number of rows that were delivered, and committed if in a transaction."""
        return sum(map(len, self._written))

    def write_on(self, rows: int) -> None:
        """Wait until this many more rows are written."""
        wanted = self.rows + rows
        deadline = time.monotonic() + _SECONDS
        while self.rows < wanted and not self._errors:
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {self.rows} of {wanted} rows were written")
            time.sleep(0.01)

    def check(self, bootstrap_servers: str) -> RowCheck:
        """Compare what a consumer of committed records reads with what was written."""
        written = np.concatenate(self._written)
        places = {
            partition: np.where(
                np.isin(numbers, written), np.searchsorted(written, numbers), len(written)
            )
            for partition, numbers in read_numbers(bootstrap_servers, self._topic).items()
        }
        return check_rows(places, len(written))

    def _run(self) -> None:
        try:
            if self._is_transactional:
                self._producer.init_transactions(_SECONDS)
            number = 0
            while not self._stop.is_set():
                number += 1
                self._write(aborts=self._is_transactional and number % _ABORTED_EACH == 0)
        except BaseException as error:  # noqa: BLE001  # raised by __exit__
            self._errors.append(error)

    def _write(self, *, aborts: bool) -> None:
        """Write some rows, and wait until they are delivered."""
        first = self._sent
        if self._is_transactional:
            self._producer.begin_transaction()
        for _ in range(_ROWS_AT_ONCE):
            value = str(self._sent).zfill(DIGITS)
            self._producer.produce(self._topic, value, on_delivery=self._delivered)
            self._sent += 1
            self._producer.poll(0)
        left = self._producer.flush(_SECONDS)
        if left:
            raise TimeoutError(f"{left} records were not delivered within {_SECONDS} s")
        if aborts:
            self._producer.abort_transaction(_SECONDS)
            return
        if self._is_transactional:
            self._commit()
        self._written.append(np.arange(first, self._sent, dtype=np.int64))

    def _commit(self) -> None:
        while True:
            try:
                self._producer.commit_transaction(_SECONDS)
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return

    def _delivered(self, error: confluent_kafka.KafkaError | None, _: object) -> None:
        if error is not None:
            self._errors.append(confluent_kafka.KafkaException(error))
