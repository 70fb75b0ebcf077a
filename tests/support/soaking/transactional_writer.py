"""A writer that writes in transactions, and aborts some of them."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import numpy as np

from spark_kafka_sink.errors import KafkaError
from tests.support.record.numbered_rows import RowCheck, check_rows, read_numbers
from tests.support.soaking.steady_writer import SteadyWriter

if TYPE_CHECKING:
    from tests.support.record.numbered_rows import RowNumbers

_MOST_APPENDS = 20
_ABORTED_PART = 0.25


class TransactionalWriter(SteadyWriter):
    """A writer that appends in bulk; only the rows of committed transactions may be visible.

    A transaction that fails is aborted and does not count as committed. A commit whose outcome is
    unknown ends the writer.
    """

    def __init__(self, *args: object, **settings: object) -> None:
        """Create the producer, which needs its own transactional id; see `SteadyWriter`."""
        self._committed: list[RowNumbers] = []
        self._sent_rows = 0
        #: The number of transactions that an error ended.
        self.failed_transactions = 0
        super().__init__(*args, **settings)

    @property
    def rows(self) -> int:
        """The number of rows in committed transactions."""
        return sum(map(len, self._committed))

    @property
    def acknowledged(self) -> int:
        """The number of rows in committed transactions."""
        return self.rows

    def check(self, bootstrap_servers: str) -> RowCheck:
        """Compare what a read_committed consumer (librdkafka's default) reads with the commits."""
        committed = np.concatenate([np.empty(0, np.int64), *self._committed])
        places: dict[int, RowNumbers] = {}
        for partition, numbers in read_numbers(bootstrap_servers, self.topic).items():
            found = np.searchsorted(committed, numbers)
            is_committed = np.isin(numbers, committed)
            places[partition] = np.where(is_committed, found, len(committed))
        return check_rows(places, len(committed))

    def _write(self, thread: int) -> None:
        chance = random.Random(f"{self._seed} {thread}")
        self._producer.init_transactions()
        started = time.monotonic()
        while self.is_alive:
            first = self._sent_rows
            self._producer.begin_transaction()
            if self._fill(chance) and chance.random() >= _ABORTED_PART:
                self._commit(first)
            else:
                self._producer.abort_transaction()
            due = started + self._sent_rows / self._rows_per_second
            self._stop.wait(max(due - time.monotonic(), 0))

    def _fill(self, chance: random.Random) -> bool:
        """Append rows to the open transaction; return False if it can only be aborted."""
        for _ in range(chance.randint(1, _MOST_APPENDS)):
            count = chance.randint(1, self._most_rows)
            first = self._sent_rows
            self._sent_rows += count
            try:
                self._append(first, count)
            except KafkaError:
                self.failed_transactions += 1
                return False
        return True

    def _commit(self, first: int) -> None:
        try:
            self._producer.commit_transaction()
        except KafkaError:
            self.failed_transactions += 1
            # This raises if it is unknown whether the transaction was committed.
            self._producer.abort_transaction()
            return
        self._committed.append(np.arange(first, self._sent_rows, dtype=np.int64))
