"""The errors of exactly-once writes; each message says what is in Kafka and what to do."""

from __future__ import annotations

from spark_kafka_sink.errors import KafkaError


class ExactlyOnceError(KafkaError):
    """The base class of these errors."""


class LedgerFormatError(ExactlyOnceError):
    """The ledger topic holds entries this version cannot read, or is not a ledger."""


class LedgerFencedError(ExactlyOnceError):
    """Another driver now writes the ledger of this prefix; nothing was appended."""

    retriable = True


class LedgerOutcomeUnknownError(ExactlyOnceError):
    """It is unknown whether the entry was appended: the ledger must be read again."""

    retriable = True


class OvertakenError(ExactlyOnceError):
    """Another driver has since claimed the prefix; nothing of this write is visible."""


class RolledBackError(ExactlyOnceError):
    """The batch is older than the last committed one: the checkpoint was rolled back."""


class WinnerLostError(ExactlyOnceError):
    """A task's transaction is no longer open, or is about to time out; nothing is visible."""


class VoidError(ExactlyOnceError):
    """The batch was decided, but all its transactions had been aborted; nothing is visible."""


class MixedError(ExactlyOnceError):
    """Only part of a decided batch is visible, and an operator must resolve it."""


class CommitPendingError(ExactlyOnceError):
    """The batch is decided but not fully committed yet; the next start commits the rest."""
