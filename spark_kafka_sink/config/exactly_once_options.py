"""The options of an exactly-once write, and the checks of their combinations.

Options that have a meaning only in such a write are errors in any other: a user who sets
`transactionalIdPrefix` and forgets `deliveryGuarantee` would wrongly rely on exactly-once delivery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.config.producer_config import ProducerConfig

AT_LEAST_ONCE: Final = "at_least_once"
EXACTLY_ONCE: Final = "exactly_once"
DEFAULT_LEDGER_TOPIC: Final = "spark-kafka-sink-ledger"
DEFAULT_RETENTION_MS: Final = 7 * 24 * 60 * 60 * 1000
#: The broker's default for transaction.max.timeout.ms, since a stage often takes longer than the
#: Java producer's default of 60 seconds.
DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 900_000
#: Options that have no meaning in other writes.
_EXACTLY_ONCE_ONLY: Final = (
    "transactionalIdPrefix",
    "ledgerTopic",
    "ledgerReplicationFactor",
    "writeId",
    "writeIdRetentionMs",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactlyOnceOptions:
    """The options of an exactly-once write."""

    prefix: str
    ledger_topic: str
    #: -1 for the cluster's default.
    ledger_replication_factor: int
    #: None for a stream, and for a job whose next run counts as a new write.
    write_id: str | None
    write_id_retention_ms: int
    transaction_timeout_ms: int


def exactly_once_options(
    values: Mapping[str, Any],
    given: frozenset[str],
    kafka: Mapping[str, object],
    producer: ProducerConfig,
    topic: str | None,
) -> ExactlyOnceOptions | None:
    """Return the options of an exactly-once write; None for at_least_once.

    `values` holds all options of the sink, `given` the names of those that the user set, and
    `kafka` the producer settings that the user set. Raises ConfigError for contradictory options.
    """
    if values["deliveryGuarantee"] == AT_LEAST_ONCE:
        superfluous = [name for name in _EXACTLY_ONCE_ONLY if name in given]
        if superfluous:
            raise ConfigError(
                f"{superfluous[0]} is for exactly-once writes: set deliveryGuarantee=exactly_once, "
                "or remove it"
            )
        if "transaction.timeout.ms" in kafka:
            raise ConfigError(
                "kafka.transaction.timeout.ms is for exactly-once writes: set "
                "deliveryGuarantee=exactly_once, or remove it"
            )
        return None
    if not values["transactionalIdPrefix"]:
        raise ConfigError(
            "deliveryGuarantee=exactly_once requires transactionalIdPrefix: a unique name for this "
            "query or job, the same at every start"
        )
    if not producer.enable_idempotence:
        raise ConfigError(
            "deliveryGuarantee=exactly_once requires kafka.enable.idempotence=true, which requires "
            "kafka.acks=all and kafka.retries greater than 0"
        )
    if topic is not None and topic == values["ledgerTopic"]:
        raise ConfigError("ledgerTopic must not be the topic that rows are written to")
    if "writeIdRetentionMs" in given and not values["writeId"]:
        raise ConfigError(
            "writeIdRetentionMs is for writes with a writeId: set writeId, or remove it"
        )
    timeout_given = "transaction.timeout.ms" in kafka
    return ExactlyOnceOptions(
        prefix=values["transactionalIdPrefix"],
        ledger_topic=values["ledgerTopic"],
        ledger_replication_factor=values["ledgerReplicationFactor"],
        write_id=values["writeId"] or None,
        write_id_retention_ms=values["writeIdRetentionMs"],
        transaction_timeout_ms=(
            producer.transaction_timeout_ms if timeout_given else DEFAULT_TRANSACTION_TIMEOUT_MS
        ),
    )
