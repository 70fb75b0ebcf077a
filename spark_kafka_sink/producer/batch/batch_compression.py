"""The compression and the splitting of closed batches, on a thread that can afford the time.

A thread that writes records compresses the batches it closes, so a slow codec slows down the
writer. The network thread never compresses; it leaves that to a worker. A batch is split if it
turned out too large: before it is sent, or because a broker refused it.

Splitting and compressing take time but do not change the batch, so any thread may do both. The
parts become batches (`batches_of`) where the outcome of the original batch is decided.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from spark_kafka_sink.errors import ProducerClosedError
from spark_kafka_sink.network.daemon_thread import is_exiting
from spark_kafka_sink.producer.batch.producer_batch import KnownRows, ProducerBatch, empty_header
from spark_kafka_sink.record.compression import CompressionType, Compressor, decompress
from spark_kafka_sink.record.default_record import PayloadPart, split_payload
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_kafka_sink.record.columns import Int64Array

#: The most that the estimate falls each time a batch compresses better.
COMPRESSION_RATIO_IMPROVING_STEP: Final = 0.005
#: The least that the estimate rises each time a batch compresses worse.
COMPRESSION_RATIO_DETERIORATE_STEP: Final = 0.05
#: The estimate before the first batch.
INITIAL_RATIO: Final = 1.0
#: A closed batch may exceed batch.size by this factor (a broker's default message.max.bytes exceeds
#: our default batch.size by as much); a larger one is split before it gets a sequence number.
OVERSHOOT = 1.048
#: Our own batches never decompress to more; the limit only bounds the effect of a bug.
MAX_UNCOMPRESSED_BYTES = 2**31 - 1


class CompressionRatioEstimator:
    """Estimates of how well the records of each topic and codec compress (Kafka's class).

    A ratio is the compressed size divided by the uncompressed size, without batch headers. The
    first batch of a topic sets its estimate, with a margin. Later the estimate falls slowly when
    batches compress better than expected, and rises at once, and by the margin, when a batch
    compresses worse: a batch that is too large costs a split, one that is too small costs almost
    nothing.

    In Java the first batch, too, lowers the estimate by one step only, and a task of Spark's ended
    before its batches were full: with lz4 they reached half of batch.size on average. Here a batch
    that exceeds it is split before it is sent.

    Each producer has its own estimator, while Java has one per process. It is thread-safe.
    """

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, CompressionType], float] = {}
        self._lock = threading.Lock()

    def estimation(self, topic: str, compression: CompressionType) -> float:
        """Return the current estimate."""
        return self._ratios.get((topic, compression), INITIAL_RATIO)

    def update_estimation(
        self, topic: str, compression: CompressionType, observed_ratio: float
    ) -> float:
        """Update the estimate with the ratio of a batch, and return it."""
        with self._lock:
            ratio = self._ratios.get((topic, compression))
            if ratio is None:
                ratio = observed_ratio + COMPRESSION_RATIO_DETERIORATE_STEP
            elif observed_ratio > ratio:
                ratio = max(ratio + COMPRESSION_RATIO_DETERIORATE_STEP, observed_ratio)
            elif observed_ratio < ratio:
                ratio = max(ratio - COMPRESSION_RATIO_IMPROVING_STEP, observed_ratio)
            self._ratios[topic, compression] = ratio
            return ratio

    def set_estimation(self, topic: str, compression: CompressionType, ratio: float) -> None:
        """Set the estimate, as after splitting a batch that was too large."""
        with self._lock:
            self._ratios[topic, compression] = ratio


def split_records(
    records: memoryview, *, record_count: int, base_timestamp: int, part_count: int
) -> list[PayloadPart]:
    """Split uncompressed records into about `part_count` uncompressed parts."""
    return split_payload(
        records,
        record_count=record_count,
        base_timestamp=base_timestamp,
        max_bytes=-(-len(records) // part_count),
    )


def batches_of(batch: ProducerBatch, parts: Sequence[PayloadPart]) -> list[ProducerBatch]:
    """Create batches from the final parts of `batch`; a single part updates `batch` itself.

    The block that held its records still belongs to the original batch.
    """
    if len(parts) == 1:
        batch.payload = parts[0].payload
        batch.is_compressed = True
        return [batch]
    results = batch.result.divide([part.record_count for part in parts])
    batches = []
    rows = batch.rows
    for part, result in zip(parts, results, strict=True):
        batches.append(
            replace(
                batch,
                payload=part.payload,
                uncompressed_bytes=part.uncompressed_bytes,
                record_count=part.record_count,
                base_timestamp=part.base_timestamp,
                max_timestamp=part.max_timestamp,
                result=result,
                rows=rows,
                header=empty_header(),
                block=None,
                is_compressed=True,
            )
        )
        rows = rows and rows.behind(part.record_count)
    return batches


class BatchSizes:
    """The largest size of a topic's batches: batch.size, until a broker refuses one as too large.

    Sizes are in bytes on the wire. Only the network thread lowers them.
    """

    def __init__(self, batch_size: int) -> None:
        # batch.size=0 turns batching off; 1 has the same effect and can be divided by.
        self._batch_size = max(batch_size, 1)
        self._lowered: dict[str, int] = {}

    def size_of(self, topic: str) -> int:
        """Return the largest size that a batch of this topic may have."""
        return self._lowered.get(topic, self._batch_size)

    def lower(self, topic: str, refused_bytes: int) -> None:
        """Set a topic's size to half of that of a refused batch, unless it is smaller already."""
        self._lowered[topic] = max(min(self.size_of(topic), refused_bytes // 2), 1)


class BatchCompression:
    """One codec, and its estimated ratio for each topic. Any thread may use it."""

    def __init__(self, compressor: Compressor, sizes: BatchSizes) -> None:
        self.sizes = sizes
        self.codec = compressor.compression
        self._compressor = compressor
        self._ratios = CompressionRatioEstimator()

    def estimated_ratio(self, topic: str) -> float:
        """Return the expected compression ratio of a topic's next batch; 1 before the first."""
        return self._ratios.estimation(topic, self.codec)

    def compressed(self, batch: ProducerBatch) -> list[PayloadPart]:
        """Compress a batch, in as many parts as needed for each to be about batch.size."""
        return self._compressed(
            batch.topic_partition.topic,
            PayloadPart(
                payload=batch.payload,
                uncompressed_bytes=batch.uncompressed_bytes,
                record_count=batch.record_count,
                base_timestamp=batch.base_timestamp,
                max_timestamp=batch.max_timestamp,
            ),
        )

    def _compressed(self, topic: str, part: PayloadPart) -> list[PayloadPart]:
        batch_size = self.sizes.size_of(topic)
        whole = part._replace(payload=memoryview(self._compressor.compress(part.payload)))
        size = RECORD_BATCH_OVERHEAD + len(whole.payload)
        ratio = len(whole.payload) / part.uncompressed_bytes
        self._ratios.update_estimation(topic, self.codec, ratio)
        if size <= batch_size * OVERSHOOT or part.record_count == 1:
            return [whole]
        self._ratios.set_estimation(topic, self.codec, ratio)
        smaller_parts = split_records(
            part.payload,
            record_count=part.record_count,
            base_timestamp=part.base_timestamp,
            part_count=-(-size // batch_size),
        )
        return [result for smaller in smaller_parts for result in self._compressed(topic, smaller)]

    def halves(self, batch: ProducerBatch) -> list[PayloadPart]:
        """Split a closed batch that a broker refused as too large into two compressed halves."""
        records = memoryview(decompress(batch.compression, batch.payload, MAX_UNCOMPRESSED_BYTES))
        return [
            half._replace(payload=memoryview(self._compressor.compress(half.payload)))
            for half in split_records(
                records,
                record_count=batch.record_count,
                base_timestamp=batch.base_timestamp,
                part_count=2,
            )
        ]

    def divided(self, batch: ProducerBatch, taken: Mapping[int, str]) -> DividedBatch | None:
        """Divide a closed batch: take some records out, and compress the others.

        `taken` has the indexes of records, in order. Returns None unless the row of each record is
        known.
        """
        rows = None if batch.rows is None else batch.rows.numbers(batch.record_count)
        if rows is None:
            return None
        # It is seldom needed.
        from spark_kafka_sink.record.kernel.divide_kernel import divide_payload  # noqa: PLC0415

        out, rest = divide_payload(
            decompress(batch.compression, batch.payload, MAX_UNCOMPRESSED_BYTES),
            record_count=batch.record_count,
            base_timestamp=batch.base_timestamp,
            taken=taken,
        )
        indexes = list(taken)
        numbers = rows[indexes]
        if not rest.record_count:
            return DividedBatch(None, numbers, out)
        rest = rest._replace(payload=memoryview(self._compressor.compress(rest.payload)))
        return DividedBatch(_rest_of(batch, rest, np.delete(rows, indexes)), numbers, out)


class DividedBatch(NamedTuple):
    """A batch that was divided into the records taken out and the rest."""

    #: The batch of the others; None if there are none.
    rest: ProducerBatch | None
    #: The row of each record that was taken out.
    rows: Int64Array
    #: These records, not compressed.
    taken: PayloadPart


def _rest_of(batch: ProducerBatch, part: PayloadPart, rows: Int64Array) -> ProducerBatch:
    """Return the batch of the records that are left; it was never sent, but keeps its number."""
    return replace(
        batch,
        payload=part.payload,
        uncompressed_bytes=part.uncompressed_bytes,
        record_count=part.record_count,
        base_timestamp=part.base_timestamp,
        max_timestamp=part.max_timestamp,
        rows=KnownRows(rows),
        first_row=int(rows[0]),
        last_row=int(rows[-1]),
        header=empty_header(),
        block=None,
        is_compressed=True,
        attempts=0,
        retry_at=0.0,
        last_error=None,
    )


class WorkOutcome(NamedTuple):
    """The return value of a job, or the error that it raised."""

    result: Any
    error: BaseException | None = None


#: Takes a job, and a function that receives its outcome on the network thread.
RunAside: TypeAlias = "Callable[[Callable[[], Any], Callable[[WorkOutcome], None]], None]"


class WorkerThread:
    """A thread for work that would block the network thread; it starts with the first job.

    It runs one job at a time. Each outcome is passed to the network thread, which alone decides
    what happens next. A partition's batches are ordered by its queue, not by these jobs.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], None], *, client_id: str) -> None:
        """Create the worker; `call_soon` runs a function on the network thread."""
        self._call_soon = call_soon
        self._jobs: queue.SimpleQueue[
            tuple[Callable[[], Any], Callable[[WorkOutcome], None]] | None
        ] = queue.SimpleQueue()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._name = f"kafka-producer-worker-thread | {client_id}"

    def run_aside(self, work: Callable[[], Any], then: Callable[[WorkOutcome], None]) -> None:
        """Run `work` on the worker thread, then `then` with its outcome on the network thread.

        At the end of the process, when no thread can be started, `work` runs on the network thread.
        Only the network thread may call this.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if not is_exiting():
                    raise
                self._call_soon(partial(then, self._outcome_of(work)))
                return
            self._thread = thread
        self._jobs.put((work, then))

    def close(self) -> None:
        """Wait for the running job, and fail the others with ProducerClosedError."""
        self._is_closing = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    def end_soon(self, then: Callable[[], None]) -> None:
        """Do the same without waiting; `then` is called on the network thread at the end."""
        self._is_closing = True
        if self._thread is None:
            then()
        else:
            self._jobs.put((lambda: None, lambda _: then()))
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, then = job
            self._call_soon(partial(then, self._outcome_of(work)))

    def _outcome_of(self, work: Callable[[], Any]) -> WorkOutcome:
        if self._is_closing:
            return WorkOutcome(None, ProducerClosedError("the producer is closed"))
        try:
            return WorkOutcome(work())
        except BaseException as error:  # noqa: BLE001  passed to the network thread
            return WorkOutcome(None, error)
