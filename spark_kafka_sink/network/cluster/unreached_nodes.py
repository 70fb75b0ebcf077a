"""Addresses at which nothing listens: has the broker crashed, or is the address wrong?

A broker chooses the address that clients connect to (`advertised.listeners`), which is easily one
that only its own network knows. All clients judge it by the same rule:

- An address that was reached before is right: its broker is waited for, since it may restart.
- An address that was never reached, and where nothing has listened for `FINAL_SECONDS`, is probably
  wrong: the client logs a warning, and keeps trying, since the broker may have crashed a moment
  before. What times out meanwhile has this as its cause.
- If this holds for every broker although one answers, through bootstrap.servers, the addresses are
  wrong. A first contact (`first_contact`) and reads, with a user waiting for them, fail, as they do
  if bootstrap.servers is wrong. A producer and a KafkaConsumer keep trying within their time-outs.

The rule compares addresses, not brokers' ids: a broker may advertise another address, and a client
may have two connections to one. Does no I/O and reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from spark_kafka_sink.errors import KafkaError
    from spark_kafka_sink.model import Node

#: Seconds in which a broker can restart, and a new topic become known.
FINAL_SECONDS: Final = 3.0
#: Seconds without an attempt, after which what older ones have shown is void.
_STALE_SECONDS: Final = 60.0

_Address: TypeAlias = tuple[str, int]


@dataclass(slots=True)
class _Absence:
    """What is known about an address at which nothing listened at the last attempt."""

    #: When the first and the last of the attempts failed.
    since: float
    last: float
    #: The error of the last one.
    error: KafkaError
    is_final: bool = False


class UnreachedNodes:
    """What the attempts to connect have shown; times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._reached: set[_Address] = set()
        self._absences: dict[_Address, _Absence] = {}

    def __bool__(self) -> bool:
        """Return whether nothing listens at the address of any node."""
        return bool(self._absences)

    def reached(self, node: Node) -> None:
        """Record that a peer has accepted a connection, even if it may not be a broker."""
        self._reached.add(_address(node))
        self._absences.pop(_address(node), None)

    def failed(self, node: Node) -> None:
        """Record an attempt that failed in another way: a peer may be there."""
        self._absences.pop(_address(node), None)

    def absent(self, node: Node, error: KafkaError, now: float) -> bool:
        """Record an attempt without a listener; return whether `never_reached` is new for it."""
        address = _address(node)
        absence = self._absences.get(address)
        if absence is None or now - absence.last > _STALE_SECONDS:
            absence = self._absences[address] = _Absence(now, now, error)
        absence.error, absence.last = error, now
        was_final = absence.is_final
        absence.is_final = address not in self._reached and now - absence.since >= FINAL_SECONDS
        return absence.is_final and not was_final

    def absence(self, node: Node) -> KafkaError | None:
        """Return the error of the last attempt, if it found no listener."""
        absence = self._absences.get(_address(node))
        return None if absence is None else absence.error

    def never_reached(self, node: Node) -> KafkaError | None:
        """Return the error of a node whose address is probably wrong; None for any other."""
        absence = self._absences.get(_address(node))
        return absence.error if absence is not None and absence.is_final else None


def _address(node: Node) -> _Address:
    return node.host, node.port
