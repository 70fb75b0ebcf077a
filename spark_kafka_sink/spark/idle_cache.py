"""A Python worker's cache of clients, which keeps them from one task to the next.

- A client is in the cache only while it is not in use: a task that takes it owns it, and a task
  that fails or is killed never returns it.
- A client that was not used for `IDLE_SECONDS` is closed by a background thread, since a worker may
  outlive the query and serve others.
- Spark ends idle workers after a minute, and some after every task. That loses nothing: the next
  worker starts a client of its own.
- Keys contain `fingerprint`, a hash of the whole configuration. Secrets enter the hash as hashes:
  only the configuration itself contains them.

A cache belongs to one process. PySpark forks its workers before it imports this module; even so, a
process that is forked later must begin with an empty cache.
"""

from __future__ import annotations

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from spark_kafka_sink.config.config_def import Password

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

Key = TypeVar("Key")
Client = TypeVar("Client")

#: Longer than most trigger intervals; shorter than brokers keep idle connections (10 minutes).
IDLE_SECONDS: Final = 300.0


def fingerprint(config: DataclassInstance) -> str:
    """Return a hash of a configuration's resolved values, including secrets."""
    return hashlib.sha256(repr(_plain(config)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Password):
        return hashlib.sha256(value.value.encode()).hexdigest()
    if is_dataclass(value):
        return [
            (field.name, _plain(getattr(value, field.name)))
            for field in fields(value)
            if field.compare
        ]
    return value


class IdleClients(Generic[Key, Client]):
    """The idle clients; time is an argument, in seconds of any clock."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._idle: list[tuple[float, Key, Client]] = []

    def take(self, key: Key) -> Client | None:
        """Remove and return this key's most recently used client; None if there is none."""
        for index in reversed(range(len(self._idle))):
            if self._idle[index][1] == key:
                return self._idle.pop(index)[2]
        return None

    def put(self, key: Key, client: Client, now: float) -> None:
        """Add a client that was in use until `now`."""
        self._idle.append((now, key, client))

    def take_all(self, is_chosen: Callable[[Key], bool]) -> list[Client]:
        """Remove and return the clients of all chosen keys."""
        chosen = [client for _, key, client in self._idle if is_chosen(key)]
        self._idle = [entry for entry in self._idle if not is_chosen(entry[1])]
        return chosen

    def take_expired(self, now: float) -> list[Client]:
        """Remove and return the clients that have been idle for too long."""
        expired = [entry for entry in self._idle if entry[0] + self._idle_seconds <= now]
        self._idle = [entry for entry in self._idle if entry[0] + self._idle_seconds > now]
        return [client for _, _, client in expired]

    def until_next_expiry(self, now: float) -> float | None:
        """Return the time until the next client expires; None if there is none."""
        first = min((used_at for used_at, _, _ in self._idle), default=None)
        return None if first is None else first + self._idle_seconds - now


class IdleCache(ABC, Generic[Key, Client]):
    """The idle clients of one process. Thread-safe. A new cache is empty and has no thread."""

    #: The name of the thread that closes clients.
    thread_name: ClassVar[str] = "kafka-idle-clients"

    def __init__(
        self,
        idle_seconds: float = IDLE_SECONDS,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._idle: IdleClients[Key, Client] = IdleClients(idle_seconds)
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._has_thread = False

    @abstractmethod
    def close_client(self, client: Client) -> None:
        """Close a client; must not raise."""

    def take(self, key: Key, is_usable: Callable[[Client], bool] = lambda _: True) -> Client | None:
        """Remove and return a usable client of this key; None if there is none.

        `is_usable` may refresh the client; one that is not usable is closed.
        """
        while True:
            with self._lock:
                client = self._idle.take(key)
            if client is None or is_usable(client):
                return client
            self.close_client(client)

    def put(self, key: Key, client: Client) -> None:
        """Store a client that is not in use; it is closed once it has been idle too long."""
        with self._lock:
            self._idle.put(key, client, self._clock())
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(
                    target=self._close_idle, name=self.thread_name, daemon=True
                ).start()

    def close_all(self, is_chosen: Callable[[Key], bool]) -> None:
        """Close the idle clients of all chosen keys."""
        with self._lock:
            chosen = self._idle.take_all(is_chosen)
        for client in chosen:
            self.close_client(client)

    def _close_idle(self) -> None:
        """Close expired clients until the cache is empty."""
        while True:
            with self._lock:
                now = self._clock()
                expired = self._idle.take_expired(now)
                pause = self._idle.until_next_expiry(now)
                self._has_thread = pause is not None
            for client in expired:
                self.close_client(client)
            if pause is None:
                return
            self._sleep(pause)
