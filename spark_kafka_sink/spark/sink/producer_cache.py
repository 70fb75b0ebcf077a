"""A Python worker's cache of producers, which keeps them from one task to the next.

A new producer has to connect, to fetch metadata and to touch fresh memory for its buffers, which
costs a worker about 50 milliseconds of processor time. Beyond the rules of every `IdleCache`:

- The key is a hash of the producer's whole configuration, and the stream's query id. All batch
  writes of one configuration share their producers, as those of Spark's own sink do. A batch write
  of another configuration closes them first, since workers may have little memory.
- A producer can fail while it is idle, as when a broker rejects its login. `take` closes such a
  producer and looks for another one: an earlier error never fails a later task.
- While a producer is idle, a topic can be deleted and created again with fewer partitions. `take`
  refreshes its metadata: one round trip, where a new producer would need several. The tasks of one
  stage follow each other like the batches of one task, and need that only once.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.spark.idle_cache import IdleCache, fingerprint
from spark_kafka_sink.spark.sink.partition_writer import Start, close_quietly, start_producer

if TYPE_CHECKING:
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.producer.kafka_producer import KafkaProducer

logger = logging.getLogger(__name__)

#: How long a task waits for the latest metadata, which usually takes a millisecond. If brokers are
#: unavailable, its records have delivery.timeout.ms and need not wait here first.
REFRESH_SECONDS: Final = 3.0


#: The query id of batch writes.
NO_QUERY: Final = ""


class CacheKey(NamedTuple):
    """The stream and the configuration that a producer belongs to."""

    #: `NO_QUERY` for batch writes.
    query_id: str
    #: `fingerprint` of its configuration.
    configuration: str


class IdleProducer(NamedTuple):
    """A producer that no task uses."""

    producer: KafkaProducer
    #: The id of the stage whose task has used it last; None for one that is always refreshed.
    stage: int | None


def _is_up_to_date(idle: IdleProducer, stage: int | None) -> bool:
    """Refresh a producer's metadata for a task; return False if the producer has ended."""
    producer = idle.producer
    if producer.has_ended:
        return False
    if stage is not None and stage == idle.stage:
        return True
    try:
        producer.refresh_metadata(REFRESH_SECONDS)
    except KafkaError as error:
        # This need not fail the task: a broker may answer before its records expire.
        logger.warning("could not refresh the metadata of the topics before writing: %s", error)
    except BaseException:
        close_quietly(producer)
        raise
    return not producer.has_ended


class ProducerCache(IdleCache[CacheKey, IdleProducer]):
    """The idle producers of one process. Thread-safe."""

    thread_name = "kafka-idle-producers"

    def close_client(self, client: IdleProducer) -> None:
        """Close a producer at once."""
        close_quietly(client.producer)

    def take_producer(self, key: CacheKey, stage: int | None = None) -> KafkaProducer | None:
        """Return a producer for a task of a stage; None if there is none."""
        idle = self.take(key, lambda idle: _is_up_to_date(idle, stage))
        return None if idle is None else idle.producer

    def put_producer(
        self, key: CacheKey, producer: KafkaProducer, stage: int | None = None
    ) -> None:
        """Store a producer that a task of a stage has used."""
        self.put(key, IdleProducer(producer, stage))


_cache = ProducerCache()


def _start_empty_after_fork() -> None:
    global _cache  # noqa: PLW0603 -- one cache per process is the point
    _cache = ProducerCache()


os.register_at_fork(after_in_child=_start_empty_after_fork)


def producer_cache() -> ProducerCache:
    """Return the cache of this process."""
    return _cache


class CachedProducers:
    """A source of producers that reuses those in this process's cache; implements `Producers`."""

    def __init__(
        self,
        config: ProducerConfig,
        query_id: str = NO_QUERY,
        *,
        stage: int | None = None,
        start: Start = start_producer,
        cache: ProducerCache | None = None,
    ) -> None:
        self._config = config
        self._key = CacheKey(query_id, fingerprint(config))
        self._stage = stage
        self._start = start
        self._cache = cache or producer_cache()

    def take(self) -> KafkaProducer:
        """Return a cached producer or start one."""
        if self._key.query_id == NO_QUERY:
            self._cache.close_all(self._is_of_another_batch)
        return self._cache.take_producer(self._key, self._stage) or self._start(self._config)

    def _is_of_another_batch(self, key: CacheKey) -> bool:
        return key.query_id == NO_QUERY and key != self._key

    def finished(self, producer: KafkaProducer) -> None:
        """Store the producer for the next task."""
        self._cache.put_producer(self._key, producer, self._stage)

    def failed(self, producer: KafkaProducer) -> None:
        """Close the producer at once: it may still hold records."""
        close_quietly(producer)
