"""Whatever happens to requests and responses, a broker reads exactly what a client wants."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.consumer.fetch.fetch_sessions import (
    FetchSession,
    PartitionToFetch,
    SessionRequest,
    build_fetch,
    has_topic_ids,
    read_fetch,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.codec import decode, encode_bytes
from spark_kafka_sink.protocol.messages.fetch import FetchRequest, FetchResponse
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from tests.support.consumer.session_broker import Event, ModelBroker

PARTITIONS = [TopicPartition(topic, index) for topic in ("foo", "bar") for index in range(3)]

wanted_partitions = st.dictionaries(
    st.sampled_from(PARTITIONS), st.tuples(st.integers(0, 2), st.integers(0, 1))
)
#: The current ids of both topics; 0 for an unknown one.
topic_ids = st.sampled_from([(1, 2), (1, 2), (1, 2), (3, 2), (1, 0), (0, 0)])
exchanges = st.lists(
    st.tuples(
        wanted_partitions,
        topic_ids,
        st.sampled_from([*[Event.ANSWERED] * 5, *Event]),
    ),
    max_size=12,
)


def send(
    broker: ModelBroker, asked: SessionRequest, versions: NodeApiVersions, event: Event
) -> tuple[FetchResponse, bool]:
    """Return the response to a request, and whether topic ids were used."""
    request, version = build_fetch(
        asked,
        versions,
        is_committed=False,
        max_bytes=1000,
        min_bytes=1,
        max_wait_ms=500,
        rack="",
    )
    received = decode(FetchRequest, encode_bytes(request, version), version)
    response = broker.receive(received, version, event)
    return decode(FetchResponse, encode_bytes(response, version), version), version >= 13


@given(exchanges, st.sampled_from([11, 12, 17]))
def test_a_broker_reads_exactly_what_is_wanted(steps, highest):
    """A broker that accepts a request reads the wanted partitions, and no others."""
    versions = NodeApiVersions({ApiKey.FETCH: (4, highest)}, {})
    broker, session = ModelBroker(), FetchSession()
    # Those whose first response was lost, or that were to be closed while the client was throttled.
    unknown_sessions = 0
    began_by_ids = False
    for wanted, ids, event in steps:
        partitions = {
            place: PartitionToFetch(UUID(int=ids[place.topic == "bar"]), offset, epoch, -1, 100)
            for place, (offset, epoch) in wanted.items()
        }
        asked = session.next_request(partitions, uses_topic_ids=has_topic_ids(versions))
        assert partitions == asked.partitions
        if event is Event.LOST:
            session.failed()
            continue
        response, by_ids = send(broker, asked, versions, event)
        if event is Event.UNANSWERED:
            session.failed()
            unknown_sessions += 1
            continue
        accepted = session.answered(response, asked.topic_names)
        if response.error_code:
            # It has lost the session, or the client has begun or ceased to know a topic id.
            assert not asked.is_full
            assert event is Event.SESSION_LOST or by_ids != began_by_ids
        elif response.throttle_time_ms:
            unknown_sessions += 1
        else:
            assert {
                ("" if by_ids else place.topic, each.topic_id if by_ids else ZERO_UUID, place[1]): (
                    each.offset,
                    each.leader_epoch,
                )
                for place, each in partitions.items()
            } == {
                place: (each.fetch_offset, each.current_leader_epoch)
                for place, each in broker.reads.items()
            }
            assert read_fetch(response, asked.topic_names).keys() <= partitions.keys()
        assert accepted == (not response.error_code and not response.throttle_time_ms)
        if asked.is_full:
            began_by_ids = by_ids
    last = session.close_request()
    if last is not None:
        send(broker, last, versions, Event.ANSWERED)
    assert len(broker.sessions) <= unknown_sessions
