"""The metadata log of a cluster on disk: `metadata.log` in its data directory.

It takes the place of the logs of Kafka's controllers (`__cluster_metadata-0`). Like them it
consists of record batches, here with records in JSON (`record_codec`). A batch has what one event
of the controller has appended, so it is there as a whole or not at all; its leader epoch is the
epoch of the controller. It is flushed before the controller responds.

The end of the process, or of the machine, can interrupt the last append. It was not acknowledged
then, and is removed. Damage before the last batch is reported instead: to go on without what
follows would remove topics, and then their records.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import refused_if_disk_fails
from spark_kafka_sink.devbroker.log.batch_builder import build_batch
from spark_kafka_sink.devbroker.log.files import AppendFile
from spark_kafka_sink.devbroker.metadata.quorum import StoredRecords
from spark_kafka_sink.devbroker.metadata.record_codec import decode_record, encode_record
from spark_kafka_sink.errors import ConfigError, CorruptRecordError
from spark_kafka_sink.model import NO_PRODUCER_ID, NO_SEQUENCE
from spark_kafka_sink.record.decode import Record, decode_record_batch
from spark_kafka_sink.record.record_batch import (
    RECORD_BATCH_OVERHEAD,
    RecordBatchHeader,
    decode_header,
    validate_record_batch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spark_kafka_sink.devbroker.log.files import OpenFiles
    from spark_kafka_sink.devbroker.metadata.records import MetadataRecord

logger = logging.getLogger(__name__)


class MetadataLog:
    """The stored metadata log, used by one cluster at a time."""

    def __init__(self, path: Path, open_files: OpenFiles) -> None:
        """Open the file, or create it. Raises OSError."""
        self._file = AppendFile(path, open_files)
        self._end_offset = 0

    def load(self) -> list[StoredRecords]:
        """Return what was appended, in its order.

        An interrupted append at the end is removed. Raises OSError, and ConfigError if the file is
        damaged.
        """
        file = self._file
        content = memoryview(file.read(0, file.size))
        loaded: list[StoredRecords] = []
        position = 0
        self._end_offset = 0
        while position < len(content):
            try:
                stored, size = self._read(content[position:])
            except (CorruptRecordError, ValueError) as error:
                if not _is_last(content[position:]):
                    raise ConfigError(
                        f"{file.path} is damaged at byte {position}: {error}. Restore it from a "
                        "backup, or use another data directory"
                    ) from error
                logger.warning(
                    "truncating %s at byte %d: the last append was interrupted", file.path, position
                )
                file.truncate(position)
                file.flush()
                break
            loaded.append(stored)
            self._end_offset += len(stored.records)
            position += size
        return loaded

    def _read(self, content: memoryview) -> tuple[StoredRecords, int]:
        """Read the first batch; return its records and its size."""
        header = decode_header(content)
        batch = content[: header.size_in_bytes]
        validate_record_batch(batch)
        if header.base_offset != self._end_offset:
            raise CorruptRecordError(
                f"the batch has offset {header.base_offset}, not {self._end_offset}"
            )
        records = [
            decode_record(record.value or b"") for record in decode_record_batch(batch).records
        ]
        return StoredRecords(header.partition_leader_epoch, tuple(records)), header.size_in_bytes

    def append(self, epoch: int, records: Sequence[MetadataRecord]) -> None:
        """Append the records of one event, and flush them.

        Raises RefusedError with KAFKA_STORAGE_ERROR; then none of them is stored.
        """
        batch = build_batch(
            [
                Record(self._end_offset + index, 0, None, encode_record(record))
                for index, record in enumerate(records)
            ],
            base_offset=self._end_offset,
            last_offset_delta=len(records) - 1,
            attributes=0,
            base_timestamp=0,
            max_timestamp=0,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=-1,
            base_sequence=NO_SEQUENCE,
            partition_leader_epoch=epoch,
        )
        size = self._file.size
        with refused_if_disk_fails("the metadata of the cluster cannot be stored"):
            try:
                self._file.append(batch)
                self._file.flush()
            except OSError:
                with suppress(OSError):  # The next append tries again.
                    self._file.truncate(size)
                raise
        self._end_offset += len(records)


def _is_last(content: memoryview) -> bool:
    """Return whether damaged bytes can be the last batch, which may have been written in part."""
    if len(content) < RECORD_BATCH_OVERHEAD:
        return True
    try:
        header: RecordBatchHeader = decode_header(content)
    except CorruptRecordError:
        # A crash of the machine may leave zeros where the file has grown.
        return not any(content)
    return header.size_in_bytes >= len(content)
