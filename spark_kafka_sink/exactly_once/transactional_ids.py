"""The transactional ids under a prefix: one for the ledger, and one per transaction of a worker.

    {prefix}.ledger                     the driver that writes the ledger
    {prefix}.{worker uuid}.{slot}       a transaction of a generation, in one worker process

One producer at a time has an id, and no other process can use it, because the uuid is generated in
the process. Ids made of partition and attempt number would collide: PySpark does not expose the
stage attempt, so a stalled attempt could abort a decided transaction. A slot is reused only by a
later generation, when every transaction of earlier ones has been decided or aborted.

Ids are parsed from the right and compared as a whole, so an id of prefix `orders.eu` never belongs
to prefix `orders`, whatever a prefix looks like.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.errors import ConfigError, IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Callable

_LEDGER: Final = "ledger"
_SEPARATOR: Final = "."
_UUID: Final = re.compile(r"[0-9a-f]{32}")
_SLOT: Final = re.compile(r"0|[1-9][0-9]{0,8}")
#: Kafka itself allows ids of up to 2^15 bytes, which are too long for an operator to read.
MAX_PREFIX_LENGTH: Final = 200


class WorkerId(NamedTuple):
    """The parts of a task's transactional id."""

    prefix: str
    #: 32 hexadecimal digits.
    worker: str
    slot: int

    def __str__(self) -> str:
        return _SEPARATOR.join((self.prefix, self.worker, str(self.slot)))


def check_prefix(prefix: str) -> str:
    """Return the prefix; raise ConfigError if it is invalid."""
    if not prefix or len(prefix) > MAX_PREFIX_LENGTH or not prefix.isprintable():
        raise ConfigError(
            f"transactionalIdPrefix must have 1 to {MAX_PREFIX_LENGTH} printable characters, which "
            "identify one query or job"
        )
    return prefix


def ledger_id(prefix: str) -> str:
    """Return the transactional id that writes the ledger of a prefix."""
    return f"{prefix}{_SEPARATOR}{_LEDGER}"


def parse_worker_id(transactional_id: str) -> WorkerId | None:
    """Parse a transactional id; return None if it is not a task's."""
    parts = transactional_id.rsplit(_SEPARATOR, 2)
    if len(parts) != 3:  # noqa: PLR2004  the three parts of an id
        return None
    prefix, worker, slot = parts
    if not prefix or not _UUID.fullmatch(worker) or not _SLOT.fullmatch(slot):
        return None
    return WorkerId(prefix, worker, int(slot))


def is_worker_id_of(prefix: str, transactional_id: str) -> bool:
    """Return whether an id belongs to a task under exactly this prefix."""
    parsed = parse_worker_id(transactional_id)
    return parsed is not None and parsed.prefix == prefix


def worker_id_pattern(prefix: str) -> str:
    """Return a regular expression (RE2J) for the ids of a prefix, to reduce network traffic.

    Brokers before 4.1 do not support patterns, so callers must still parse the ids they receive.
    """
    return re.escape(prefix) + r"\.[0-9a-f]{32}\.[0-9]+"


def new_worker() -> str:
    """Return a new worker uuid for this process; call it after the last fork."""
    return uuid.uuid4().hex


class Slots:
    """The slots of one worker process under one prefix.

    A slot is used for one transaction of a generation. This class does not track whether that
    transaction has ended, and need not: a later generation exists only once every earlier
    transaction is decided or may be aborted by any driver.
    """

    def __init__(self, prefix: str, *, name_worker: Callable[[], str] = new_worker) -> None:
        self.prefix = check_prefix(prefix)
        self.worker = name_worker()
        #: The generation that last used each slot, and whether the slot is still in use.
        self._used: list[tuple[int, bool]] = []

    def take(self, generation: int) -> WorkerId:
        """Take a slot for a transaction: a free one of an earlier generation, or a new one."""
        for slot, (used_by, busy) in enumerate(self._used):
            if not busy and used_by < generation:
                self._used[slot] = (generation, True)
                return WorkerId(self.prefix, self.worker, slot)
        self._used.append((generation, True))
        return WorkerId(self.prefix, self.worker, len(self._used) - 1)

    def release(self, worker_id: WorkerId) -> None:
        """Mark a slot as no longer written to; a later generation may take it.

        Raises IllegalStateError if the slot is not in use.
        """
        if not (
            worker_id[:2] == (self.prefix, self.worker)
            and worker_id.slot < len(self._used)
            and self._used[worker_id.slot][1]
        ):
            raise IllegalStateError(f"{worker_id} is not in use by this process")
        self._used[worker_id.slot] = (self._used[worker_id.slot][0], False)
