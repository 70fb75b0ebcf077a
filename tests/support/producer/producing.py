"""Write Arrow batches to a cluster through the producer, as a Spark task does."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaTimeoutError, NetworkError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.record.arrow.record_columns import record_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from spark_kafka_sink.model import PartitionAcks, TopicPartition
    from tests.support.kafka.real_kafka import KafkaCluster


T = TypeVar("T")
ErrorT = TypeVar("ErrorT", KafkaTimeoutError, NetworkError)
#: How long `patiently` tries.
PATIENCE_SECONDS = 60.0
#: A pause between two tries, for calls that do not wait themselves.
_PAUSE_SECONDS = 0.01


class Bootstrap(Protocol):
    """A cluster, reached directly or through proxies."""

    @property
    def bootstrap_servers(self) -> str:
        """The initial addresses."""


def producer_for(kafka: Bootstrap, **settings: object) -> KafkaProducer:
    """Create a producer for a cluster; settings have Kafka's names."""
    return KafkaProducer(
        ProducerConfig.from_mapping({"bootstrap.servers": kafka.bootstrap_servers, **settings})
    )


def append_all(
    producer: KafkaProducer, batches: Iterable[pa.RecordBatch], *, topic: str | None
) -> None:
    """Append batches, with consecutive row numbers."""
    first_row = 0
    for batch in batches:
        columns = record_columns(batch, topic=topic, first_row=first_row)
        producer.append(columns, first_row=first_row)
        first_row += batch.num_rows


def produce(
    kafka: KafkaCluster, batches: Iterable[pa.RecordBatch], *, topic: str | None, **settings: object
) -> dict[TopicPartition, PartitionAcks]:
    """Write batches with a new producer; return its acknowledgements once all are delivered."""
    with producer_for(kafka, **settings) as producer:
        append_all(producer, batches, topic=topic)
        producer.flush()
        return producer.acks()


def patiently(call: Callable[[], T]) -> T:
    """Retry a call that times out after max.block.ms, so that a busy machine fails no test.

    If no broker could be reached within that time, the error is a NetworkError.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return call()
        except (KafkaTimeoutError, NetworkError):
            if time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_SECONDS)


def refusal_after_patience(call: Callable[[], object], pattern: str, kind: type[ErrorT]) -> ErrorT:
    """Retry a call that fails after max.block.ms until its error matches; return the error.

    On a busy machine the call may time out before it meets the cause; then the error names none, or
    another one, or is of another kind.
    """
    errors: list[str] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            call()
        except (KafkaTimeoutError, NetworkError) as error:
            if isinstance(error, kind) and re.search(pattern, str(error)):
                return error
            errors.append(repr(error))
        time.sleep(_PAUSE_SECONDS)
    raise AssertionError(f"no {kind.__name__} matches {pattern!r}: {errors[-1:]}")
