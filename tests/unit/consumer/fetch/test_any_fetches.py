"""Whatever users, brokers and the network do, records are returned in order, none twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from hypothesis import event, given
from hypothesis import strategies as st

from spark_kafka_sink.consumer.fetch.completed_fetches import (
    CompletedFetch,
    FetchBuffer,
    FetchOutcome,
    initialize,
)
from spark_kafka_sink.consumer.fetch.fetch_sessions import (
    FetchSession,
    SessionRequest,
    build_fetch,
    read_fetch,
)
from spark_kafka_sink.consumer.fetch.fetcher import plan_fetches
from spark_kafka_sink.consumer.subscription.partition_state import (
    EARLIEST,
    FetchPosition,
    LeaderAndEpoch,
)
from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.metadata import MetadataSnapshot, TopicMetadata
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchResponse, PartitionData
from spark_kafka_sink.record.record_batch import uncompressed_transactional_batch
from tests.support.consumer.session_broker import Event, ModelBroker, Place

if TYPE_CHECKING:
    from collections.abc import Collection

TOPIC_ID = UUID(int=7)
PARTITIONS = [TopicPartition("t", index) for index in range(5)]
NODES = {each: Node(each, "h", each) for each in (1, 2)}
SNAPSHOT = MetadataSnapshot(nodes=NODES, topics={"t": TopicMetadata("t", TOPIC_ID, 0, ())})
VERSIONS = NodeApiVersions({ApiKey.FETCH: (4, 17)}, {})
#: The first offset of each log, and the one after its last record.
BACKOFF = ExponentialBackoff(0.1, 1.0)
START, END = 3, 12
#: The number of records in a response at most.
CHUNK = 4
#: The content does not matter here: a response has the records up to CHUNK or END.
BATCH = bytes(
    uncompressed_transactional_batch(
        b"",
        timestamp_ms=0,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        record_count=1,
    )
)


class LogBroker(ModelBroker):
    """A broker that leads some of the partitions."""

    def __init__(self, leads: set[TopicPartition]) -> None:
        """Start as the leader of these."""
        super().__init__()
        self.leads = leads

    def read(self, place: Place, wanted: FetchPartition) -> PartitionData:
        """Return records or an error."""
        error = ErrorCode.NONE
        if TopicPartition("t", place[2]) not in self.leads:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif not START <= wanted.fetch_offset <= END:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        has_records = not error and wanted.fetch_offset < END
        return PartitionData(
            partition_index=place[2],
            error_code=error,
            high_watermark=END,
            records=BATCH if has_records else None,
        )

    def news(self, answers: dict[Place, PartitionData]) -> dict[Place, PartitionData]:
        """Return those with records or an error."""
        return {place: each for place, each in answers.items() if each.records or each.error_code}


class Pending(NamedTuple):
    """A request in flight, with its response; None if there will be none."""

    request: SessionRequest
    response: FetchResponse | None


class Consumer:
    """A consumer with two brokers; the partitions are at first divided between them."""

    def __init__(self) -> None:
        self.state = SubscriptionState(EARLIEST)
        self.buffer = FetchBuffer()
        self.brokers = {1: LogBroker(set(PARTITIONS[:3])), 2: LogBroker(set(PARTITIONS[3:]))}
        self.sessions = {1: FetchSession(), 2: FetchSession()}
        self.in_flight: dict[int, Pending] = {}
        #: The next offset that must be returned of each partition.
        self.expected: dict[TopicPartition, int] = {}
        self.assign(PARTITIONS)

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Assign partitions; new ones begin at the start of their log."""
        self.state.assign_from_user(partitions)
        for partition in self.state.initializing_partitions:
            self.seek(partition, START)
        self.expected = {each: self.expected[each] for each in self.state.assigned_partitions}
        self.buffer.retain(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from another offset."""
        if self.state.is_assigned(partition):
            self.state.seek_validated(
                partition, FetchPosition(offset, current_leader=self.leader(partition))
            )
            self.expected[partition] = offset

    def pause(self, partition: TopicPartition) -> None:
        """Stop returning its records, if it is assigned."""
        if self.state.is_assigned(partition):
            self.state.pause(partition)

    def resume(self, partition: TopicPartition) -> None:
        """Resume it, if it is assigned."""
        if self.state.is_assigned(partition):
            self.state.resume(partition)

    def leader(self, partition: TopicPartition) -> LeaderAndEpoch:
        """Return the leader, as new metadata name it."""
        [node_id] = [each for each, broker in self.brokers.items() if partition in broker.leads]
        return LeaderAndEpoch(NODES[node_id], 0)

    def move(self, partition: TopicPartition) -> None:
        """Make the other broker lead a partition; the metadata say so when they are refreshed."""
        one, other = (self.brokers[each].leads for each in (1, 2))
        source, target = (one, other) if partition in one else (other, one)
        source.remove(partition)
        target.add(partition)

    def send(self, what_happens: Event) -> None:
        """Send what is planned."""
        plan = plan_fetches(
            self.state,
            SNAPSHOT,
            0.0,
            is_unavailable=lambda _: False,
            in_flight=self.in_flight,
            buffered=self.buffer.buffered,
            max_partition_bytes=100,
        )
        assert not plan.needs_metadata
        for node, partitions in plan.requests.items():
            assert not self.buffer.buffered & partitions.keys()
            asked = self.sessions[node.node_id].next_request(partitions, uses_topic_ids=True)
            request, version = build_fetch(
                asked,
                VERSIONS,
                is_committed=False,
                max_bytes=1000,
                min_bytes=1,
                max_wait_ms=500,
                rack="",
            )
            response = None
            if what_happens is not Event.LOST:
                response = self.brokers[node.node_id].receive(request, version, what_happens)
            if what_happens is Event.UNANSWERED:
                response = None
            self.in_flight[node.node_id] = Pending(asked, response)

    def deliver(self, node_id: int) -> None:
        """Handle the response of a broker, if one is due."""
        pending = self.in_flight.pop(node_id, None)
        if pending is None:
            return
        asked, response = pending
        session = self.sessions[node_id]
        if response is None:
            session.failed()
        elif session.answered(response, asked.topic_names):
            for partition, data in read_fetch(response, asked.topic_names).items():
                offset = asked.partitions[partition].offset
                fetch = CompletedFetch(partition, data, offset, "Fetch", is_replica=False)
                self.buffer.add(fetch)

    def poll(self, most: int) -> None:
        """Return records, and check that they are the next ones."""
        while most and (fetch := self.buffer.next(self.state)) is not None:
            partition = fetch.partition
            if not fetch.is_initialized:
                self.initialize(fetch)
                continue
            size = CHUNK if fetch.data.records else 0
            first = self.expected[partition]
            assert first == fetch.next_offset == self.state.valid_offset(partition)
            # Responses end at multiples of CHUNK.
            end = min(first - first % CHUNK + size, END)
            last = min(first + most, end) if size else first
            most -= last - first
            self.expected[partition] = fetch.next_offset = last
            position = self.state.position(partition)
            assert position is not None
            self.state.set_position(partition, position._replace(offset=last))
            if last >= end or not size:
                self.buffer.remove(fetch)
                self.state.move_to_end(partition)

    def initialize(self, fetch: CompletedFetch) -> None:
        """Handle what a fetch says, except for its records."""
        outcome = initialize(fetch, self.state, 0.0, replica_lease=300.0, backoff=BACKOFF)
        event(outcome.name)
        if outcome is not FetchOutcome.READ:
            self.buffer.remove(fetch)
        if outcome is FetchOutcome.REFRESH:
            for each in self.state.assigned_partitions:
                self.state.maybe_validate_position(each, self.leader(each))
        elif outcome is FetchOutcome.RESET:
            self.seek(fetch.partition, START)


places = st.sampled_from(PARTITIONS)
nodes = st.sampled_from([1, 2])
counts = st.integers(1, 9)
events = st.sampled_from([*[Event.ANSWERED] * 5, *Event])
#: Methods of the consumer, with their arguments.
steps = st.one_of(
    st.tuples(st.just("send"), events),
    st.tuples(st.just("deliver"), nodes),
    st.tuples(st.just("deliver"), nodes),
    st.tuples(st.just("poll"), counts),
    st.tuples(st.just("poll"), counts),
    st.tuples(st.just("pause"), places),
    st.tuples(st.just("resume"), places),
    st.tuples(st.just("move"), places),
    st.tuples(st.just("seek"), places, st.integers(START - 1, END + 1)),
    st.tuples(st.just("assign"), st.lists(places, unique=True)),
)


@given(st.lists(steps, min_size=5, max_size=50))
def test_all_records_are_returned_in_order(script):
    """Each partition goes on where it was, and once nothing fails, all reach their ends."""
    consumer = Consumer()
    for name, *arguments in script:
        getattr(consumer, name)(*arguments)
    for _ in range(30):
        consumer.send(Event.ANSWERED)
        for node_id in NODES:
            consumer.deliver(node_id)
        consumer.poll(100)
    paused = consumer.state.paused_partitions
    assert {END} >= {
        consumer.expected[each] for each in consumer.state.assigned_partitions if each not in paused
    }
