"""The transactional ids under a prefix: one for the ledger, and one per transaction of a worker.

    {prefix}.ledger                     the driver that writes the ledger
    {prefix}.{worker uuid}.{slot}       a transaction of a generation, in one worker process

A worker's ids are owned by one producer each and can be asked for by nobody else: the uuid is made
in the process. Ids made of partition and attempt collide, since PySpark shows no stage attempt, and
a stalled attempt would abort a decided transaction. A slot is used again by a later generation
only: by then every transaction of the earlier ones has been decided or aborted.

Ids are taken apart from the right, and compared as a whole: `orders` is not `orders.eu`, and an id
of `orders.eu` is none of `orders`, whatever a prefix may look like.
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
#: Kafka's own limit is 2^15 bytes for an id; what nobody can read is of no use to an operator.
MAX_PREFIX_LENGTH: Final = 200


class WorkerId(NamedTuple):
    """A transactional id of a task, taken apart."""

    prefix: str
    #: 32 hexadecimal digits.
    worker: str
    slot: int

    def __str__(self) -> str:
        """Give the transactional id."""
        return _SEPARATOR.join((self.prefix, self.worker, str(self.slot)))


def check_prefix(prefix: str) -> str:
    """Give the prefix back; raises ConfigError for one that cannot be."""
    if not prefix or len(prefix) > MAX_PREFIX_LENGTH or not prefix.isprintable():
        raise ConfigError(
            "transactionalIdPrefix must have 1 to "
            f"{MAX_PREFIX_LENGTH} printable characters, and names one query or job"
        )
    return prefix


def ledger_id(prefix: str) -> str:
    """Name the transactional id by which the ledger of a prefix is written."""
    return f"{prefix}{_SEPARATOR}{_LEDGER}"


def parse_worker_id(transactional_id: str) -> WorkerId | None:
    """Take an id apart; None for one that is no task's."""
    parts = transactional_id.rsplit(_SEPARATOR, 2)
    if len(parts) != 3:  # noqa: PLR2004  the three parts of an id
        return None
    prefix, worker, slot = parts
    if not prefix or not _UUID.fullmatch(worker) or not _SLOT.fullmatch(slot):
        return None
    return WorkerId(prefix, worker, int(slot))


def is_worker_id_of(prefix: str, transactional_id: str) -> bool:
    """Whether an id is that of a task under exactly this prefix."""
    parsed = parse_worker_id(transactional_id)
    return parsed is not None and parsed.prefix == prefix


def worker_id_pattern(prefix: str) -> str:
    """Give a regular expression (RE2J) for the ids of a prefix, to spare the network.

    Not to be relied on: brokers before 4.1 have no patterns, and what comes is parsed.
    """
    return re.escape(prefix) + r"\.[0-9a-f]{32}\.[0-9]+"


def new_worker() -> str:
    """Name this process, for the ids of its transactions; call it after the last fork."""
    return uuid.uuid4().hex


class Slots:
    """The slots of one worker process under one prefix: which may be used now.

    A slot is taken for one transaction of a generation. Whether its transaction is ever ended is
    not known here, and need not be: a later generation exists only after all of an earlier one's
    were decided or can be aborted by whoever comes first.
    """

    def __init__(self, prefix: str, *, name_worker: Callable[[], str] = new_worker) -> None:
        """Use none yet."""
        self.prefix = check_prefix(prefix)
        self.worker = name_worker()
        #: The generation that last used each slot, and whether it is using it still.
        self._used: list[tuple[int, bool]] = []

    def take(self, generation: int) -> WorkerId:
        """Take a slot for a transaction of a generation: a new one, or one of an earlier one."""
        for slot, (used_by, busy) in enumerate(self._used):
            if not busy and used_by < generation:
                self._used[slot] = (generation, True)
                return WorkerId(self.prefix, self.worker, slot)
        self._used.append((generation, True))
        return WorkerId(self.prefix, self.worker, len(self._used) - 1)

    def release(self, worker_id: WorkerId) -> None:
        """Note that nothing more is written by a slot; a later generation may take it.

        Raises IllegalStateError for a slot that is not in use.
        """
        if not (
            worker_id[:2] == (self.prefix, self.worker)
            and worker_id.slot < len(self._used)
            and self._used[worker_id.slot][1]
        ):
            raise IllegalStateError(f"{worker_id} is not in use by this process")
        self._used[worker_id.slot] = (self._used[worker_id.slot][0], False)
