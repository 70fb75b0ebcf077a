"""What a consumer does with the answer about one partition, besides reading its records.

This is FetchCollector.initialize of Kafka. `fetch_rules` has the table of error codes; an error
that Kafka calls unexpected is handled as `fetch_action` says. Here is what the actions do to the
positions of the consumer.
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.consumer.fetch.fetch_rules import ADVICE, FetchAction, fetch_action
from spark_kafka_sink.errors import CorruptRecordError, OffsetOutOfRangeError
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.record.record_batch import split_record_batches

if TYPE_CHECKING:
    from spark_kafka_sink.consumer.fetch.completed_fetches import CompletedFetch
    from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
    from spark_kafka_sink.network.base.exponential_backoff import ExponentialBackoff
    from spark_kafka_sink.protocol.primitives import Buffer

_NO_REPLICA: Final = -1


class FetchOutcome(Enum):
    """What became of an answer; unless it is READ, the answer has been used."""

    #: Its records can be read, if it has any.
    READ = auto()
    #: It is not wanted any more: the partition has another position, or none.
    DROP = auto()
    #: The partition is fetched again, after a refresh of the metadata that the caller requests.
    REFRESH = auto()
    #: The partition is fetched again.
    RETRY = auto()
    #: The position was dropped; auto.offset.reset finds another.
    RESET = auto()
    #: The log was truncated, and the position waits for validation, which finds out where.
    VALIDATE = auto()


def initialize(
    fetch: CompletedFetch,
    subscriptions: SubscriptionState,
    now: float,
    *,
    replica_lease: float,
    backoff: ExponentialBackoff,
) -> FetchOutcome:
    """Apply an answer to the state of its partition, and return what is to be done.

    `now` is in seconds. `replica_lease` is metadata.max.age.ms in seconds: for so long the follower
    that a leader recommends is used (KIP-392). A partition with an error is fetched after all
    others. If the log does not even have the position that a reset has just found, the next reset
    waits for `backoff`; Java asks the broker again at once.

    Raise BrokerError for an error that no retry ends, OffsetOutOfRangeError if the log does not
    have the position and auto.offset.reset is `none`, and CorruptRecordError if there are bytes but
    no complete batch. The position is then unchanged.

    Source: FetchCollector.initialize, KIP-320, KIP-392.
    """
    partition, data = fetch.partition, fetch.data
    if data.error_code:
        subscriptions.move_to_end(partition)
    if not subscriptions.has_valid_position(partition):
        return FetchOutcome.DROP
    match fetch_action(data.error_code):
        case FetchAction.READ:
            return _succeeded(fetch, subscriptions, now + replica_lease)
        case FetchAction.REFRESH:
            subscriptions.clear_preferred_read_replica(partition)
            return FetchOutcome.REFRESH
        case FetchAction.WAIT:
            return FetchOutcome.RETRY
        case FetchAction.LOOK_UP_BOUNDS:
            return _out_of_range(fetch, subscriptions, now, backoff)
        case FetchAction.FATAL:
            code = data.error_code
            raise broker_error(code, f"{partition}: {fetch.what}", ADVICE.get(code))


def _succeeded(
    fetch: CompletedFetch, subscriptions: SubscriptionState, lease_end: float
) -> FetchOutcome:
    partition, data = fetch.partition, fetch.data
    position = subscriptions.position(partition)
    if position is None or position.offset != fetch.next_offset:
        return FetchOutcome.DROP
    if data.diverging_epoch.end_offset >= 0 and position.can_be_validated:
        subscriptions.seek_unvalidated(partition, position)
        return FetchOutcome.VALIDATE
    if _is_incomplete(fetch.records):
        raise CorruptRecordError(
            f"{partition}: {fetch.what} returned bytes without a complete batch, although a first "
            "batch always comes whole (KIP-74)"
        )
    subscriptions.note_in_range(partition)
    subscriptions.update_offsets(
        partition,
        high_watermark=_known(data.high_watermark),
        last_stable_offset=_known(data.last_stable_offset),
        log_start_offset=_known(data.log_start_offset),
    )
    if data.preferred_read_replica != _NO_REPLICA:
        subscriptions.update_preferred_read_replica(
            partition, data.preferred_read_replica, lease_end
        )
    fetch.is_initialized = True
    return FetchOutcome.READ


def _out_of_range(
    fetch: CompletedFetch, subscriptions: SubscriptionState, now: float, backoff: ExponentialBackoff
) -> FetchOutcome:
    replica = subscriptions.clear_preferred_read_replica(fetch.partition)
    if replica is not None or fetch.is_replica:
        # It may lag behind: the leader decides.
        return FetchOutcome.RETRY
    if subscriptions.valid_offset(fetch.partition) != fetch.next_offset:
        return FetchOutcome.DROP
    if not subscriptions.has_default_reset:
        raise OffsetOutOfRangeError({fetch.partition: fetch.next_offset})
    subscriptions.request_offset_reset(fetch.partition)
    failed = subscriptions.count_out_of_range(fetch.partition) - 1
    if failed:
        retry_at = now + backoff.delay(failed - 1)
        subscriptions.set_next_allowed_retry([fetch.partition], retry_at)
    return FetchOutcome.RESET


def _is_incomplete(records: Buffer) -> bool:
    """Return whether there are bytes, but not of a whole batch."""
    # A malformed batch is an error of whoever reads it, who can name its offset.
    with suppress(CorruptRecordError):
        return memoryview(records).nbytes > 0 and next(split_record_batches(records), None) is None
    return False


def _known(offset: int) -> int | None:
    return offset if offset >= 0 else None
