"""The records of a log as a consumer with isolation.level=read_committed would read them.

As in Java's CompletedFetch: up to the last stable offset, without the records of aborted
transactions and without markers. No consumer is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.record.decode import (
    ControlRecordType,
    decode_control_record,
    decode_record_batch,
)
from spark_kafka_sink.record.record_batch import split_record_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
    from spark_kafka_sink.record.decode import Record

_READ_BYTES = 8 * 1024 * 1024


def committed_records(log: PartitionLog) -> Iterator[Record]:
    """Yield the committed records in offset order. Raises CorruptRecordError."""
    offset = log.log_start_offset
    aborting: set[int] = set()
    while True:
        read = log.read(offset, max_bytes=_READ_BYTES, min_one_batch=True, committed=True)
        if not read.batches:
            return
        aborted = sorted(
            log.aborted_transactions(offset, read.end_offset), key=lambda txn: txn.first_offset
        )
        for data in (batch for piece in read.batches for batch in split_record_batches(piece)):
            batch = decode_record_batch(data)
            header = batch.header
            while aborted and aborted[0].first_offset <= header.last_offset:
                aborting.add(aborted.pop(0).producer_id)
            if header.is_control:
                # A removed marker leaves an empty batch, and no transaction to end.
                if batch.records and (
                    decode_control_record(batch.records[0]).type == ControlRecordType.ABORT
                ):
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                yield from (record for record in batch.records if record.offset >= offset)
        offset = read.end_offset
