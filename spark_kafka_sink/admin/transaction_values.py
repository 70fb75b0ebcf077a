"""What brokers report about transactions, and the answers to ending one (KIP-98, KIP-664)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.errors import KafkaError, ProducerFencedError
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error, error_name

if TYPE_CHECKING:
    from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

ONGOING: Final = "Ongoing"
#: The states by which transactions can be listed (Java's `TransactionState`, without UNKNOWN).
TRANSACTION_STATES: Final = (
    *(ONGOING, "PrepareAbort", "PrepareCommit", "CompleteAbort", "CompleteCommit", "Empty"),
    "PrepareEpochFence",
)
#: Errors from which a producer learns that another one has taken over its transactional id.
FENCED: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


class TransactionListing(NamedTuple):
    """A transactional id in a list.

    `transactional_id` is its name; `producer_id` is that of its last producer.

    >>> settings = {"bootstrap.servers": "localhost:9092", "transactional.id": "orders-1"}
    >>> with KafkaProducer(settings) as producer:
    ...     producer.init_transactions()
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     [(transactional_id, _, state)] = admin.list_transactions()
    >>> transactional_id, state
    ('orders-1', 'Empty')
    """

    transactional_id: str
    producer_id: int
    #: The state's name in Kafka: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit,
    #: CompleteAbort...
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id and its last transaction.

    >>> settings = {"bootstrap.servers": "localhost:9092", "transactional.id": "orders-1"}
    >>> with (
    ...     AdminClient({"bootstrap.servers": "localhost:9092"}) as admin,
    ...     KafkaProducer(settings) as producer,
    ... ):
    ...     producer.init_transactions()
    ...     producer.begin_transaction()
    ...     metadata = producer.send("orders", b"a book").result(timeout=30)
    ...     transaction = admin.describe_transactions(["orders-1"])["orders-1"]
    ...     producer.abort_transaction()
    >>> transaction.state, transaction.partitions
    ('Ongoing', (TopicPartition(topic='orders', partition=0),))
    """

    #: The id.
    transactional_id: str
    #: The state's name in Kafka, as in `TransactionListing`.
    state: str
    #: The producer id and epoch of its last producer.
    producer: ProducerIdAndEpoch
    #: The time after which the coordinator aborts an open transaction.
    timeout_ms: int
    #: Milliseconds since 1970 by the coordinator's clock; None if no transaction is open.
    start_time_ms: int | None
    #: Those that the open transaction has written to.
    partitions: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open and its end has not been requested."""
        return self.state == ONGOING


class OpenProducer(NamedTuple):
    """A producer with an open transaction in a partition, as the partition's leader reports it."""

    producer: ProducerIdAndEpoch
    #: The offset of the transaction's first record there; read_committed consumers do not get past
    #: it.
    start_offset: int
    #: The timestamp of its last batch, in milliseconds since 1970.
    last_timestamp_ms: int


class TransactionEnd(NamedTuple):
    """The transaction to end, and how to end it."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    committed: bool
    #: The transaction version with which it was begun; if None (unknown), the cluster's is used.
    transaction_version: int | None = None


class EndOutcome(Enum):
    """The final answer of a coordinator."""

    #: The transaction is ending, or has ended, as requested.
    ENDED = "ended"
    #: There is no open transaction of that producer id and epoch: it was committed or aborted, and
    #: the coordinator cannot tell which (or it never began).
    REFUSED = "refused"


#: Errors with which a coordinator says that exactly this transaction is no longer open. Measured:
#: INVALID_TXN_STATE for one that was ended the other way, that timed out (4.3), or wrote nothing;
#: PRODUCER_FENCED, or INVALID_PRODUCER_EPOCH, if the id has moved on, or timed out (3.9);
#: INVALID_PRODUCER_ID_MAPPING if the id has expired or has another producer id.
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
    """The answer to a request to end a transaction."""

    outcome: EndOutcome
    error_code: int = ErrorCode.NONE
    #: The producer id and epoch from now on; None if they are unchanged (TV1).
    producer: ProducerIdAndEpoch | None = None

    def __str__(self) -> str:
        """Return the outcome with the name of its error, if any, which operators search for."""
        if self.error_code == ErrorCode.NONE:
            return self.outcome.value
        return f"{self.outcome.value} with {error_name(self.error_code)}"


def end_answer(
    error_code: int, what: str, *, producer: ProducerIdAndEpoch | None = None
) -> EndAnswer:
    """Convert a final error code of EndTxn, and what came with it, into an answer.

    Raises BrokerError for an error that says nothing about the transaction, such as a missing
    authorization.
    """
    if error_code == ErrorCode.NONE:
        return EndAnswer(EndOutcome.ENDED, producer=producer)
    if error_code in REFUSALS:
        return EndAnswer(EndOutcome.REFUSED, error_code)
    raise broker_error(error_code, what)


def producer_error(error_code: int, what: str) -> KafkaError:
    """Return the error of a producer's request: ProducerFencedError or BrokerError."""
    error = broker_error(error_code, what)
    if error_code in FENCED:
        return ProducerFencedError(str(error), code=error.code, name=error.name)
    return error
