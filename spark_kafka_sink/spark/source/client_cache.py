"""A Python worker's cache of consumer clients, by the rules of every `IdleCache`.

The key is a hash of the client's whole configuration. Drivers and tasks borrow a client for each
step: its connections and its metadata live from one micro-batch to the next. A client that has
failed is closed and not returned.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_kafka_sink.spark.idle_cache import IDLE_SECONDS, IdleCache, fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark_kafka_sink.config.consumer_config import ConsumerConfig
    from spark_kafka_sink.consumer.consumer_client import ConsumerClient

logger = logging.getLogger(__name__)


def _start_client(config: ConsumerConfig) -> ConsumerClient:
    from spark_kafka_sink.consumer.consumer_client import ConsumerClient

    return ConsumerClient(config)


def _close_quietly(client: ConsumerClient) -> None:
    """Close a client; only log an error, so that it cannot hide why a read failed."""
    try:
        client.close()
    except Exception:
        logger.warning("could not close the consumer client cleanly", exc_info=True)


class ClientCache(IdleCache[str, "ConsumerClient"]):
    """The idle clients of one process. Thread-safe."""

    def __init__(
        self,
        idle_seconds: float = IDLE_SECONDS,
        *,
        start: Callable[[ConsumerConfig], ConsumerClient] = _start_client,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create an empty cache without a thread."""
        super().__init__(
            thread_name="kafka-idle-clients",
            close=_close_quietly,
            idle_seconds=idle_seconds,
            clock=clock,
            sleep=sleep,
        )
        self._start = start

    @contextmanager
    def borrow(self, config: ConsumerConfig) -> Iterator[ConsumerClient]:
        """Yield a client for the block; a client that failed in it is closed.

        A reader that stops early leaves the client usable.
        """
        key = fingerprint(config)
        client = self.take(key) or self._start(config)
        try:
            yield client
        except GeneratorExit:
            self.put(key, client)
            raise
        except BaseException:
            _close_quietly(client)
            raise
        self.put(key, client)


_cache = ClientCache()


def _start_empty_after_fork() -> None:
    global _cache  # noqa: PLW0603 -- one cache per process is the point
    _cache = ClientCache()


os.register_at_fork(after_in_child=_start_empty_after_fork)


def client_cache() -> ClientCache:
    """Return the cache of this process."""
    return _cache
