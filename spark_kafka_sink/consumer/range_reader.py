"""Reading a range of one partition, for Spark's tasks and for `read_arrow`.

The reader's thread asks `RangeFetch` what to do, and the client's thread does it. As soon as the
position after an answer is known, the next Fetch is sent, and then the answer is decoded. So at
most two answers are held: the one being decoded, and the next. A consumer that is slow holds back
the Fetch after that.
"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from spark_kafka_sink.consumer.fetch.range_fetch import (
    Batches,
    DataLoss,
    Done,
    LookUpBounds,
    Lose,
    PartitionRange,
    RangeFetch,
    Refresh,
    SendFetch,
    Wait,
)
from spark_kafka_sink.errors import (
    DataLossError,
    DecodeError,
    IllegalStateError,
    KafkaError,
    NetworkError,
)
from spark_kafka_sink.network.connection_waits import UnreachedError
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.record.arrow.record_decoder import BatchIndex, RecordDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from spark_kafka_sink.consumer.consumer_client import ConsumerClient, FetchAnswer
    from spark_kafka_sink.consumer.fetch.range_fetch import PartitionView, Rows, Step
    from spark_kafka_sink.protocol.messages.fetch import PartitionData

__all__ = ["DataLoss", "PartitionRange", "read_range"]

T = TypeVar("T")

#: Seconds of no progress after which a read fails; see `read_range`.
DEFAULT_POLL_TIMEOUT: Final = 120.0
#: Seconds by which the answer of the client's own thread may be late, on a busy machine.
_ANSWER_TIMEOUT: Final = 1.0


def read_range(
    client: ConsumerClient,
    partition_range: PartitionRange,
    schema: pa.Schema,
    *,
    fail_on_data_loss: bool = True,
    on_data_loss: Callable[[DataLoss], None] = lambda _: None,
    poll_timeout: float = DEFAULT_POLL_TIMEOUT,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in the columns of `schema`; nothing is read before the first.

    Offsets that are no longer in the log are an error, or with `fail_on_data_loss=False` are passed
    to `on_data_loss` and skipped. The generator may be closed at any time; the client remains
    usable, also by several readers at once.

    Raises SchemaError for a column that records do not have, DataLossError, CorruptRecordError,
    BrokerError if the topic cannot be read, and KafkaTimeoutError, which says what was last seen,
    after `poll_timeout` seconds without progress.
    """
    decoder = RecordDecoder(
        schema,
        partition_range.topic,
        partition_range.partition,
        check_crcs=client.config.check_crcs,
        max_uncompressed_bytes=client.config.max_uncompressed_batch_bytes,
    )
    reader = _RangeReader(
        client,
        partition_range,
        decoder,
        on_data_loss=_raise if fail_on_data_loss else on_data_loss,
        poll_timeout=poll_timeout,
    )
    return reader.read()


def _raise(loss: DataLoss) -> None:
    partition = f"{loss.topic}-{loss.partition}"
    raise DataLossError(
        f"{partition}: offset {loss.wanted} cannot be read: {loss.reason}. {loss.lost} offsets are "
        "lost. Read from an offset that there is, or accept the loss (failOnDataLoss=false in "
        "Spark)",
        topic=loss.topic,
        partition=loss.partition,
        wanted=loss.wanted,
        available=loss.available,
        lost=loss.lost,
    )


class _Pending(NamedTuple):
    """A Fetch that was sent."""

    fetch: SendFetch
    answer: Future[FetchAnswer]


class _Fetched(NamedTuple):
    """An answer with records of the range."""

    data: PartitionData
    batches: BatchIndex
    rows: Rows


