"""The staging of single records (Java's `doSend`), except for those that `send` stages itself.

`KafkaProducer.send` stages small records of plain bytes without a further call, which would cost as
much as everything else. Their topics are the `plain_topics`.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from spark_kafka_sink.errors import (
    IllegalStateError,
    KafkaError,
    ProducerClosedError,
    SchemaRegistryError,
    SerializationError,
)
from spark_kafka_sink.producer.batch.produce_result import call_back
from spark_kafka_sink.producer.records.interceptors import ProducerInterceptors, ProducerRecord
from spark_kafka_sink.producer.records.record_futures import (
    FutureOfFullRecord,
    FutureRecordMetadata,
    deliver,
    deliver_to_all,
    failed_metadata,
)
from spark_kafka_sink.producer.records.record_preparation import check_callback, check_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.model import RecordMetadata
    from spark_kafka_sink.producer.producer_core import ProducerCore
    from spark_kafka_sink.producer.records.record_preparation import (
        PreparedRecord,
        RecordPreparation,
    )
    from spark_kafka_sink.producer.threaded_core import ThreadedCore

#: Staged records are not part of buffer.memory, so they must stay small. Keys and values up to this
#: size are not weighed, because weighing costs as much as staging: a full chunk holds at most 2 MB
#: of them.
MAX_LIGHT_BYTES = 512
#: Larger records are written into a batch at once.
MAX_STAGED_BYTES = 4_096
#: What is called with the future of a record that has ended.
Outcome: TypeAlias = "Callable[[FutureRecordMetadata], object]"


def _unchanged(callback: Outcome | None) -> Outcome | None:
    return callback


class RecordStaging:
    """The steps by which a single record is staged, for callers that wait between them or do not.

    `begin` comes first, and then `stage` or `refuse`.
    """

    def __init__(
        self,
        core: ProducerCore,
        *,
        preparation: RecordPreparation,
        interceptors: ProducerInterceptors,
    ) -> None:
        """Create it.

        Futures refer to it, and the sender to them. So it must not refer to the producer, which
        would never be garbage-collected.
        """
        self._parts = core
        self._preparation = preparation
        self._interceptors = interceptors
        self._process_id = os.getpid()
        #: Whether the producer is closed.
        self.is_closed = False
        #: Whether a record of plain bytes can be staged without any other work.
        self._is_plain = not (
            interceptors
            or core.is_transactional
            or not preparation.leaves_bytes_unchanged
            or preparation.partitions_each_record
        )
        #: The topics whose plain records may be staged at once; empty after the producer has ended.
        self.plain_topics: set[str] = set()
        self._gatherer = core.gatherer
        self._staged = core.gatherer.staged

    def begin(
        self,
        record: ProducerRecord,
        on_delivery: Callable[[RecordMetadata | None, Exception | None], object] | None,
        make_callback: Callable[[Outcome | None], Outcome | None] = _unchanged,
    ) -> tuple[ProducerRecord, FutureOfFullRecord]:
        """Return a record as the interceptors leave it, and its future.

        `make_callback` receives the function to call with the future when the record has ended,
        None for none, and returns the one to call instead. Raises the error that keeps records from
        being sent now, and TypeError.
        """
        self.check_usable()
        check_callback(on_delivery)
        self._parts.fail_if_not_ready_for_send()
        if self._interceptors:
            record = self._interceptors.on_send(record)
        future = FutureOfFullRecord()
        future.chunk = None
        future.error = None
        future.partition = record.partition
        future.callback = make_callback(self._callback(record.topic, on_delivery))
        return record, future

    def refuse(
        self, record: ProducerRecord, future: FutureOfFullRecord, error: BaseException
    ) -> None:
        """End a record that was not staged: raise its error, or fail its future with it."""
        if not isinstance(error, KafkaError) or isinstance(
            error,
            IllegalStateError | ProducerClosedError | SchemaRegistryError | SerializationError,
        ):
            # The interceptors have seen the record, so they are notified of its end (Java's
            # onSendError).
            metadata = failed_metadata(record.topic, future)
            self._interceptors.on_acknowledgement(metadata, error, record.headers)
            raise error
        self._parts.note_failed_send(error)
        future.headers = record.headers
        future.fail(error)
        if future.callback is not None:
            self._parts.call_back(partial(call_back, future.callback, future))

    def stage(
        self, record: ProducerRecord, future: FutureOfFullRecord, prepared: PreparedRecord
    ) -> bool:
        """Stage a record; return whether the staged records must be written now."""
        if self._is_plain:
            self.plain_topics.add(record.topic)
            if self._parts.has_ended:
                self.plain_topics.clear()
        future.headers = prepared.headers
        future.partition = prepared.partition
        future.timestamp = prepared.timestamp
        self._staged.append(future, record.topic, prepared.key, prepared.value)
        if self._gatherer.is_full or prepared.max_bytes > MAX_LIGHT_BYTES:
            # Records that are staged beyond a full chunk are always weighed, however small.
            self._staged.weigh(prepared.max_bytes)
        return self._gatherer.is_full or prepared.max_bytes > MAX_STAGED_BYTES

    @property
    def is_forked(self) -> bool:
        """Whether this is another process than the producer's."""
        return os.getpid() != self._process_id

    def check_usable(self) -> None:
        """Raise ProducerClosedError after `close`, and in a forked process."""
        self.check_process()
        if self.is_closed:
            raise ProducerClosedError("the producer is closed")

    def check_process(self) -> None:
        """Raise ProducerClosedError in a forked process."""
        if self.is_forked:
            raise ProducerClosedError(
                "this producer was created by another process: create a new one after the fork"
            )

    def _callback(
        self,
        topic: str,
        on_delivery: Callable[[RecordMetadata | None, Exception | None], object] | None,
    ) -> Callable[[FutureRecordMetadata], object] | None:
        if self._interceptors:
            acknowledge = self._interceptors.on_acknowledgement
            return partial(deliver_to_all, acknowledge, on_delivery, topic)
        return None if on_delivery is None else partial(deliver, on_delivery)


