"""The driver's side of an exactly-once write, built on `exactly_once.TwoPhaseCommit`.

- The process keeps its connections, and what it has read of the ledger, from one step to the next:
  Spark runs the steps in long-lived Python workers, and a stream plans and commits every batch.
  Each step fences the ledger before it reads further, so stale state is never relied upon.
- A step that fails discards that state.
- The first step of a process checks that every broker can be reached and is new enough, creates a
  missing ledger, and checks that brokers allow the transaction timeout, all before any task runs.
  A step after the tasks leaves that out: it must not fail because a broker restarts.
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import BrokerError, ConfigError
from spark_kafka_sink.exactly_once.ledger.ledger import Ledger, ensure_ledger_topic
from spark_kafka_sink.exactly_once.ledger.transactional_ids import ledger_id
from spark_kafka_sink.exactly_once.two_phase_commit import TwoPhaseCommit
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.spark.idle_cache import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark_kafka_sink.admin.driver_client import DriverClient
    from spark_kafka_sink.config.exactly_once_options import ExactlyOnceOptions
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.exactly_once.points import Point

#: The number of prefixes whose connections are kept.
_MAX_KEPT: Final = 8
_NEEDS_3_0: Final = (
    "deliveryGuarantee=exactly_once requires Apache Kafka 3.0 or later: upgrade the brokers, or "
    "use deliveryGuarantee=at_least_once"
)
_AUTHORIZATION_FAILED: Final = "AUTHORIZATION_FAILED"
_INVALID_TIMEOUT: Final = ErrorCode.INVALID_TRANSACTION_TIMEOUT.name


class _Kept:
    """The connections and ledger state that a process keeps for one prefix on one cluster."""

    def __init__(self, config: ProducerConfig, options: ExactlyOnceOptions) -> None:
        from spark_kafka_sink.admin.driver_client import DriverClient

        self.admin = DriverClient(config)
        self.ledger = Ledger(
            self.admin, topic=options.ledger_topic, prefix=options.prefix, clock=time.time
        )
        self.is_checked = False


_kept: dict[tuple[object, ...], _Kept] = {}
os.register_at_fork(after_in_child=_kept.clear)


@contextmanager
def two_phase_commit(
    config: ProducerConfig,
    options: ExactlyOnceOptions,
    *,
    observe: Callable[[Point], None] = lambda _: None,
    checks: bool = True,
) -> Iterator[TwoPhaseCommit]:
    """Yield the protocol for one step, after checking the cluster if `checks`.

    Raises ConfigError if the cluster does not allow the settings, UnsupportedVersionError if its
    brokers are too old, and NetworkError or KafkaTimeoutError if one cannot be reached.
    """
    key = (fingerprint(config), options.ledger_topic, options.prefix)
    kept = _kept.pop(key, None) or _Kept(config, options)
    try:
        with _naming_missing_permissions(options):
            if checks and not kept.is_checked:
                _check(kept.admin, config, options)
                kept.is_checked = True
            yield TwoPhaseCommit(
                kept.admin,
                kept.ledger,
                clock=time.time,
                timer=time.monotonic,
                name=f"{platform.node()}, process {os.getpid()}",
                observe=observe,
            )
    except BaseException:
        kept.admin.close()
        raise
    _kept[key] = kept
    while len(_kept) > _MAX_KEPT:
        _kept.pop(next(iter(_kept))).admin.close()


def step_timeout(config: ProducerConfig) -> float:
    """Return how long a step may take, in seconds."""
    return config.delivery_timeout_ms / 1000


def _check(admin: DriverClient, config: ProducerConfig, options: ExactlyOnceOptions) -> None:
    from spark_kafka_sink.admin.cluster_check import LEADERS_SECONDS

    # As with a producer's transactional calls, but long enough to find that addresses are wrong.
    timeout = min(step_timeout(config), max(config.max_block_ms / 1000, LEADERS_SECONDS))
    # This comes first, before anything is created or written.
    admin.require_transaction_apis(_NEEDS_3_0, timeout=timeout)
    ensure_ledger_topic(
        admin,
        options.ledger_topic,
        replication_factor=options.ledger_replication_factor,
        timeout=timeout,
    )
    try:
        # A writer may lack the right to read brokers' settings, but the coordinator checks this.
        admin.init_producer_id(
            ledger_id(options.prefix),
            transaction_timeout_ms=options.transaction_timeout_ms,
            timeout=timeout,
        )
    except BrokerError as error:
        if error.name != _INVALID_TIMEOUT:
            raise
        raise ConfigError(
            f"kafka.transaction.timeout.ms is {options.transaction_timeout_ms}, which exceeds the "
            "brokers' transaction.max.timeout.ms: lower it to that limit, as long as it remains "
            "longer than a stage of this write takes; otherwise raise the brokers' limit"
        ) from None


@contextmanager
def _naming_missing_permissions(options: ExactlyOnceOptions) -> Iterator[None]:
    try:
        yield
    except BrokerError as error:
        if not error.name.endswith(_AUTHORIZATION_FAILED):
            raise
        raise BrokerError(
            f"{error}. An exactly-once write requires WRITE and DESCRIBE on transactional ids that "
            f"begin with '{options.prefix}.', and READ, WRITE, DESCRIBE and DESCRIBE_CONFIGS on "
            f"ledgerTopic {options.ledger_topic!r}, with CREATE if that topic does not exist",
            code=error.code,
            name=error.name,
        ) from error
