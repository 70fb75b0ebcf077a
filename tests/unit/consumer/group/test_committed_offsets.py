"""The requests that commit and fetch the offsets of a group, in each version."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.consumer.group.offset_commits import (
    FetchedOffsets,
    commit_request,
    highest_fetch_version,
    read_fetched,
)
from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.protocol.codec import decode, encode_bytes
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.group_offsets import commit_codes, offset_fetch_request
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

fetch_request = partial(offset_fetch_request, require_stable=True)
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
IDS = {"t": UUID(int=1), "u": UUID(int=2)}
NAMES = {topic_id: name for name, topic_id in IDS.items()}
MEMBER = ConsumerGroupMetadata("g", 7, "m")
OFFSETS = {
    T0: OffsetAndMetadata(5, 3, "x"),
    U0: OffsetAndMetadata(0, -1, ""),
    T1: OffsetAndMetadata(2**40, 0, None),
}


def sent(message, version):
    """Return the message that arrives when it is sent in a version."""
    return decode(type(message), encode_bytes(message, version), version)


def committed(partition, offset, epoch, metadata):
    """Return the part of a request about one partition."""
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset,
        committed_leader_epoch=epoch,
        committed_metadata=metadata,
    )


def test_an_old_commit_has_neither_epochs_nor_ids():
    """Version 2 names topics; the leader epochs are dropped."""
    request, max_version = commit_request(MEMBER, OFFSETS)

    assert 9 == max_version
    assert OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=7,
        member_id="m",
        topics=(
            OffsetCommitRequestTopic(
                name="t", partitions=(committed(0, 5, -1, "x"), committed(1, 2**40, -1, None))
            ),
            OffsetCommitRequestTopic(name="u", partitions=(committed(0, 0, -1, ""),)),
        ),
    ) == sent(request, 2)


def test_a_new_commit_has_ids_and_no_names():
    """Version 10 has topic ids only, with epochs and the group.instance.id."""
    request, max_version = commit_request(MEMBER._replace(group_instance_id="i"), OFFSETS, IDS)

    assert max_version is None
    assert OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=7,
        member_id="m",
        group_instance_id="i",
        topics=(
            OffsetCommitRequestTopic(
                topic_id=IDS["t"],
                partitions=(committed(0, 5, 3, "x"), committed(1, 2**40, 0, None)),
            ),
            OffsetCommitRequestTopic(topic_id=IDS["u"], partitions=(committed(0, 0, -1, ""),)),
        ),
    ) == sent(request, 10)


def test_a_commit_with_ids_can_be_sent_to_a_broker_that_wants_names():
    """Both are in the request, and the version decides which of them is sent."""
    request, _ = commit_request(MEMBER, OFFSETS, IDS)
    assert ["t", "u"] == [topic.name for topic in sent(request, 9).topics]


@pytest.mark.parametrize("ids", [None, {}, {"t": UUID(int=1)}, {**IDS, "u": UUID(int=0)}])
def test_one_topic_without_an_id_makes_all_go_by_name(ids):
    """Version 10 could not request a topic without its id."""
    assert 9 == commit_request(MEMBER, OFFSETS, ids)[1]
    assert 9 == highest_fetch_version(OFFSETS, ids)


def test_all_topics_with_ids_may_go_by_id():
    """Then the newest version can be used."""
    assert commit_request(MEMBER, OFFSETS, IDS)[1] is None
    assert highest_fetch_version(OFFSETS, IDS) is None


def test_offsets_can_be_committed_from_outside_the_group():
    """A consumer with assigned partitions has no member id and no generation."""
    request, _ = commit_request(ConsumerGroupMetadata("g"), {T0: OffsetAndMetadata(1)})
    assert (-1, "", None) == (
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
    )


def test_a_static_member_cannot_commit_at_an_old_broker():
    """The coordinator could not fence it, so the request is not sent without the id."""
    request, _ = commit_request(MEMBER._replace(group_instance_id="i"), OFFSETS)
    assert "i" == sent(request, 7).group_instance_id
    with pytest.raises(UnsupportedVersionError):
        encode_bytes(request, 6)


def test_a_negative_offset_is_refused():
    """A broker would accept it, and the group would have no offset afterwards."""
    with pytest.raises(ValueError, match=r"t-1: an offset of -1 cannot be committed"):
        commit_request(MEMBER, {T0: OffsetAndMetadata(0), T1: OffsetAndMetadata(-1)})


@pytest.mark.parametrize("version", [2, 9, 10])
def test_each_committed_partition_has_its_code(version):
    """Version 10 has topic ids, whose names are those of the request."""
    response = OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponseTopic(
                name=name,
                topic_id=topic_id,
                partitions=(
                    OffsetCommitResponsePartition(partition_index=0, error_code=code),
                    OffsetCommitResponsePartition(partition_index=1),
                ),
            )
            for name, topic_id, code in [("t", IDS["t"], 0), ("u", IDS["u"], 28)]
        )
    )
    expected = {T0: 0, T1: 0, U0: 28, TopicPartition("u", 1): 0}
    assert expected == dict(commit_codes(sent(response, version), NAMES))


def test_ids_that_were_not_sent_are_left_out():
    """The name of a topic that was not requested is not known."""
    commit = OffsetCommitResponse(
        topics=(
            OffsetCommitResponseTopic(
                topic_id=UUID(int=9),
                partitions=(OffsetCommitResponsePartition(partition_index=0),),
            ),
        )
    )
    topic = OffsetFetchResponseTopics(
        topic_id=UUID(int=9), partitions=(fetched((0, 1, -1, "", 0)),)
    )
    group = OffsetFetchResponseGroup(group_id="g", topics=(topic,))

    assert {} == dict(commit_codes(commit, NAMES))
    assert {} == dict(commit_codes(commit))
    assert FetchedOffsets(0, {}, {}) == read_fetched(OffsetFetchResponse(groups=(group,)), NAMES)


# --- fetching


def test_an_old_fetch_is_about_the_group_of_the_request():
    """Up to version 7 there is one group; stable offsets cannot be required before that."""
    request = fetch_request("g", [T0, U0, T1], 1, member_id="m", member_epoch=4)

    assert OffsetFetchRequest(
        group_id="g",
        topics=(
            OffsetFetchRequestTopic(name="t", partition_indexes=(0, 1)),
            OffsetFetchRequestTopic(name="u", partition_indexes=(0,)),
        ),
    ) == sent(request, 1)


@pytest.mark.parametrize(("version", "is_stable"), [(6, False), (7, True), (8, True), (10, True)])
def test_stable_offsets_are_required_where_that_is_possible(version, is_stable):
    """As in Java, an old broker returns offsets that an open transaction may change."""
    request = fetch_request("g", [T0], version, topic_ids=IDS)
    assert is_stable == sent(request, version).require_stable
    unstable = fetch_request("g", [T0], version, topic_ids=IDS, require_stable=False)
    assert not sent(unstable, version).require_stable


def test_a_fetch_with_a_list_of_groups_names_topics():
    """Version 8 has no member yet."""
    request = fetch_request("g", [T0, T1], 8, member_id="m", member_epoch=4, topic_ids=IDS)
    topics = (OffsetFetchRequestTopics(name="t", partition_indexes=(0, 1)),)

    assert OffsetFetchRequest(
        groups=(OffsetFetchRequestGroup(group_id="g", topics=topics),), require_stable=True
    ) == sent(request, 8)


def test_a_new_fetch_has_the_member_and_ids():
    """Version 10 has topic ids only."""
    request = fetch_request("g", [T0, T1], 10, member_id="m", member_epoch=4, topic_ids=IDS)
    topics = (OffsetFetchRequestTopics(topic_id=IDS["t"], partition_indexes=(0, 1)),)

    assert OffsetFetchRequest(
        groups=(
            OffsetFetchRequestGroup(group_id="g", member_id="m", member_epoch=4, topics=topics),
        ),
        require_stable=True,
    ) == sent(request, 10)


def test_a_member_of_a_classic_group_does_not_name_itself():
    """The coordinator checks only members of the new protocol."""
    (group,) = sent(fetch_request("g", [T0], 9), 9).groups
    assert (None, -1) == (group.member_id, group.member_epoch)


def fetched(row, part=OffsetFetchResponsePartitions):
    """Return the part of a response about one partition."""
    partition, offset, epoch, metadata, code = row
    return part(
        partition_index=partition,
        committed_offset=offset,
        committed_leader_epoch=epoch,
        metadata=metadata,
        error_code=code,
    )


ROWS = ((0, 5, 3, "x", 0), (1, -1, -1, "", 0), (2, -1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT))


def test_an_old_answer_is_read():
    """Up to version 7 the offsets are in the response itself."""
    rows = tuple(fetched(row, part=OffsetFetchResponsePartition) for row in ROWS)
    topic = OffsetFetchResponseTopic(name="t", partitions=rows)
    expected = FetchedOffsets(
        0, {T0: OffsetAndMetadata(5, 3, "x"), T1: None}, {TopicPartition("t", 2): 88}
    )
    assert expected == read_fetched(sent(OffsetFetchResponse(topics=(topic,)), 7))
    assert (
        OffsetAndMetadata(5, -1, "x")
        == (read_fetched(sent(OffsetFetchResponse(topics=(topic,)), 1)).offsets[T0])
    )


@pytest.mark.parametrize("version", [8, 10])
def test_a_new_answer_is_read(version):
    """From version 8 on they are in its only group, whose topics have names or ids."""
    rows = tuple(fetched(row) for row in ROWS)
    topic = OffsetFetchResponseTopics(name="t", topic_id=IDS["t"], partitions=rows)
    group = OffsetFetchResponseGroup(group_id="g", topics=(topic,))
    expected = FetchedOffsets(
        0, {T0: OffsetAndMetadata(5, 3, "x"), T1: None}, {TopicPartition("t", 2): 88}
    )
    assert expected == read_fetched(sent(OffsetFetchResponse(groups=(group,)), version), NAMES)


def test_the_error_of_the_group_is_read():
    """It is in the response, or in the group from version 8 on."""
    group = OffsetFetchResponseGroup(group_id="g", topics=(), error_code=16)
    assert FetchedOffsets(16, {}, {}) == read_fetched(OffsetFetchResponse(groups=(group,)))
    assert FetchedOffsets(16, {}, {}) == read_fetched(OffsetFetchResponse(error_code=16))


def test_an_answer_about_several_groups_is_refused():
    """One group was requested, so the answer belongs to another request."""
    groups = tuple(OffsetFetchResponseGroup(group_id=it, topics=()) for it in "gh")
    with pytest.raises(DecodeError, match=r"has 2 groups"):
        read_fetched(OffsetFetchResponse(groups=groups))


PARTITIONS = st.builds(TopicPartition, st.sampled_from("tu"), st.integers(0, 3))
COMMITTED = st.builds(
    OffsetAndMetadata,
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.none() | st.text(max_size=5),
)


@given(
    offsets=st.dictionaries(PARTITIONS, COMMITTED),
    version=st.integers(6, 10),
    generation_id=st.integers(-1, 9),
)
def test_everything_that_is_committed_arrives(offsets, version, generation_id):
    """From version 6 on, no part of an offset is lost, whatever topics are called by."""
    request, _ = commit_request(ConsumerGroupMetadata("g", generation_id, "m"), offsets, IDS)
    arrived = sent(request, version)

    assert generation_id == arrived.generation_id_or_member_epoch
    assert offsets == {
        TopicPartition(topic.name or NAMES[topic.topic_id], it.partition_index): OffsetAndMetadata(
            it.committed_offset, it.committed_leader_epoch, it.committed_metadata
        )
        for topic in arrived.topics
        for it in topic.partitions
    }


@given(partitions=st.sets(PARTITIONS), version=st.integers(1, 10))
def test_everything_that_is_fetched_is_requested(partitions, version):
    """Each partition is in the request once, in every version."""
    arrived = sent(fetch_request("g", partitions, version, topic_ids=IDS), version)
    topics = arrived.topics if version < 8 else arrived.groups[0].topics

    assert sorted(partitions) == sorted(
        TopicPartition(topic.name or NAMES[topic.topic_id], partition)
        for topic in topics
        for partition in topic.partition_indexes
    )
