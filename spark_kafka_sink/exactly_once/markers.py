"""Verify that ended transactions have their markers in the partitions; write the missing ones.

A coordinator answers EndTxn before the markers are written. If it finds a partition without a
leader, it may never write that marker (Kafka 4.3: KAFKA-20734). The transaction's records there are
then neither committed nor aborted: read_committed consumers wait for them, and the next marker of
the same producer id in that partition, commit or abort, decides about them. So a driver that ends a
transaction checks its markers before it relies on them:

- If the last stable offset is past the records, all is well. This takes one request per partition.
- Otherwise some producer's transaction is open there, possibly for long. DescribeProducers reports
  which one. Without the permission it needs (READ), the marker is assumed missing.
- A missing marker is written by a transaction without records that ends the same way, with the
  epoch that the producer uses next: one higher with transaction version 2, else the same one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.model import TRANSACTION_V2, ProducerIdAndEpoch, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from spark_kafka_sink.admin.driver_client import DriverClient
    from spark_kafka_sink.admin.transaction_values import EndAnswer, TransactionEnd
    from spark_kafka_sink.exactly_once.ledger import Budget

logger = logging.getLogger(__name__)

#: Seconds to wait for markers, which are usually written within moments, before finding out which
#: are missing.
PATIENCE: Final = 0.1
#: The number of checks before a missing marker is considered lost.
MAX_CHECKS: Final = 20
#: The number of attempts to write missing markers: a partition may lose its leader again.
_REPAIRS: Final = 3


class Ended(NamedTuple):
    """A transaction that its coordinator has acknowledged as ended as requested."""

    #: The requested end; its producer wrote the records.
    end: TransactionEnd
    #: The producer id and epoch that the producer uses next.
    after: ProducerIdAndEpoch
    #: For each partition it wrote to, the offset after its last record.
    written: Mapping[TopicPartition, int]


def next_epoch(end: TransactionEnd, answered: ProducerIdAndEpoch | None) -> ProducerIdAndEpoch:
    """Return the producer id and epoch that a producer uses after an end.

    `answered` is what the coordinator's answer contained; None if it contained none.
    """
    if answered is not None:
        return answered
    if end.transaction_version is None or end.transaction_version < TRANSACTION_V2:
        return end.producer
    return ProducerIdAndEpoch(end.producer.producer_id, end.producer.epoch + 1)


def ensure_markers(admin: DriverClient, ended: Sequence[Ended], budget: Budget) -> list[Ended]:
    """Write the missing markers of ended transactions.

    Returns the transactions that still have records without a marker after that, usually because
    their producer has moved on to a later epoch. Raises KafkaTimeoutError if a partition has no
    leader until the budget is used up.
    """
    checks = 0
    pending: Sequence[Ended] = ended
    while held := _held(admin, pending, budget):
        missing, unknown = _missing(admin, pending, held, budget)
        checks += 1
        if checks > MAX_CHECKS + _REPAIRS:
            return [transaction for transaction, _ in missing]
        if checks > MAX_CHECKS:
            for transaction, partitions in missing:
                answer = _write(admin, transaction, partitions, budget)
                logger.warning(
                    "Kafka has lost the transaction marker of %s in %s (KAFKA-20734), so it is "
                    "written again; the coordinator's answer: %s",
                    transaction.end.transactional_id,
                    ", ".join(map(str, partitions)),
                    answer,
                )
        for transaction, partitions in unknown:
            # Harmless if the marker exists. Whether it worked cannot be checked afterwards either.
            _write(admin, transaction, partitions, budget)
        pending = [transaction for transaction, _ in missing]
    return []


def _write(
    admin: DriverClient, transaction: Ended, partitions: Sequence[TopicPartition], budget: Budget
) -> EndAnswer:
    return admin.write_markers(
        transaction.end._replace(producer=transaction.after),
        partitions,
        timeout=budget.left("writing transaction markers"),
    )


def _held(
    admin: DriverClient, ended: Sequence[Ended], budget: Budget
) -> Collection[TopicPartition]:
    """Return the partitions where a transaction is open below the end of these transactions."""
    behind: dict[TopicPartition, int] = {}
    for transaction in ended:
        for partition, offset in transaction.written.items():
            behind[partition] = max(offset, behind.get(partition, offset))
    if not behind:
        return ()
    return admin.wait_until_stable(
        behind, patience=PATIENCE, timeout=budget.left("waiting for transaction markers")
    )


_Places: TypeAlias = "list[tuple[Ended, list[TopicPartition]]]"


def _missing(
    admin: DriverClient, ended: Sequence[Ended], held: Collection[TopicPartition], budget: Budget
) -> tuple[_Places, _Places]:
    """Find the partitions that have records of these transactions but no marker.

    The second result holds the partitions whose open producers this user may not list.
    """
    open_in: dict[TopicPartition, dict[int, int]] = {}
    unknown = set()
    for partition in held:
        try:
            producers = admin.open_producers(
                partition, timeout=budget.left("looking for open producers")
            )
        except BrokerError as error:
            logger.info(
                "could not list the producers with open transactions in %s: %s", partition, error
            )
            unknown.add(partition)
        else:
            open_in[partition] = {
                open_producer.producer.producer_id: open_producer.producer.epoch
                for open_producer in producers
            }

    def is_missing(transaction: Ended, partition: TopicPartition) -> bool:
        # A later transaction of the same producer (a higher epoch) is legitimately open.
        producer = transaction.end.producer
        epoch = open_in.get(partition, {}).get(producer.producer_id)
        return epoch is not None and epoch <= producer.epoch

    def select(is_one: Callable[[Ended, TopicPartition], bool]) -> _Places:
        selected = [
            (
                transaction,
                [partition for partition in transaction.written if is_one(transaction, partition)],
            )
            for transaction in ended
        ]
        return [(transaction, partitions) for transaction, partitions in selected if partitions]

    return select(is_missing), select(lambda _, partition: partition in unknown)
