"""What brokers tell of transactions, and how they answer whoever ends one (KIP-98, KIP-664)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.errors import KafkaError, ProducerFencedError
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error, error_name

if TYPE_CHECKING:
    from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

#: The finalized feature that decides which rules transactions follow (KIP-890), and the level from
#: which on Produce adds partitions and EndTxn bumps the epoch (TV2).
TRANSACTION_VERSION_FEATURE: Final = "transaction.version"
TRANSACTION_V2: Final = 2

ONGOING: Final = "Ongoing"


class ListedTransaction(NamedTuple):
    """A transactional id, as a broker lists it."""

    transactional_id: str
    producer_id: int
    #: Kafka's name: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort...
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id, as its coordinator describes it."""

    transactional_id: str
    #: Kafka's name, as in `ListedTransaction`.
    state: str
    producer: ProducerIdAndEpoch
    timeout_ms: int
    #: Milliseconds since 1970 by the coordinator's clock; None where nothing is open.
    start_time_ms: int | None
    partitions: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        """Whether records are being written, or have been, and no end was asked for."""
        return self.state == ONGOING


class OpenProducer(NamedTuple):
    """A producer with an open transaction in a partition, as the partition's leader has it."""

    producer: ProducerIdAndEpoch
    #: The offset of the transaction's first record there: no read_committed consumer gets past it.
    start_offset: int
    #: Of its last batch, in milliseconds since 1970.
    last_timestamp_ms: int


class TransactionEnd(NamedTuple):
    """Which transaction is to end, and how."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    committed: bool
    #: The rules that it was begun by; None where that is not known: those of the cluster.
    transaction_version: int | None = None


class EndOutcome(Enum):
    """What a coordinator answered for good."""

    #: It ends, or has ended, as it was asked to.
    ENDED = "ended"
    #: No open transaction of that producer id and epoch is there: it has ended one way or the
    #: other, and the coordinator cannot tell which (or it never began).
    REFUSED = "refused"


#: Answers by which a coordinator says that exactly this transaction is not open any more. Measured:
#: INVALID_TXN_STATE for one that was ended the other way, that timed out (4.3), or wrote nothing;
#: PRODUCER_FENCED, or INVALID_PRODUCER_EPOCH, when the id has moved on, or timed out (3.9);
#: INVALID_PRODUCER_ID_MAPPING when the id has expired or has another producer id.
REFUSALS: Final = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)


class EndAnswer(NamedTuple):
    """How the end of a transaction was answered."""

    outcome: EndOutcome
    error_code: int = ErrorCode.NONE
    #: What the producer is known by from now on; None: what it was known by (TV1).
    producer: ProducerIdAndEpoch | None = None

    def __str__(self) -> str:
        """Name the code where there is one: it is what an operator looks for."""
        if self.error_code == ErrorCode.NONE:
            return self.outcome.value
        return f"{self.outcome.value} with {error_name(self.error_code)}"


def end_answer(
    error_code: int, what: str, *, producer: ProducerIdAndEpoch | None = None
) -> EndAnswer:
    """Read a final error code of EndTxn, and what came with it.

    Raises BrokerError for one that says nothing about the transaction: a missing right, say.
    """
    if error_code == ErrorCode.NONE:
        return EndAnswer(EndOutcome.ENDED, producer=producer)
    if error_code in REFUSALS:
        return EndAnswer(EndOutcome.REFUSED, error_code)
    raise broker_error(error_code, what)


#: Answers by which a producer learns that another one has its transactional id now.
FENCED: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


def producer_error(error_code: int, what: str) -> KafkaError:
    """Make the error of a producer's request: ProducerFencedError or BrokerError."""
    error = broker_error(error_code, what)
    if error_code in FENCED:
        return ProducerFencedError(str(error), code=error.code, name=error.name)
    return error
