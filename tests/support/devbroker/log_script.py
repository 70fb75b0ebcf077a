"""Operations on a partition's log, as data, so that they can be applied to several logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hypothesis import strategies as st

from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.log.files import OpenFiles
from spark_kafka_sink.devbroker.log.log_directory import FileLogDirectory
from spark_kafka_sink.devbroker.log.log_loader import load_log
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
from spark_kafka_sink.record.decode import decode_record_batch
from spark_kafka_sink.record.record_batch import decode_header, split_record_batches
from tests.support.record.decode_budgets import ample_budget
from tests.support.record.plain_batches import PlainRecord, plain_batch

if TYPE_CHECKING:
    from pathlib import Path

_TRANSACTIONAL = 0x10
#: With these sizes, a log rolls a segment and adds an index entry after a few batches.
SMALL = TopicConfig(segment_bytes=700, index_interval_bytes=100)


DAY_MS = 24 * 3_600_000


class Step(NamedTuple):
    """One batch, or the end of a transaction."""

    #: 0 means no producer id; even ids write outside of transactions, odd ids in transactions.
    producer_id: int
    #: 0 ends the producer's transaction.
    count: int
    timestamp: int
    committed: bool


STEPS = st.lists(
    st.builds(
        Step,
        producer_id=st.integers(0, 4),
        count=st.integers(0, 3),
        timestamp=st.integers(0, 50),
        committed=st.booleans(),
    ),
    max_size=30,
)


class LogWriter:
    """Applies steps to a log and tracks the producers' sequence numbers."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.sequences: dict[int, int] = {}

    def do(self, steps: list[Step]) -> None:
        """Apply the steps in order."""
        for step in steps:
            if step.producer_id == 0:
                self.append(plain_batch(self._records(step)))
            elif step.count == 0:
                self._end(step)
            else:
                self._append_of_producer(step)

    def append(self, batch: bytes) -> None:
        """Append a batch unchanged."""
        memory = memoryview(bytearray(batch))
        self.log.append(memory, decode_header(memory))

    def _records(self, step: Step) -> list[PlainRecord]:
        return [
            PlainRecord(timestamp=step.timestamp + i, value=b"v" * 20)
            for i in range(step.count or 1)
        ]

    def _append_of_producer(self, step: Step) -> None:
        sequence = self.sequences.get(step.producer_id, 0)
        transactional = bool(step.producer_id % 2)
        if transactional:
            self.log.producer_state.start_verification(
                step.producer_id, 0, sequence, supports_epoch_bump=False, now_ms=0
            )
        self.append(
            plain_batch(
                self._records(step),
                producer_id=step.producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                attributes=_TRANSACTIONAL if transactional else 0,
            )
        )
        self.sequences[step.producer_id] = sequence + step.count

    def _end(self, step: Step) -> None:
        if step.producer_id % 2:
            self.log.append_marker(
                TransactionMarker(step.producer_id, 0, step.committed, 0, 0, step.timestamp)
            )


def open_log(
    path: Path,
    *,
    config: TopicConfig = SMALL,
    clean: bool = True,
    recovery_point: int = 0,
    log_start_offset: int = 0,
) -> PartitionLog:
    """Open the log in a directory, or create it."""
    directory = FileLogDirectory(path, OpenFiles())
    loaded = load_log(
        directory,
        config,
        log_start_offset=log_start_offset,
        recovery_point=recovery_point,
        clean=clean,
        now_ms=0,
        producer_id_expiration_ms=DAY_MS,
    )
    return PartitionLog(config=config, directory=directory, loaded=loaded)


def records_of(log: PartitionLog) -> list[tuple[int, int, bytes | None]]:
    """Read a log from its start, fetch by fetch, as a consumer does."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        fetched = log.read(offset, max_bytes=300, min_one_batch=True)
        for piece in fetched.batches:
            for batch in split_record_batches(piece):
                found += [
                    (r.offset, r.timestamp, r.value) for r in decode_record_batch(batch).records
                ]
        assert fetched.end_offset > offset
        offset = fetched.end_offset
    return found


def picture(log: PartitionLog) -> dict[str, object]:
    """Return everything that can be queried from a log, so that two logs can be compared."""
    end = log.log_end_offset
    return {
        "offsets": (log.log_start_offset, end, log.last_stable_offset, log.size_in_bytes),
        "records": records_of(log),
        "segments": [segment.base_offset for segment in log.segments],
        "times": [
            log.offset_for_timestamp(timestamp, ample_budget()) for timestamp in range(0, 60, 3)
        ],
        "latest": log.offset_of_max_timestamp(ample_budget()),
        "aborted": [log.aborted_transactions(offset, end) for offset in range(end)],
        "committed": [
            log.read(offset, max_bytes=250, min_one_batch=True, committed=True).end_offset
            for offset in range(log.log_start_offset, end + 1)
        ],
        "epochs": [log.end_offset_for_epoch(epoch) for epoch in range(3)],
    }


def producers_of(log: PartitionLog) -> list[tuple[object, ...]]:
    """Return what a snapshot stores about a log's producers."""
    return sorted(
        (
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )
        for entry in log.producer_state.entries()
    )
