"""The short way of a staged record that is sent alone, for a caller that waits for each record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.producer.batch.delivery_errors import interruption_error

if TYPE_CHECKING:
    from spark_kafka_sink.producer.gathering.batch_builder import BatchBuilder
    from spark_kafka_sink.producer.gathering.interfaces import SendingSide
    from spark_kafka_sink.producer.records.staged_records import StagedRecord, StagedRecords


def send_single(
    record: StagedRecord,
    partition_count: int,
    *,
    staged: StagedRecords,
    builder: BatchBuilder,
    sending: SendingSide,
    now_ms: int,
    opened_at: float,
) -> bool:
    """Send the first staged record in a batch of its own, by its queue.

    Returns False, and the record remains staged, if only `BatchBuilder.append` can write it. After
    any exception its future has ended.
    """
    filled = None
    try:
        filled = builder.fill_single(record, partition_count, now_ms=now_ms, opened_at=opened_at)
        if filled is None:
            return False
        try:
            staged.place_single(record, filled.result, filled.base_timestamp)
        except BaseException:
            builder.discard(filled)
            raise
        builder.enqueue(filled)
    except BaseException as error:
        broken = interruption_error(error)
        if filled is None or record.future.chunk is None:
            staged.withdraw(record.future, broken)
        else:
            filled.result.fail(broken)
        # Its caller got no future, so only the transaction can tell that the record is missing.
        sending.note_failed_send(broken, 1)
        sending.note_loss(broken)
        raise
    return True
