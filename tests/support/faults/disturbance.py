"""A write during which something happens."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.support.producer.producing import append_all, producer_for
from tests.support.record.numbered_rows import RowCheck, check_rows, read_numbers
from tests.support.record.text_rows import numbered_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from tests.support.kafka.real_kafka import KafkaCluster

#: About as much as a quarter of 200,000 rows: the producer waits for acknowledgements while it
#: writes, and is still writing when a disturbance begins.
_BUFFER_MEMORY = 4 * 2**20
_WAIT_SECONDS = 300


def write_disturbed(
    kafka: KafkaCluster,
    topic: str,
    *,
    rows: int,
    disturbances: Sequence[Callable[[], None]],
    **settings: object,
) -> RowCheck:
    """Write numbered rows with disturbances in between; return the check of the written rows.

    With n disturbances, each one begins when another fraction 1/(n+1) of the rows has been
    appended. The write continues meanwhile, as far as the producer's buffer memory permits.
    """
    reached = [threading.Event() for _ in disturbances]

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in numbered_batches(rows):
            yield batch
            last_row = int(batch.column(0)[-1].as_py()[:10])
            for i, event in enumerate(reached):
                if last_row * (len(reached) + 1) >= rows * (i + 1):
                    event.set()

    def write() -> None:
        try:
            with producer_for(kafka, **{"buffer.memory": _BUFFER_MEMORY, **settings}) as producer:
                append_all(producer, batches(), topic=topic)
        finally:
            for event in reached:
                event.set()

    with ThreadPoolExecutor(1) as executor:
        written = executor.submit(write)
        for event, disturb in zip(reached, disturbances, strict=True):
            assert event.wait(_WAIT_SECONDS)
            disturb()
        written.result(_WAIT_SECONDS)
    return check_rows(read_numbers(kafka.bootstrap_servers, topic), rows)
