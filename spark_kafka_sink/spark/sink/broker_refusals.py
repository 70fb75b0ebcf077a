"""The rows that a broker refused, for the dead letters of a task.

Nothing else has these rows any more: their columns are read from the records that were sent. That
creates objects for each of them, as the broker's answer did, which names them one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spark_kafka_sink.errors import RecordError, RecordTooLargeError
from spark_kafka_sink.model import NO_PRODUCER_ID_AND_EPOCH, NO_SEQUENCE
from spark_kafka_sink.producer.batch.error_rules import DEFAULT_ADVICE, advice_of
from spark_kafka_sink.producer.batch.producer_batch import empty_header
from spark_kafka_sink.producer.batch.set_aside import TOO_LARGE
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.arrow.record_columns import bytes_column
from spark_kafka_sink.record.columns import RecordColumns, constant_topic, null_partitions
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.decode import decode_record_batch
from spark_kafka_sink.record.record_batch import write_header
from spark_kafka_sink.record.refused_rows import Refusal, RowErrorKind
from spark_kafka_sink.spark.sink.letter_columns import BadBatch

if TYPE_CHECKING:
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.producer.batch.set_aside import SetAsideRows
    from spark_kafka_sink.record.decode import Record
    from spark_kafka_sink.record.default_record import PayloadPart

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
#: What brokers call that in their messages; those of other errors do not have it.
_TIMESTAMP: Final = "timestamp"
_ADVICE_FOR_SEGMENT: Final = (
    "The record is larger than the topic's segment.bytes: raise it, or write smaller records"
)


def refused_batch(refused: SetAsideRows) -> BadBatch:
    """Return the rows that a broker refused, as they were sent."""
    records = _records(refused.records)
    headers = [[header._asdict() for header in record.headers] for record in records]
    batch: Any = pa.record_batch(
        {
            "key": pa.array([record.key for record in records], pa.large_binary()),
            "value": pa.array([record.value for record in records], pa.large_binary()),
            "headers": pa.array(headers, _HEADERS),
        }
    )
    topic = refused.topic_partition.topic
    return BadBatch(
        refusals=_refusals(refused),
        first_row=int(refused.rows[0]),
        batch=batch,
        columns=RecordColumns(
            num_rows=len(records),
            key=bytes_column(batch.column("key")),
            value=bytes_column(batch.column("value")),
            topics=(topic,),
            topic_index=constant_topic(len(records)),
            partition=null_partitions(len(records)),
            timestamp=np.array([record.timestamp for record in records], np.int64),
        ),
        numbers=refused.rows,
        topic=topic,
    )


def _records(part: PayloadPart) -> list[Record]:
    header = empty_header()
    write_header(
        header,
        part.payload,
        compression=CompressionType.NONE,
        base_timestamp=part.base_timestamp,
        max_timestamp=part.max_timestamp,
        producer_id=NO_PRODUCER_ID_AND_EPOCH.producer_id,
        producer_epoch=NO_PRODUCER_ID_AND_EPOCH.epoch,
        base_sequence=NO_SEQUENCE,
        record_count=part.record_count,
    )
    return decode_record_batch(bytes(header) + part.payload).records


def _refusals(refused: SetAsideRows) -> list[Refusal]:
    """Return the rows by what is wrong with them."""
    by_message: dict[str, list[int]] = {}
    for message, row in zip(refused.messages, refused.rows.tolist(), strict=True):
        by_message.setdefault(message, []).append(row)
    return [
        Refusal(*_reason(refused.code, message, refused.topic_partition), np.array(rows, np.int64))
        for message, rows in by_message.items()
    ]


def _reason(
    code: int, message: str, topic_partition: TopicPartition
) -> tuple[RowErrorKind, RecordError]:
    kind, error, advice = RowErrorKind.BROKER, RecordError, advice_of(code) or DEFAULT_ADVICE
    if code in TOO_LARGE:
        kind, error = RowErrorKind.SIZE, RecordTooLargeError
        if code == ErrorCode.RECORD_LIST_TOO_LARGE:
            advice = _ADVICE_FOR_SEGMENT
    elif code == ErrorCode.INVALID_TIMESTAMP and _TIMESTAMP in message.lower():
        kind = RowErrorKind.TIMESTAMP
    elif code == ErrorCode.INVALID_TIMESTAMP:
        # A batch has one code, even if other records of it have wrong timestamps.
        advice = advice_of(ErrorCode.INVALID_RECORD) or DEFAULT_ADVICE
    topic, partition = topic_partition
    return kind, error(
        f"the broker refused it: {message}",
        row=None,
        topic=topic,
        partition=partition,
        advice=advice,
    )
