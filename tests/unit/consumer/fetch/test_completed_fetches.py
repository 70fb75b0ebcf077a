"""The buffer of fetches: their order, and what becomes of those that cannot be returned."""

from __future__ import annotations

from uuid import UUID

import pytest

from spark_kafka_sink.consumer.fetch.completed_fetches import CompletedFetch, FetchBuffer
from spark_kafka_sink.consumer.subscription.partition_state import EARLIEST
from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.network.metadata import MetadataSnapshot, TopicMetadata
from spark_kafka_sink.protocol.messages.fetch import PartitionData

TP0, TP1, TP2 = (TopicPartition("t", index) for index in range(3))


@pytest.fixture
def state() -> SubscriptionState:
    """Return three partitions, each at offset 10."""
    state = SubscriptionState(EARLIEST)
    state.assign_from_user([TP0, TP1, TP2])
    for partition in (TP0, TP1, TP2):
        state.seek(partition, 10)
    return state


@pytest.fixture
def buffer() -> FetchBuffer:
    return FetchBuffer()


def fetch(
    partition: TopicPartition,
    offset: int = 10,
    *,
    is_initialized: bool = True,
    records: bytes | None = None,
) -> CompletedFetch:
    data = PartitionData(partition_index=partition[1], high_watermark=10, records=records)
    return CompletedFetch(
        partition, data, offset, "Fetch", is_replica=False, is_initialized=is_initialized
    )


def test_fetches_are_used_in_their_order(buffer, state):
    """A fetch stays the next one until it is removed."""
    first, second = fetch(TP1), fetch(TP0)
    buffer.add(first)
    buffer.add(second)

    assert first is buffer.next(state) is buffer.next(state)
    assert 2 == len(buffer)
    buffer.remove(first)
    assert second is buffer.next(state)
    buffer.remove(second)
    assert buffer.next(state) is None
    assert 0 == len(buffer)


def test_fetches_of_a_topic_that_was_created_again_are_dropped(buffer):
    """Those of the topic as it is now, and of brokers without ids, stay."""
    old, new, unknown = (fetch(each) for each in (TP0, TP1, TP2))
    old.topic_id, new.topic_id = UUID(int=1), UUID(int=2)
    for each in (old, new, unknown):
        buffer.add(each)
    topics = {"t": TopicMetadata("t", UUID(int=2), 0, ())}
    buffer.drop_other_topics(MetadataSnapshot(topics=topics))
    assert {TP1, TP2} == buffer.buffered


def test_an_empty_buffer_has_no_fetch(buffer, state):
    """A new buffer has nothing to read."""
    assert buffer.next(state) is None
    assert not buffer.buffered
    assert not buffer.has_available(state)


def test_a_fetch_is_removed_only_if_it_is_still_there(buffer, state):
    """Removing a fetch that was dropped meanwhile leaves the others, even if they look the same."""
    gone, other = fetch(TP0), fetch(TP0)
    buffer.add(gone)
    buffer.retain([])
    buffer.add(other)

    buffer.remove(gone)

    assert other is buffer.next(state)


def test_a_fetch_of_a_paused_partition_is_kept(buffer, state):
    """The other fetches are used first, and the paused one once its partition is resumed."""
    paused, other = fetch(TP0), fetch(TP1)
    buffer.add(paused)
    buffer.add(other)
    state.pause(TP0)

    assert other is buffer.next(state)
    buffer.remove(other)
    assert buffer.next(state) is None
    assert {TP0} == buffer.buffered
    state.resume(TP0)
    assert paused is buffer.next(state)


def test_if_all_partitions_are_paused_nothing_is_returned(buffer, state):
    """All fetches are kept, in their order."""
    fetches = [fetch(partition) for partition in (TP1, TP0, TP2)]
    for each in fetches:
        buffer.add(each)
        state.pause(each.partition)

    assert buffer.next(state) is None
    assert {TP0, TP1, TP2} == buffer.buffered
    for each in (TP0, TP1, TP2):
        state.resume(each)
    returned = []
    while (found := buffer.next(state)) is not None:
        returned.append(found)
        buffer.remove(found)
    assert fetches == returned


