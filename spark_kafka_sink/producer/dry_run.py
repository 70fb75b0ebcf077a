"""A producer that does everything except sending: its batches end where a request would begin.

Rows are placed, written into batches, compressed, split and queued as always, with the cluster's
metadata and a connection to each leader. A batch that its topic would refuse as too large is split
in two, as after a broker's answer; a record that is too large by itself is kept as an error. All
others count as acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kafka_sink.producer.batch.error_rules import delivery_error
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.producer.sending.sender import Sender
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.errors import DeliveryError
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.network.connection.broker_connection import BrokerConnection
    from spark_kafka_sink.network.metadata import MetadataSnapshot
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
    from spark_kafka_sink.record.columns import RecordColumns
    from spark_kafka_sink.record.refused_rows import RefusedRows

#: The most that a dry run waits for metadata, in ms: a user is waiting for it.
_MAX_BLOCK_MS = 15_000


class TooLargeRecord(NamedTuple):
    """A record that its topic does not accept, and the error that would end a write."""

    topic_partition: TopicPartition
    #: The number of its input row; None if it is not known.
    row: int | None
    #: The size of the batch that has only this record.
    bytes: int
    error: DeliveryError


@dataclass(slots=True)
class BatchTotals:
    """The batches that would have been accepted; sizes are without the headers of batches."""

    batches: int = 0
    uncompressed_bytes: int = 0
    compressed_bytes: int = 0

    def add(self, batch: ProducerBatch) -> None:
        """Count a batch."""
        self.batches += 1
        self.uncompressed_bytes += batch.uncompressed_bytes
        self.compressed_bytes += len(batch.payload)


def dry_run_config(config: ProducerConfig) -> ProducerConfig:
    """Return the settings of a producer that changes nothing in the cluster."""
    return replace(
        config,
        # Either would ask for a producer id.
        enable_idempotence=False,
        transactional_id=None,
        allow_auto_create_topics=False,
        # They would report records that were not sent.
        metric_reporters=(),
        max_block_ms=min(config.max_block_ms, _MAX_BLOCK_MS),
    )


class DryRunProducer(KafkaProducer):
    """A `KafkaProducer` for `append` whose records go nowhere."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        limits_of: Callable[[Sequence[str]], dict[str, int]],
        observe: Callable[[RecordColumns, int, RefusedRows | None], None],
    ) -> None:
        """Start with the settings of `dry_run_config`.

        `limits_of` returns the max.message.bytes of topics, as far as they are known; `observe` is
        called with columns that were appended, the number of their first row, and refused rows.
        """
        self._limits_of = limits_of
        self._observe = observe
        #: The max.message.bytes of the topics that have rows, as far as they are known.
        self.limits: dict[str, int] = {}
        #: The topics of all rows.
        self.topics: dict[str, None] = {}
        #: The batches of all rows.
        self.totals = BatchTotals()
        self._too_large: list[TooLargeRecord] = []
        super().__init__(config, lingers=False)

    def append_good(
        self, columns: RecordColumns, *, first_row: int, refused: RefusedRows | None = None
    ) -> None:
        """Write rows as a `KafkaProducer` does, and observe them."""
        new = [topic for topic in columns.topics if topic not in self.topics]
        if new:
            self.limits.update(self._limits_of(new))
        super().append_good(columns, first_row=first_row, refused=refused)
        # Now they are known to exist.
        self.topics.update(dict.fromkeys(new))
        self._observe(columns, first_row, refused)

    def take_too_large(self) -> list[TooLargeRecord]:
        """Return the records since the last call that their topics do not accept.

        Use it after `flush`; these records count as acknowledged nevertheless.
        """
        taken, self._too_large = self._too_large, []
        return taken

    def _make_sender(self) -> Callable[..., Sender]:
        return partial(_DryRunSender, limits=self.limits, totals=self.totals, refuse=self._refuse)

    def _refuse(self, record: TooLargeRecord) -> None:
        self._too_large.append(record)


class _DryRunSender(Sender):
    """A `Sender` that answers its requests itself."""

    def __init__(
        self,
        *arguments: Any,
        limits: dict[str, int],
        totals: BatchTotals,
        refuse: Callable[[TooLargeRecord], None],
        **named: Any,
    ) -> None:
        self._limits = limits
        self._totals = totals
        self._refuse = refuse
        super().__init__(*arguments, **named)

    def _send_produce_request(
        self,
        connection: BrokerConnection,  # noqa: ARG002  nothing is sent
        snapshot: MetadataSnapshot,  # noqa: ARG002
        batches: list[ProducerBatch],
    ) -> None:
        for batch in batches:
            limit = self._limits.get(batch.topic_partition.topic)
            if limit is not None and batch.size_bytes > limit:
                if batch.record_count > 1:
                    self.completion.on_too_large(batch, self._clock())
                    continue
                self._refuse(_too_large(batch, limit))
            else:
                self._totals.add(batch)
            self.completion.on_sent_without_response([batch])
        self.wakeup()


def _too_large(batch: ProducerBatch, limit: int) -> TooLargeRecord:
    cause = broker_error(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"max.message.bytes of topic {batch.topic_partition.topic!r} is {limit}, and the batch of "
        f"this record has {batch.size_bytes} bytes",
    )
    return TooLargeRecord(
        batch.topic_partition,
        batch.first_record_row,
        batch.size_bytes,
        delivery_error(batch, cause),
    )
