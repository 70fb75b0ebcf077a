"""Whether ended transactions have their markers in the partitions, and what to do where not.

A coordinator answers EndTxn before it has markers written, and one that finds a partition without
a leader may leave its marker out for good (Kafka 4.3: KAFKA-20734). What the transaction wrote
there is then neither in nor out: read_committed consumers wait in front of it, and the next end of
the same producer id in that partition, commit or abort, decides about it. So whoever ends a
transaction looks whether its markers are there before it relies on them:

- Where the last stable offset is behind what was written, all is well: one request per partition.
- Where it is not, somebody's transaction is open there, perhaps for long. DescribeProducers tells
  whose. Without the right to ask (READ), the worst is assumed.
- What is missing is put there by a transaction without records that ends likewise, of the epoch by
  which the producer goes on. No later transaction of the id has that epoch, so none can be hit.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from spark_kafka_sink.admin.transaction_values import (
    TRANSACTION_V2,
)
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.model import ProducerIdAndEpoch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from spark_kafka_sink.admin.admin_client import AdminClient
    from spark_kafka_sink.admin.transaction_values import EndAnswer, TransactionEnd
    from spark_kafka_sink.exactly_once.budget import Budget
    from spark_kafka_sink.model import TopicPartition

logger = logging.getLogger(__name__)

#: Seconds to wait for markers, which come within moments, before asking whose are not there.
PATIENCE: Final = 0.1
#: How often to ask before a marker that is not there is taken for lost.
LOOKS: Final = 20
#: How often to write markers that are missing: a partition may lose its leader again.
_REPAIRS: Final = 3


class Ended(NamedTuple):
    """A transaction whose coordinator has said that it ends as it was asked to."""

    #: What was asked for; its producer wrote the records.
    end: TransactionEnd
    #: By what its producer goes on.
    after: ProducerIdAndEpoch
    #: For each partition it wrote to, the offset behind its last record.
    written: Mapping[TopicPartition, int]


def next_epoch(end: TransactionEnd, answered: ProducerIdAndEpoch | None) -> ProducerIdAndEpoch:
    """Tell by what a producer goes on after an end, where the answer did not say it."""
    if answered is not None:
        return answered
    if end.transaction_version is None or end.transaction_version < TRANSACTION_V2:
        return end.producer
    return ProducerIdAndEpoch(end.producer.producer_id, end.producer.epoch + 1)


def see_to_markers(admin: AdminClient, ended: Sequence[Ended], budget: Budget) -> list[Ended]:
    """Have the markers of ended transactions written where they are missing.

    Gives those of which records are still neither in nor out, because their producer has gone on.
    Raises KafkaTimeoutError where a partition has no leader for as long as the budget lasts.
    """
    looks = 0
    unseen: Sequence[Ended] = ended
    while held := _held(admin, unseen, budget):
        missing, untold = _missing(admin, unseen, held, budget)
        looks += 1
        if looks > LOOKS + _REPAIRS:
            return [one for one, _ in missing]
        if looks > LOOKS:
            for one, places in missing:
                answer = _write(admin, one, places, budget)
                logger.warning(
                    "Kafka has lost the marker of %s in %s (KAFKA-20734); writing it was %s",
                    one.end.transactional_id,
                    ", ".join(map(str, places)),
                    answer,
                )
        for one, places in untold:
            # Harmless where it was there, and nobody can tell afterwards either.
            _write(admin, one, places, budget)
        unseen = [one for one, _ in missing]
    return []


def _write(
    admin: AdminClient, one: Ended, places: Sequence[TopicPartition], budget: Budget
) -> EndAnswer:
    return admin.write_markers(
        one.end._replace(producer=one.after),
        places,
        timeout=budget.left("writing transaction markers"),
    )


def _held(admin: AdminClient, ended: Sequence[Ended], budget: Budget) -> Collection[TopicPartition]:
    """Name the partitions where somebody's transaction is open before the end of these."""
    behind: dict[TopicPartition, int] = {}
    for one in ended:
        for place, offset in one.written.items():
            behind[place] = max(offset, behind.get(place, offset))
    if not behind:
        return ()
    return admin.wait_until_stable(
        behind, patience=PATIENCE, timeout=budget.left("waiting for transaction markers")
    )


_Places: TypeAlias = "list[tuple[Ended, list[TopicPartition]]]"


def _missing(
    admin: AdminClient, ended: Sequence[Ended], held: Collection[TopicPartition], budget: Budget
) -> tuple[_Places, _Places]:
    """Find the partitions that have records of these transactions and no marker.

    Apart from them those that do not tell, to this user, whose transactions are open.
    """
    open_in: dict[TopicPartition, dict[int, int]] = {}
    untold = set()
    for place in held:
        try:
            found = admin.open_producers(place, timeout=budget.left("looking for open producers"))
        except BrokerError as error:
            logger.info("whose transactions are open in %s is not told: %s", place, error)
            untold.add(place)
        else:
            open_in[place] = {one.producer.producer_id: one.producer.epoch for one in found}

    def is_missing(one: Ended, place: TopicPartition) -> bool:
        # A later transaction of the same producer is open by right.
        producer = one.end.producer
        epoch = open_in.get(place, {}).get(producer.producer_id)
        return epoch is not None and epoch <= producer.epoch

    def select(is_one: Callable[[Ended, TopicPartition], bool]) -> _Places:
        found = [(one, [place for place in one.written if is_one(one, place)]) for one in ended]
        return [(one, places) for one, places in found if places]

    return select(is_missing), select(lambda _, place: place in untold)
