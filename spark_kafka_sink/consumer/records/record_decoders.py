"""The decoders of a consumer, which answers of all its partitions use one after the other.

A decoder's memory is large, and to touch new memory costs about as much as to decode into it. A
`FetchedRecords` takes a decoder when its first record is wanted, has it to itself until it is
exhausted or closed, and then returns it for the next one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.model import DEFAULT_MAX_UNCOMPRESSED_BYTES
from spark_kafka_sink.record.reading.record_decoder import (
    DEFAULT_MAX_ROWS,
    RecordDecoder,
    memory_limit,
)

if TYPE_CHECKING:
    from spark_kafka_sink.model import TopicPartition

#: The kernel takes as long for any few records as `record.decode` for about so many.
DEFAULT_FEW_RECORDS: Final = 10
#: More decoders than this are not kept for later use.
_MOST_IDLE: Final = 4


class RecordDecoders:
    """The idle decoders of one consumer, and how they decode; not thread-safe.

    `check_crcs` is the setting check.crcs. A batch that decompresses to more than
    `max_uncompressed_batch_bytes` is refused. At most `max_rows` rows are decoded at once. Answers
    with at most `few_records` need no decoder to become objects: see `few_records`.
    """

    def __init__(
        self,
        *,
        check_crcs: bool = True,
        max_uncompressed_batch_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
        max_rows: int = DEFAULT_MAX_ROWS,
        few_records: int = DEFAULT_FEW_RECORDS,
    ) -> None:
        self._check_crcs = check_crcs
        self.max_uncompressed_batch_bytes = max_uncompressed_batch_bytes
        #: What the records of a poll may take in memory, in bytes.
        self.poll_bytes = memory_limit(max_uncompressed_batch_bytes)
        self._max_rows = max_rows
        self.few_records = few_records
        #: A full deque forgets its oldest item.
        self._idle: deque[tuple[Any, RecordDecoder]] = deque(maxlen=_MOST_IDLE)

    def take(self, schema: Any, topic_partition: TopicPartition) -> RecordDecoder:
        """Return a decoder for a partition, in use nowhere else; raise SchemaError as it does."""
        for entry in self._idle:
            if entry[0] is schema or entry[0].equals(schema, check_metadata=True):
                self._idle.remove(entry)
                entry[1].assign(*topic_partition)
                return entry[1]
        return RecordDecoder(
            schema,
            *topic_partition,
            check_crcs=self._check_crcs,
            max_rows=self._max_rows,
            max_uncompressed_bytes=self.max_uncompressed_batch_bytes,
        )

    def give_back(self, schema: Any, decoder: RecordDecoder) -> None:
        """Keep a decoder for later, of which nothing is left to flush."""
        self._idle.append((schema, decoder))