class ThreadedStaging(RecordStaging):
    """The staging of a producer with a network thread; a full chunk is written at once.

    Futures wait for their records here.
    """

    def __init__(
        self,
        core: ThreadedCore,
        *,
        preparation: RecordPreparation,
        interceptors: ProducerInterceptors,
    ) -> None:
        super().__init__(core, preparation=preparation, interceptors=interceptors)
        self._core = core
        #: Returns monotonic time in seconds, for the futures.
        self.monotonic = core.clock

    def send_heavy(self, topic: str, value: bytes, key: bytes | None) -> FutureRecordMetadata:
        """Send a record that is plain except that it is not small."""
        size = len(value) + len(key or b"")
        if size > MAX_STAGED_BYTES:
            return self.send(ProducerRecord(topic, value, key, (), None, None), None)
        future = FutureRecordMetadata()
        future.producer = self
        future.chunk = None
        future.error = None
        self._staged.append(future, topic, key, value)
        self._staged.weigh(size)
        if self._gatherer.is_full:
            self.write_full_chunk(future)
        else:
            self._gatherer.note_staged()
        return future

    def send(
        self,
        record: ProducerRecord,
        on_delivery: Callable[[RecordMetadata | None, Exception | None], object] | None,
    ) -> FutureRecordMetadata:
        """Send a record with any headers, partition, timestamp and callback (Java's `doSend`)."""
        record, future = self.begin(record, on_delivery)
        future.producer = self
        give_up_at = self._core.give_up_at()
        try:
            check_place(record.topic, record.partition)
            self._core.await_partition(record.topic, record.partition, give_up_at=give_up_at)
            if self._gatherer.is_full and self._core.is_network_thread:
                self._gatherer.check_may_stage()
            prepared = self._preparation.prepare(record)
        except Exception as error:  # noqa: BLE001  raised again, or by the future
            self.refuse(record, future, error)
            return future
        if self.stage(record, future, prepared):
            self.write_full_chunk(future, give_up_at)
        else:
            self._gatherer.note_staged()
        return future

    def write_full_chunk(
        self, future: FutureRecordMetadata, give_up_at: float | None = None
    ) -> None:
        """Write all staged records; `future` belongs to the record that filled the chunk."""
        if not self._core.is_network_thread:
            if give_up_at is None:
                give_up_at = self._core.give_up_at()
            self._gatherer.write_for(future, give_up_at)
            return
        # A callback may send, but the network thread must not wait for memory that only it can
        # free.
        self._gatherer.write_without_waiting()
        if self._gatherer.is_full:
            # From now on every record must pass `check_may_stage` before it is staged.
            self.plain_topics.clear()
        self._gatherer.note_staged()

    # --- what futures use

    def check_may_wait(self) -> None:
        """Raise ProducerClosedError if a wait could never end, or after a fork."""
        self.check_process()
        if self._core.is_network_thread:
            raise ProducerClosedError(
                "delivery callbacks and interceptors run on the producer's network thread and must "
                "not wait for the producer: make this call on another thread"
            )
        if self._gatherer.is_writing:
            raise ProducerClosedError(
                "a function called while records are being written, such as a partitioner, must "
                "not wait for the producer"
            )

    def write_staged(self, give_up_at: float | None, unless: Callable[[], bool]) -> None:
        """Write staged records into batches, as many as possible by `give_up_at`.

        Once `unless()` is true, nothing waits any longer. Raises KafkaTimeoutError if nothing could
        be written.
        """
        self.check_may_wait()
        self._gatherer.write_staged(give_up_at, unless)
