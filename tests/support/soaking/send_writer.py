"""A writer that sends row by row, and checks the result of every future."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.record.numbered_rows import RowCheck, read_numbers
from tests.support.record.text_rows import numbered_values
from tests.support.soaking.steady_writer import SteadyWriter, check_runs

if TYPE_CHECKING:
    from spark_kafka_sink.producer.records.record_futures import FutureRecordMetadata

_FUTURE_SECONDS = 300


class SendWriter(SteadyWriter):
    """A writer that sends each row with `send`; half of the rows have a key."""

    def __init__(self, *args: object, **settings: object) -> None:
        """Create the producer; see `SteadyWriter`."""
        self._sent: list[tuple[int, FutureRecordMetadata]] = []
        super().__init__(*args, **settings)

    def _append(self, first: int, count: int) -> None:
        for number, value in enumerate(numbered_values(first, first + count).to_pylist(), first):
            key = b"%d" % (number % 1000) if number % 2 else None
            called = self._note_error if number % 3 else None
            future = self._producer.send(self.topic, value, key=key, on_delivery=called)
            self._sent.append((number, future))

    def _note_error(self, _: object, error: Exception | None) -> None:
        self.error = self.error or error

    @property
    def acknowledged(self) -> int:
        """The number of rows whose futures have succeeded."""
        return sum(future.done() and future.exception(0) is None for _, future in self._sent)

    def check(self, bootstrap_servers: str) -> RowCheck:
        """Compare what is read with what was sent, and each row's position with its future.

        Raises TimeoutError if a future is not done in time, and AssertionError if it names a
        position at which the row is not.
        """
        partitions = read_numbers(bootstrap_servers, self.topic)
        for number, future in self._sent:
            if future.exception(_FUTURE_SECONDS) is not None:
                continue
            metadata = future.result(0)
            # The topic contains only these rows, so the nth row of a partition has offset n.
            if metadata.offset >= 0:
                found = int(partitions[metadata.partition][metadata.offset])
                if found != number:
                    raise AssertionError(
                        f"{metadata} was returned for row {number}, but row {found} is there"
                    )
        return check_runs(partitions, self._rows)
