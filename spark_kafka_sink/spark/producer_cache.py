"""Producers that live on in a Python worker from one micro-batch of a stream to the next.

- A producer is in the cache only while nobody uses it: whoever takes it owns it, and a task that
  fails or is killed never puts it back.
- It is found again by its whole configuration and the stream's query id. The key is a hash, and
  secrets go into it as hashes: nothing of them is kept beside the configuration itself.
- A producer can end while it lies idle, as when a broker refuses its login. `take` closes such a
  producer and looks for another one: the error of an earlier time never fails a later task.
- A topic can be deleted and created again while a producer lies idle, with fewer partitions. `take`
  asks about its topics again: one round trip, where a new producer would need several.
- One that was not used for `IDLE_SECONDS` is closed, by a thread that sleeps otherwise. A worker of
  a stream that has ended may live on for others.
- Spark ends idle workers after a minute, and some after every task. Nothing is lost by that: the
  next worker starts a producer of its own.

The cache belongs to one process. PySpark forks its workers before it imports this module; a process
that is forked off nevertheless begins with an empty one.
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
from spark_kafka_sink.spark.partition_writer import close_quietly, start_producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.spark.partition_writer import Producer, Start

logger = logging.getLogger(__name__)

#: Longer than most triggers; shorter than brokers keep idle connections (10 minutes).
IDLE_SECONDS: Final = 300.0
#: How long a task waits for the newest metadata, which mostly takes a millisecond. Where brokers
#: are away, its records have delivery.timeout.ms, and need not wait here first.
REFRESH_SECONDS: Final = 3.0


class CacheKey(NamedTuple):
    """Whose a producer is."""

    query_id: str
    #: `fingerprint` of its configuration.
    configuration: str


def fingerprint(config: ProducerConfig) -> str:
    """Hash a configuration with all values as they were resolved, secrets included."""
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
    """The producers that nobody uses, with time as an argument; seconds of any clock."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        """Have none."""
        self._idle_seconds = idle_seconds
        self._idle: list[tuple[float, CacheKey, Producer]] = []

    def take(self, key: CacheKey) -> Producer | None:
        """Take out the one of this key that was used last, if there is one."""
        for index in reversed(range(len(self._idle))):
            if self._idle[index][1] == key:
                return self._idle.pop(index)[2]
        return None

    def put(self, key: CacheKey, producer: Producer, now: float) -> None:
        """Put one in that was used until now."""
        self._idle.append((now, key, producer))

    def take_expired(self, now: float) -> list[Producer]:
        """Take out all that have been idle for too long."""
        expired = [one for one in self._idle if one[0] + self._idle_seconds <= now]
        self._idle = [one for one in self._idle if one[0] + self._idle_seconds > now]
        return [producer for _, _, producer in expired]

    def until_next_expiry(self, now: float) -> float | None:
        """Return how long until the next one will have been idle for too long; None without any."""
        first = min((used_at for used_at, _, _ in self._idle), default=None)
        return None if first is None else first + self._idle_seconds - now


def _is_up_to_date(producer: Producer) -> bool:
    """Refresh a producer's metadata; return False if the producer has ended."""
    if producer.has_ended:
        return False
    try:
        producer.refresh_metadata(REFRESH_SECONDS)
    except KafkaError as error:
        # No reason to fail the task: by the time that its records expire, a broker may answer.
        logger.warning("writing with metadata that could not be refreshed: %s", error)
    except BaseException:
        close_quietly(producer)
        raise
    return not producer.has_ended


class ProducerCache:
    """The producers of one process. Thread-safe."""

    def __init__(
        self,
        idle_seconds: float = IDLE_SECONDS,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begin empty, and with no thread."""
        self._idle = IdleProducers(idle_seconds)
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._has_thread = False

    def take(self, key: CacheKey) -> Producer | None:
        """Take out a producer that can still write; None where there is none of this key."""
        while True:
            with self._lock:
                producer = self._idle.take(key)
            if producer is None or _is_up_to_date(producer):
                return producer
            close_quietly(producer)

    def put(self, key: CacheKey, producer: Producer) -> None:
        """Put a producer in that has nothing unsent; it is closed when nobody takes it."""
        with self._lock:
            self._idle.put(key, producer, self._clock())
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(
                    target=self._close_idle, name="kafka-idle-producers", daemon=True
                ).start()

    def _close_idle(self) -> None:
        """Close what is idle for too long; ends when there is nothing left to watch."""
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


def _begin_anew() -> None:
    global _cache  # noqa: PLW0603 -- one cache per process is the point
    _cache = ProducerCache()


os.register_at_fork(after_in_child=_begin_anew)


def producer_cache() -> ProducerCache:
    """Give the cache of this process."""
    return _cache


class ProducerOfQuery:
    """Takes a task's producer from this process's cache, or starts one; see `Producers`."""

    def __init__(
        self,
        config: ProducerConfig,
        query_id: str,
        *,
        start: Start = start_producer,
        cache: ProducerCache | None = None,
    ) -> None:
        """Start nothing yet."""
        self._config = config
        self._key = CacheKey(query_id, fingerprint(config))
        self._start = start
        self._cache = cache or producer_cache()

    def take(self) -> Producer:
        """Give a producer that nobody else uses."""
        return self._cache.take(self._key) or self._start(self._config)

    def finished(self, producer: Producer) -> None:
        """Keep it for the next micro-batch."""
        self._cache.put(self._key, producer)

    def failed(self, producer: Producer) -> None:
        """Stop it at once: nobody knows what it still has."""
        close_quietly(producer)
