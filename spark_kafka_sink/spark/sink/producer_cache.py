"""A Python worker's cache of producers, which keeps them from one micro-batch to the next.

- A producer is in the cache only while it is not in use: a task that takes it owns it, and a task
  that fails or is killed never returns it.
- Its key is the stream's query id and a hash of its whole configuration. Secrets enter the hash as
  hashes: only the configuration itself contains them.
- A producer can fail while it is idle, as when a broker rejects its login. `take` closes such a
  producer and looks for another one: an earlier error never fails a later task.
- While a producer is idle, a topic can be deleted and created again with fewer partitions. `take`
  refreshes its metadata: one round trip, where a new producer would need several.
- A producer that was not used for `IDLE_SECONDS` is closed by a background thread, since a worker
  may outlive the stream and serve others.
- Spark ends idle workers after a minute, and some after every task. That loses nothing: the next
  worker starts a producer of its own.

The cache belongs to one process. PySpark forks its workers before it imports this module; even so,
a process that is forked later begins with an empty cache.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.config.config_def import Password
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.spark.sink.partition_writer import close_quietly, start_producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.spark.sink.partition_writer import Producer, Start

logger = logging.getLogger(__name__)

#: Longer than most trigger intervals; shorter than brokers keep idle connections (10 minutes).
IDLE_SECONDS: Final = 300.0
#: How long a task waits for the latest metadata, which usually takes a millisecond. If brokers are
#: unavailable, its records have delivery.timeout.ms and need not wait here first.
REFRESH_SECONDS: Final = 3.0


class CacheKey(NamedTuple):
    """The stream and the configuration that a producer belongs to."""

    query_id: str
    #: `fingerprint` of its configuration.
    configuration: str


def fingerprint(config: ProducerConfig) -> str:
    """Return a hash of a configuration's resolved values, including secrets."""
    return hashlib.sha256(repr(_plain(config)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Password):
        return hashlib.sha256(value.value.encode()).hexdigest()
    if is_dataclass(value):
        return [
            (each.name, _plain(getattr(value, each.name))) for each in fields(value) if each.compare
        ]
    return value


class IdleProducers:
    """The idle producers; time is an argument, in seconds of any clock."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        """Create an empty collection."""
        self._idle_seconds = idle_seconds
        self._idle: list[tuple[float, CacheKey, Producer]] = []

    def take(self, key: CacheKey) -> Producer | None:
        """Remove and return this key's most recently used producer; None if there is none."""
        for index in reversed(range(len(self._idle))):
            if self._idle[index][1] == key:
                return self._idle.pop(index)[2]
        return None

    def put(self, key: CacheKey, producer: Producer, now: float) -> None:
        """Add a producer that was in use until `now`."""
        self._idle.append((now, key, producer))

    def take_expired(self, now: float) -> list[Producer]:
        """Remove and return the producers that have been idle for too long."""
        expired = [one for one in self._idle if one[0] + self._idle_seconds <= now]
        self._idle = [one for one in self._idle if one[0] + self._idle_seconds > now]
        return [producer for _, _, producer in expired]

    def until_next_expiry(self, now: float) -> float | None:
        """Return the time until the next producer expires; None if there is none."""
        first = min((used_at for used_at, _, _ in self._idle), default=None)
        return None if first is None else first + self._idle_seconds - now


def _is_up_to_date(producer: Producer) -> bool:
    """Refresh a producer's metadata; return False if the producer has ended."""
    if producer.has_ended:
        return False
    try:
        producer.refresh_metadata(REFRESH_SECONDS)
    except KafkaError as error:
        # This need not fail the task: a broker may answer before its records expire.
        logger.warning("could not refresh the metadata of the topics before writing: %s", error)
    except BaseException:
        close_quietly(producer)
        raise
    return not producer.has_ended


class ProducerCache:
    """The idle producers of one process. Thread-safe."""

    def __init__(
        self,
        idle_seconds: float = IDLE_SECONDS,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create an empty cache without a thread."""
        self._idle = IdleProducers(idle_seconds)
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._has_thread = False

    def take(self, key: CacheKey) -> Producer | None:
        """Remove and return a usable producer of this key; None if there is none."""
        while True:
            with self._lock:
                producer = self._idle.take(key)
            if producer is None or _is_up_to_date(producer):
                return producer
            close_quietly(producer)

    def put(self, key: CacheKey, producer: Producer) -> None:
        """Store a producer with no unsent records; it is closed once it has been idle too long."""
        with self._lock:
            self._idle.put(key, producer, self._clock())
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(
                    target=self._close_idle, name="kafka-idle-producers", daemon=True
                ).start()

    def _close_idle(self) -> None:
        """Close expired producers until the cache is empty."""
        while True:
            with self._lock:
                now = self._clock()
                expired = self._idle.take_expired(now)
                pause = self._idle.until_next_expiry(now)
                self._has_thread = pause is not None
            for producer in expired:
                close_quietly(producer)
            if pause is None:
                return
            self._sleep(pause)


_cache = ProducerCache()


def _start_empty_after_fork() -> None:
    global _cache  # noqa: PLW0603 -- one cache per process is the point
    _cache = ProducerCache()


os.register_at_fork(after_in_child=_start_empty_after_fork)


def producer_cache() -> ProducerCache:
    """Return the cache of this process."""
    return _cache


class ProducerOfQuery:
    """A source of producers that reuses those in this process's cache; implements `Producers`."""

    def __init__(
        self,
        config: ProducerConfig,
        query_id: str,
        *,
        start: Start = start_producer,
        cache: ProducerCache | None = None,
    ) -> None:
        """Store the settings; nothing is started yet."""
        self._config = config
        self._key = CacheKey(query_id, fingerprint(config))
        self._start = start
        self._cache = cache or producer_cache()

    def take(self) -> Producer:
        """Return a cached producer or start one."""
        return self._cache.take(self._key) or self._start(self._config)

    def finished(self, producer: Producer) -> None:
        """Store the producer for the next micro-batch."""
        self._cache.put(self._key, producer)

    def failed(self, producer: Producer) -> None:
        """Close the producer at once: it may still hold records."""
        close_quietly(producer)