def test_fetches_at_another_position_are_dropped(buffer, state):
    """A seek drops what was fetched before; what fits the new position is returned."""
    stale, fitting = fetch(TP0), fetch(TP0, 50)
    buffer.add(stale)
    buffer.add(fitting)
    state.seek(TP0, 50)

    assert fitting is buffer.next(state)
    assert 1 == len(buffer)


def test_a_fetch_of_a_paused_partition_is_dropped_after_a_seek(buffer, state):
    """After a seek during a pause, what was fetched is dropped when the partition is resumed."""
    buffer.add(fetch(TP0))
    state.pause(TP0)
    state.seek(TP0, 50)

    assert buffer.next(state) is None
    assert 1 == len(buffer)
    state.resume(TP0)
    assert buffer.next(state) is None
    assert 0 == len(buffer)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.assign_from_user([TP1]),
        lambda state: state.request_offset_reset(TP0),
        lambda state: state.mark_pending_revocation([TP0]),
    ],
    ids=["unassigned", "reset", "revoked"],
)
def test_fetches_of_partitions_that_are_not_fetchable_are_dropped(buffer, state, change):
    """Records of a partition that was lost or has no position are not returned."""
    other = fetch(TP1)
    buffer.add(fetch(TP0))
    buffer.add(other)

    change(state)

    assert other is buffer.next(state)
    assert {TP1} == buffer.buffered


def test_a_fetch_that_was_read_in_part_continues_at_the_position(buffer, state):
    """The offset of the next record decides, not that of the request."""
    read = fetch(TP0)
    buffer.add(read)
    state.seek(TP0, 12)
    read.next_offset = 12

    assert read is buffer.next(state)


@pytest.mark.parametrize("offset", [10, 50])
def test_a_fetch_is_initialized_even_if_its_partition_is_paused_or_elsewhere(buffer, state, offset):
    """A fetch may report an error, which does not depend on the position."""
    new = fetch(TP0, offset, is_initialized=False)
    buffer.add(new)
    buffer.add(fetch(TP1))
    state.pause(TP0)

    assert new is buffer.next(state)


def test_the_buffered_partitions_are_those_with_a_fetch(buffer):
    """A partition is buffered until its last fetch is removed."""
    fetches = [fetch(TP0), fetch(TP1), fetch(TP1)]
    for each in fetches:
        buffer.add(each)

    assert {TP0, TP1} == buffer.buffered
    buffer.remove(fetches[1])
    assert {TP0, TP1} == buffer.buffered
    buffer.remove(fetches[2])
    assert {TP0} == buffer.buffered


def test_fetches_of_other_partitions_can_be_dropped(buffer, state, monkeypatch):
    """After a change of the assignment, only the fetches of its partitions are kept."""
    drained = []
    monkeypatch.setattr(CompletedFetch, "drain", lambda self: drained.append(self.partition))
    kept = fetch(TP1)
    for each in (fetch(TP0), kept, fetch(TP2)):
        buffer.add(each)

    buffer.retain({TP1})

    assert {TP1} == buffer.buffered
    assert [TP0, TP2] == drained
    assert kept is buffer.next(state)
    buffer.retain(())
    assert 0 == len(buffer)


def test_a_fetch_is_available_if_its_partition_is_fetchable(buffer, state):
    """Fetches of paused partitions alone are not worth a look."""
    buffer.add(fetch(TP0))
    state.pause(TP0)

    assert not buffer.has_available(state)
    buffer.add(fetch(TP1))
    assert buffer.has_available(state)


@pytest.mark.parametrize(("records", "expected"), [(None, b""), (b"abc", b"abc")])
def test_the_records_are_bytes(records, expected):
    """An answer without records has an empty buffer of them."""
    assert expected == fetch(TP0, records=records).records
