"""What the answer about a partition does to its state."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_kafka_sink.consumer.fetch.completed_fetches import (
    CompletedFetch,
    FetchOutcome,
    initialize,
)
from spark_kafka_sink.consumer.subscription.partition_state import (
    EARLIEST,
    NONE,
    FetchPosition,
    LeaderAndEpoch,
)
from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
from spark_kafka_sink.errors import BrokerError, CorruptRecordError, OffsetOutOfRangeError
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import EpochEndOffset, PartitionData
from spark_kafka_sink.record.record_batch import uncompressed_transactional_batch

TP0, TP1 = TopicPartition("t", 0), TopicPartition("t", 1)
LEADER = LeaderAndEpoch(Node(1, "h", 9092), 7)
NOW, LEASE = 100.0, 300.0
#: Without jitter.
BACKOFF = ExponentialBackoff(0.1, 0.4, SimpleNamespace(uniform=lambda *_: 1.0))
REPLICA = 67
BATCH = bytes(
    uncompressed_transactional_batch(
        b"record",
        timestamp_ms=0,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        record_count=1,
    )
)

_E = ErrorCode


def consumer(reset=EARLIEST) -> SubscriptionState:
    """Return two partitions, each at offset 10."""
    state = SubscriptionState(reset)
    state.assign_from_user([TP0, TP1])
    for partition in (TP0, TP1):
        state.seek_validated(partition, FetchPosition(10, 6, LEADER))
    return state


@pytest.fixture
def state() -> SubscriptionState:
    return consumer()


def answer(
    error: int = 0, *, offset: int = 10, is_replica: bool = False, **fields: object
) -> CompletedFetch:
    data = PartitionData(
        partition_index=0,
        error_code=error,
        **{"high_watermark": -1, "records": None, **fields},
    )
    return CompletedFetch(TP0, data, offset, "Fetch from offset 10 at h:9092 (id 1)", is_replica)


def apply(fetch: CompletedFetch, state: SubscriptionState) -> FetchOutcome:
    return initialize(fetch, state, NOW, replica_lease=LEASE, backoff=BACKOFF)


@pytest.mark.parametrize("records", [None, b"", BATCH, BATCH + BATCH[:20]])
def test_an_answer_without_error_can_be_read(state, records):
    """The offsets of the log are stored, and the order of the partitions stays."""
    fetch = answer(high_watermark=100, last_stable_offset=90, log_start_offset=5, records=records)

    assert FetchOutcome.READ is apply(fetch, state)
    assert fetch.is_initialized
    assert 90 == state.partition_lag(TP0, is_committed=False)
    assert 80 == state.partition_lag(TP0, is_committed=True)
    assert 5 == state.partition_lead(TP0)
    assert 10 == state.valid_offset(TP0)
    assert (TP0, TP1) == state.assigned_partitions


def test_unknown_offsets_do_not_replace_known_ones(state):
    """A broker that does not know an offset sends -1; 0 is an offset."""
    apply(answer(high_watermark=100, last_stable_offset=90, log_start_offset=5), state)

    apply(answer(high_watermark=-1, last_stable_offset=-1, log_start_offset=-1), state)
    unchanged = (
        state.partition_end_offset(TP0, is_committed=False),
        state.partition_end_offset(TP0, is_committed=True),
        state.partition_lead(TP0),
    )
    apply(answer(high_watermark=0, last_stable_offset=0, log_start_offset=0), state)

    assert (100, 90, 5) == unchanged
    assert 0 == state.partition_end_offset(TP0, is_committed=False)
    assert 0 == state.partition_end_offset(TP0, is_committed=True)
    assert 10 == state.partition_lead(TP0)


def test_a_recommended_follower_is_used_for_the_lease(state):
    """The follower that the leader names is read from until the lease ends (KIP-392)."""
    assert FetchOutcome.READ is apply(answer(preferred_read_replica=0), state)

    assert 0 == state.preferred_read_replica(TP0, NOW + LEASE)
    assert state.preferred_read_replica(TP0, NOW + LEASE + 1) is None


def test_an_answer_of_the_follower_leaves_it_in_use(state):
    """An answer that names no follower changes nothing about it."""
    state.update_preferred_read_replica(TP0, REPLICA, NOW + 1)

    apply(answer(is_replica=True), state)

    assert REPLICA == state.preferred_read_replica(TP0, NOW)


@pytest.mark.parametrize("offset", [9, 11])
def test_an_answer_for_another_position_is_dropped(state, offset):
    """After a seek, nothing of an older answer is used."""
    fetch = answer(offset=offset, high_watermark=100, preferred_read_replica=REPLICA)

    assert FetchOutcome.DROP is apply(fetch, state)
    assert not fetch.is_initialized
    assert state.partition_end_offset(TP0, is_committed=False) is None
    assert state.preferred_read_replica(TP0, NOW) is None


@pytest.mark.parametrize("error", [_E.NONE, _E.TOPIC_AUTHORIZATION_FAILED, _E.OFFSET_OUT_OF_RANGE])
@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.assign_from_user([TP1]),
        lambda state: state.request_offset_reset(TP0),
        lambda state: state.seek_unvalidated(TP0, FetchPosition(10, 6, LEADER)),
    ],
    ids=["unassigned", "reset", "in validation"],
)
def test_without_a_valid_position_an_answer_is_dropped(error, change):
    """Even a fatal error does not matter for a partition that is not being read."""
    state = consumer(NONE)
    change(state)

    assert FetchOutcome.DROP is apply(answer(error), state)


@pytest.mark.parametrize(
    "error",
    [
        _E.NOT_LEADER_OR_FOLLOWER,
        _E.REPLICA_NOT_AVAILABLE,
        _E.KAFKA_STORAGE_ERROR,
        _E.FENCED_LEADER_EPOCH,
        _E.OFFSET_NOT_AVAILABLE,
        _E.UNKNOWN_TOPIC_OR_PARTITION,
        _E.UNKNOWN_TOPIC_ID,
        _E.INCONSISTENT_TOPIC_ID,
    ],
    ids=lambda code: code.name,
)
@pytest.mark.parametrize("offset", [10, 11])
def test_errors_about_the_leader_refresh_the_metadata(state, error, offset):
    """The follower is given up, and the partition is fetched after the others, wherever it is."""
    state.update_preferred_read_replica(TP0, REPLICA, NOW + 1)

    assert FetchOutcome.REFRESH is apply(answer(error, offset=offset), state)
    assert state.preferred_read_replica(TP0, NOW) is None
    assert (TP1, TP0) == state.assigned_partitions
    assert 10 == state.valid_offset(TP0)


@pytest.mark.parametrize(
    "error", [_E.UNKNOWN_LEADER_EPOCH, _E.UNKNOWN_SERVER_ERROR], ids=lambda code: code.name
)
def test_errors_that_pass_are_retried(state, error):
    """The partition is fetched again, from the same broker, after the others."""
    state.update_preferred_read_replica(TP0, REPLICA, NOW + 1)

    assert FetchOutcome.RETRY is apply(answer(error), state)
    assert REPLICA == state.preferred_read_replica(TP0, NOW)
    assert (TP1, TP0) == state.assigned_partitions


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (_E.TOPIC_AUTHORIZATION_FAILED, "Grant this user READ on the topic"),
        (_E.CORRUPT_MESSAGE, "Check the disk"),
        (_E.INVALID_REQUEST, ""),
        (999, "UNKNOWN_CODE_999"),
    ],
)
@pytest.mark.parametrize("is_replica", [False, True])
def test_other_errors_are_raised(state, error, advice, is_replica):
    """The error names the partition, the request and the remedy; the position stays."""
    with pytest.raises(BrokerError, match=r"^t-0: Fetch from offset 10 at h:9092") as caught:
        apply(answer(error, is_replica=is_replica), state)

    assert error == caught.value.code
    assert advice in str(caught.value)
    assert 10 == state.valid_offset(TP0)
    assert (TP1, TP0) == state.assigned_partitions


def test_an_offset_out_of_range_is_reset(state):
    """The position is dropped in favor of that of auto.offset.reset."""
    assert FetchOutcome.RESET is apply(answer(_E.OFFSET_OUT_OF_RANGE), state)
    assert EARLIEST == state.requested_reset(TP0)
    assert state.position(TP0) is None


def waits(state: SubscriptionState) -> list[float]:
    """Return how long each of five resets waits, if each finds a position the log lacks."""
    found = []
    for _ in range(5):
        assert FetchOutcome.RESET is apply(answer(_E.OFFSET_OUT_OF_RANGE), state)
        due = [0.0, 0.1, 0.2, 0.4]
        found.append(next(s for s in due if TP0 in state.partitions_needing_reset(NOW + s)))
        state.seek_validated(TP0, FetchPosition(10, 6, LEADER))
    return found


def test_resets_to_an_offset_out_of_range_wait_longer_and_longer(state):
    """The first reset comes at once; each that leads to the same error again, after a back-off."""
    assert [0.0, 0.1, 0.2, 0.4, 0.4] == waits(state)


def test_an_offset_in_range_ends_the_back_off_of_resets(state):
    """Once the log has had a position, the next reset comes at once again."""
    waits(state)
    assert FetchOutcome.READ is apply(answer(), state)
    assert [0.0, 0.1, 0.2, 0.4, 0.4] == waits(state)


def test_an_offset_out_of_range_is_an_error_without_a_reset():
    """With auto.offset.reset=none, the error says so, and the position stays."""
    state = consumer(NONE)

    with pytest.raises(OffsetOutOfRangeError) as caught:
        apply(answer(_E.OFFSET_OUT_OF_RANGE), state)

    assert {TP0: 10} == caught.value.offsets
    assert 10 == state.valid_offset(TP0)
    assert (TP1, TP0) == state.assigned_partitions


@pytest.mark.parametrize("reset", [EARLIEST, NONE], ids=str)
def test_an_old_offset_out_of_range_is_ignored(reset):
    """After a seek, the answer about the offset before it neither resets nor raises."""
    state = consumer(reset)

    assert FetchOutcome.DROP is apply(answer(_E.OFFSET_OUT_OF_RANGE, offset=9), state)
    assert 10 == state.valid_offset(TP0)


@pytest.mark.parametrize("is_still_preferred", [False, True])
def test_a_follower_may_not_have_an_offset_that_the_leader_has(is_still_preferred):
    """Out of range at a follower, the partition is read from its leader."""
    state = consumer(NONE)
    if is_still_preferred:
        state.update_preferred_read_replica(TP0, REPLICA, NOW + 1)

    assert FetchOutcome.RETRY is apply(answer(_E.OFFSET_OUT_OF_RANGE, is_replica=True), state)
    assert state.preferred_read_replica(TP0, NOW) is None
    assert 10 == state.valid_offset(TP0)


def test_a_log_that_diverges_is_validated(state):
    """The position waits until its leader says where the log was truncated."""
    fetch = answer(diverging_epoch=EpochEndOffset(epoch=6, end_offset=0), high_watermark=100)

    assert FetchOutcome.VALIDATE is apply(fetch, state)
    assert state.awaits_validation(TP0)
    assert 10 == state.position(TP0).offset
    assert not fetch.is_initialized


def test_a_position_without_epochs_cannot_diverge(state):
    """Without a known epoch there is nothing to validate, and reading goes on."""
    state.seek(TP0, 10)

    fetch = answer(diverging_epoch=EpochEndOffset(epoch=6, end_offset=0))

    assert FetchOutcome.READ is apply(fetch, state)


@pytest.mark.parametrize("size", [1, 16, 17, len(BATCH) - 1])
def test_bytes_without_a_complete_batch_are_an_error(state, size):
    """A first batch always comes whole, so there would be no progress without it (KIP-74)."""
    fetch = answer(records=BATCH[:size])

    with pytest.raises(CorruptRecordError, match=r"^t-0: Fetch from offset 10 .* complete batch"):
        apply(fetch, state)

    assert not fetch.is_initialized


def test_malformed_bytes_are_left_to_their_reader(state):
    """Whether a batch is intact is found when it is read, so that the error can name its offset."""
    fetch = answer(records=bytes(len(BATCH)))

    assert FetchOutcome.READ is apply(fetch, state)
