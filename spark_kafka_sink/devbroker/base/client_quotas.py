"""Quotas of users and clients, and how long a client that exceeds one has to wait.

An entity is a user, a client id, or both, where None is the default for all names. Of the quotas
that fit a client, the most specific applies (`_levels`, as ClientQuotaManager): those of its user
take precedence over those of its client id. Clients to which the same quota applies by the same
names share it.

A rate is that of the last eleven windows of one second, the current one included, and counts as if
ten had passed at least. So a client may send what it is allowed in ten seconds at once, and waits
until its rate is the quota again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
#: quota.window.num and quota.window.size.seconds
_WINDOWS: Final = 11
_WINDOW_SECONDS: Final = 1.0
#: Rates that are kept at once, at least, before idle ones are dropped.
_MANY: Final = 1000

#: Types and names, sorted by type.
Entity: TypeAlias = tuple[tuple[str, str | None], ...]
Quotas: TypeAlias = "Mapping[Entity, Mapping[str, float]]"


def entity_of(names: Mapping[str, str | None]) -> Entity:
    """Return the entity of these types and names."""
    return tuple(sorted(names.items(), key=lambda part: part[0]))


class Quota(NamedTuple):
    """A quota that applies to a client."""

    bytes_per_second: float
    #: Which clients share it: the key, and the names of user and client.
    shared_by: tuple[str, str | None, str | None]

    @property
    def burst_bytes(self) -> float:
        """How much a client may have at once."""
        return self.bytes_per_second * _WINDOW_SECONDS * (_WINDOWS - 1)


def find_quota(quotas: Quotas, key: str, user: str, client_id: str) -> Quota | None:
    """Return the most specific quota of a client; None if it is not limited."""
    for entity, names in _levels(user, client_id):
        value = quotas.get(entity, {}).get(key)
        if value is not None:
            return Quota(value, (key, *names))
    return None


def _levels(user: str, client_id: str) -> Iterator[tuple[Entity, tuple[str | None, str | None]]]:
    """Yield the entities of a client, the most specific first, with who shares a quota."""
    for user_name in (user, None):
        for client_name in (client_id, None):
            yield entity_of({USER: user_name, CLIENT_ID: client_name}), (user, client_id)
        yield entity_of({USER: user_name}), (user, None)
    for client_name in (client_id, None):
        yield entity_of({CLIENT_ID: client_name}), (None, client_id)


class _Rate:
    """What was sent in each of the last windows."""

    def __init__(self) -> None:
        #: The beginnings of windows, and their sums.
        self._windows: deque[list[float]] = deque()

    def is_idle(self, now: float) -> bool:
        """Return whether nothing counts any more."""
        self._forget(now)
        return not self._windows

    def record(self, value: float, now: float) -> None:
        """Add to the current window; a negative value takes back the last one."""
        self._forget(now)
        if not self._windows or now - self._windows[-1][0] >= _WINDOW_SECONDS:
            self._windows.append([now, 0.0])
        self._windows[-1][1] += value

    def excess_seconds(self, bytes_per_second: float, now: float) -> float:
        """Return how long to wait until the rate is the quota; 0 if it does not exceed it."""
        self._forget(now)
        if not self._windows:
            return 0.0
        elapsed = now - self._windows[0][0]
        missing = max(0, _WINDOWS - 1 - int(elapsed / _WINDOW_SECONDS))
        seconds = max(elapsed + missing * _WINDOW_SECONDS, 0.001)
        total = sum(value for _, value in self._windows)
        return max(0.0, (total / seconds - bytes_per_second) / bytes_per_second * seconds)

    def _forget(self, now: float) -> None:
        while self._windows and now - self._windows[0][0] >= _WINDOWS * _WINDOW_SECONDS:
            self._windows.popleft()


class ClientRates:
    """The rates of the clients of one broker that have quotas."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, str | None, str | None], _Rate] = {}

    def record(self, quota: Quota, sent: int, now: float) -> float:
        """Record what a client has sent; return how many seconds it must wait."""
        rate = self._rate(quota, now)
        rate.record(sent, now)
        return rate.excess_seconds(quota.bytes_per_second, now)

    def try_record(self, quota: Quota, size: int, now: float) -> float:
        """Record what a client is to get, unless it must wait; return how many seconds."""
        seconds = self.record(quota, size, now)
        if seconds > 0:
            self._rate(quota, now).record(-size, now)
        return seconds

    def _rate(self, quota: Quota, now: float) -> _Rate:
        rate = self._rates.get(quota.shared_by)
        if rate is None:
            if len(self._rates) >= _MANY:
                self._rates = {
                    key: known for key, known in self._rates.items() if not known.is_idle(now)
                }
            rate = self._rates[quota.shared_by] = _Rate()
        return rate
