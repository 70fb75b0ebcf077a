"""What ends an exactly-once write; each message says what is in Kafka, and what to do."""

from __future__ import annotations

from spark_kafka_sink.errors import KafkaError


class ExactlyOnceError(KafkaError):
    """Root of these errors."""


class LedgerFormatError(ExactlyOnceError):
    """The ledger topic holds what this version cannot read, or is no ledger."""


class LedgerFencedError(ExactlyOnceError):
    """Another driver writes the ledger of this prefix now; nothing was appended."""

    retriable = True


class LedgerOutcomeUnknownError(ExactlyOnceError):
    """Whether the ledger has the entry is not known: it has to be read again."""

    retriable = True


class OvertakenError(ExactlyOnceError):
    """Another driver has claimed the prefix since; nothing of this write is visible."""


class RolledBackError(ExactlyOnceError):
    """The batch is older than the last one that is in: the checkpoint was rolled back."""


class WinnerLostError(ExactlyOnceError):
    """A task's transaction is not open any more, or not for long; nothing is visible."""


class VoidError(ExactlyOnceError):
    """The batch was decided, and all of its transactions had been aborted; nothing is visible."""


class MixedError(ExactlyOnceError):
    """Only a part of a decided batch is visible, and an operator has to resolve it."""


class CommitPendingError(ExactlyOnceError):
    """The batch is decided and will be visible, but not all brokers have answered yet."""