class _RangeReader:
    """One reading of a range."""

    def __init__(
        self,
        client: ConsumerClient,
        partition_range: PartitionRange,
        decoder: RecordDecoder,
        *,
        on_data_loss: Callable[[DataLoss], None],
        poll_timeout: float,
    ) -> None:
        self._client = client
        self._topic_partition = partition_range.topic_partition
        self._decoder = decoder
        self._on_data_loss = on_data_loss
        config = client.config
        self._is_committed = config.is_read_committed
        self._state = RangeFetch(
            partition_range,
            is_committed=self._is_committed,
            backoff=ExponentialBackoff(
                config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
            ),
            timeout=poll_timeout,
            replica_max_age=config.metadata_max_age_ms / 1000,
            now=client.clock(),
        )
        self._pending: _Pending | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        self._state.resume(self._client.clock())
        try:
            while (fetched := self._next()) is not None:
                self._send_ahead()
                yield from self._decode(fetched)
                # The answer must not be held while the reader waits for the next one.
                del fetched
                self._state.resume(self._client.clock())
            rest = self._decoder.flush()
            if rest is not None:
                yield rest
        finally:
            # The client reads the answer, and drops it.
            if self._pending is not None:
                self._pending.answer.cancel()

    def _decode(self, fetched: _Fetched) -> Iterator[pa.RecordBatch]:
        aborted = fetched.data.aborted_transactions if self._is_committed else None
        return self._decoder.decode(
            _records(fetched.data),
            fetched.batches,
            start=fetched.rows.start,
            end=fetched.rows.end,
            aborted=[
                (transaction.producer_id, transaction.first_offset) for transaction in aborted or ()
            ],
        )

    # --- steps

    def _view(self) -> PartitionView:
        return self._client.fetches.view(self._topic_partition)

    def _send_ahead(self) -> None:
        # An error, or a step of another kind, is found again after the answer was decoded.
        with suppress(KafkaError):
            if self._state.may_fetch(self._view(), self._client.clock()):
                self._send(self._state.step(self._view(), self._client.clock()))

    def _send(self, step: Step) -> None:
        if isinstance(step, SendFetch):
            call = self._client.fetches.fetch(self._topic_partition, step)
            self._pending = _Pending(step, self._client.submit(call))

    def _next(self) -> _Fetched | None:
        """Do what is needed until an answer has records; return None at the end of the range."""
        while True:
            if self._pending is not None:
                pending, self._pending = self._pending, None
                fetched = self._receive(pending)
                if fetched is not None:
                    return fetched
                continue
            step = self._state.step(self._view(), self._client.clock())
            match step:
                case Done():
                    return None
                case SendFetch():
                    self._send(step)
                case Lose(loss):
                    self._on_data_loss(loss)
                case Wait(until):
                    threading.Event().wait(max(until - self._client.clock(), 0))
                case Refresh():
                    self._refresh()
                case LookUpBounds():
                    self._look_up_bounds(step)

    def _refresh(self) -> None:
        # It ends before the wait for it, since its own error has the cause.
        call = self._client.fetches.refresh(self._topic_partition, self._state.deadline)
        try:
            self._wait(self._client.submit(call), "Metadata")
        except (NetworkError, DecodeError) as error:
            self._state.failed(error, self._client.clock())
        else:
            self._state.refreshed(self._view(), self._client.clock())

    def _look_up_bounds(self, step: LookUpBounds) -> None:
        call = self._client.fetches.look_up_bounds(self._topic_partition, step)
        try:
            bounds = self._wait(self._client.submit(call), f"ListOffsets at {step.node}")
        except KafkaError as error:
            if not (error.retriable or isinstance(error, DecodeError)):
                raise
            self._state.failed(error, self._client.clock(), leader_epoch=step.leader_epoch)
        else:
            self._state.bounds_found(bounds, self._client.clock())

    def _receive(self, pending: _Pending) -> _Fetched | None:
        fetch = pending.fetch
        what = f"Fetch from offset {fetch.offset} at {fetch.node}"
        try:
            data, throttle = self._wait(pending.answer, what)
        except UnreachedError:
            raise
        except (NetworkError, DecodeError) as error:
            self._state.failed(error, self._client.clock(), leader_epoch=fetch.leader_epoch)
            return None
        index = None
        if data is not None and not data.error_code and len(records := _records(data)):
            index = self._decoder.index(records, fetch.offset)
        batches = None
        if index is not None:
            batches = Batches(index.batch_count, index.next_offset, index.leader_epoch)
        rows = self._state.answered(
            fetch, data, throttle=throttle, batches=batches, now=self._client.clock()
        )
        if rows is None or data is None or index is None:
            return None
        return _Fetched(data, index, rows)

    def _wait(self, call: Future[T], what: str) -> T:
        """Wait for a call until the deadline; raise NetworkError if there is no result by then."""
        try:
            left = max(self._state.deadline - self._client.clock(), 0)
            # A thread cannot wait for longer than that, which is almost three centuries.
            done, _ = wait([call], min(left, threading.TIMEOUT_MAX))
            if not done:
                # The time that the process was paused must not count.
                done, _ = wait([call], _ANSWER_TIMEOUT)
            if not done:
                raise NetworkError(f"no answer yet to {what}")
            return call.result()
        except CancelledError:
            raise IllegalStateError(
                f"{self._topic_partition}: the consumer client was closed while it was reading"
            ) from None
        finally:
            call.cancel()


def _records(data: PartitionData) -> Any:
    """Return the batches of an answer: of a response that was received, a single buffer."""
    return b"" if data.records is None else data.records
