"""The validation of positions by leader epochs: requests, answers and their effect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.consumer.offsets.offset_requests import (
    EPOCH_RULES,
    EpochAction,
    EpochAnswers,
    EpochEnd,
    complete_validation,
    epoch_action,
    epoch_request,
    positions_by_leader,
    read_epochs,
    supports_validation,
    truncation_error,
    unauthorized_error,
)
from spark_kafka_sink.consumer.subscription.partition_state import (
    EARLIEST,
    NONE,
    FetchPosition,
    LeaderAndEpoch,
    LogTruncation,
)
from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
from spark_kafka_sink.model import Node, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
from spark_kafka_sink.protocol.codec import decode, encode_bytes
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)

_A, _E = EpochAction, ErrorCode
ONE, TWO = Node(1, "one", 9092), Node(2, "two", 9092)
T = [TopicPartition("t", number) for number in range(4)]
U0 = TopicPartition("u", 0)


def position(offset, epoch=3, leader=ONE, leader_epoch=5):
    """Return a position that `leader` is to confirm."""
    return FetchPosition(offset, epoch, LeaderAndEpoch(leader, leader_epoch))


def sent(message, version):
    """Return the message that arrives when it is sent in a version."""
    return decode(type(message), encode_bytes(message, version), version)


def asked(partition, epoch, leader_epoch):
    """Return the part of a request about one partition."""
    return OffsetForLeaderPartition(
        partition=partition, current_leader_epoch=leader_epoch, leader_epoch=epoch
    )


def answer(**topics):
    """Return a response with (partition, code, epoch, end offset) by topic."""
    return OffsetForLeaderEpochResponse(
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic,
                partitions=tuple(
                    EpochEndOffset(
                        partition=partition, error_code=code, leader_epoch=epoch, end_offset=end
                    )
                    for partition, code, epoch, end in rows
                ),
            )
            for topic, rows in topics.items()
        )
    )


@pytest.mark.parametrize(
    ("versions", "expected"),
    [({}, False), ({23: (0, 2)}, False), ({23: (0, 3)}, True), ({23: (2, 4)}, True)],
)
def test_only_a_broker_that_needs_no_right_to_the_cluster_is_asked(versions, expected):
    """Kafka 2.1 and 2.2 have version 2; the oldest of all have no such request."""
    assert expected is supports_validation(NodeApiVersions(versions, {}))


def test_each_leader_is_asked_about_its_partitions():
    """A position whose leader is not known waits for metadata."""
    positions = {
        T[0]: position(1),
        T[1]: position(2, leader=TWO),
        T[2]: position(3),
        T[3]: position(4, leader=None),
    }
    assert {
        ONE: {T[0]: positions[T[0]], T[2]: positions[T[2]]},
        TWO: {T[1]: positions[T[1]]},
    } == positions_by_leader(positions)


@pytest.mark.parametrize(("version", "replica_id"), [(2, -2), (3, -1), (4, -1)])
def test_a_request_has_both_epochs(version, replica_id):
    """That of the record before the position, and that of the leader, which fences."""
    request = epoch_request(
        {T[0]: position(1, 3), U0: position(2, 0, leader_epoch=-1), T[2]: position(9, 4)}
    )
    assert OffsetForLeaderEpochRequest(
        replica_id=replica_id,
        topics=(
            OffsetForLeaderTopic(topic="t", partitions=(asked(0, 3, 5), asked(2, 4, 5))),
            OffsetForLeaderTopic(topic="u", partitions=(asked(0, 0, -1),)),
        ),
    ) == sent(request, version)


def test_a_position_without_an_epoch_is_not_asked_about():
    """No leader could confirm it."""
    assert () == epoch_request({T[0]: position(1, -1)}).topics


#: Codes and action, by the reason for it.
ROWS = {
    "There is no error": ([_E.NONE], _A.DONE),
    "Another broker may be the leader": (
        [_E.NOT_LEADER_OR_FOLLOWER, _E.LEADER_NOT_AVAILABLE, _E.REPLICA_NOT_AVAILABLE],
        _A.RETRY,
    ),
    "A disk of the leader failed, and another leader is elected": (
        [_E.KAFKA_STORAGE_ERROR],
        _A.RETRY,
    ),
    "The new leader is not ready yet": ([_E.OFFSET_NOT_AVAILABLE], _A.RETRY),
    "The metadata of one side are old": (
        [_E.FENCED_LEADER_EPOCH, _E.UNKNOWN_LEADER_EPOCH, _E.UNKNOWN_TOPIC_OR_PARTITION],
        _A.RETRY,
    ),
    "Retrying gives no right": ([_E.TOPIC_AUTHORIZATION_FAILED], _A.UNAUTHORIZED_TOPIC),
}


@pytest.mark.parametrize("reason", ROWS)
def test_a_row_is_the_reaction(reason):
    """Each row of the table follows from what its code means."""
    codes, action = ROWS[reason]
    assert {action} == {epoch_action(code) for code in codes}


def test_there_is_a_reason_for_every_row():
    """The table has no row that this test does not expect, and the other way around."""
    assert EPOCH_RULES.keys() == {code for codes, _ in ROWS.values() for code in codes}


@pytest.mark.parametrize("code", [_E.UNKNOWN_SERVER_ERROR, _E.INVALID_REQUEST, 999])
def test_other_codes_are_retried(code):
    """A position that is not confirmed is not read from, so nothing is lost by waiting."""
    assert _A.RETRY is epoch_action(code)


def test_answers_are_sorted_by_what_to_do():
    """A partition without an answer is retried, and one that was not requested is ignored."""
    response = answer(
        t=[(0, 0, 2, 40), (1, _E.NOT_LEADER_OR_FOLLOWER, -1, -1), (9, 0, 1, 1)],
        u=[(0, _E.TOPIC_AUTHORIZATION_FAILED, -1, -1)],
        a=[(0, _E.TOPIC_AUTHORIZATION_FAILED, -1, -1)],
    )
    requested = [T[0], T[1], T[2], U0, TopicPartition("a", 0)]
    for version in (2, 4):
        assert EpochAnswers({T[0]: EpochEnd(40, 2)}, (T[1], T[2]), ("a", "u")) == read_epochs(
            sent(response, version), requested
        )


@given(
    rows=st.dictionaries(
        st.integers(0, 5),
        st.tuples(st.sampled_from([0, 6, 29, 999]), st.integers(-1, 9), st.integers(-1, 99)),
    ),
    requested=st.sets(st.builds(TopicPartition, st.just("t"), st.integers(0, 5))),
)
def test_each_requested_partition_has_one_outcome(rows, requested):
    """It is found, retried, or one that the user may not describe."""
    response = answer(t=[(partition, *row) for partition, row in rows.items()])
    answers = read_epochs(sent(response, 4), requested)
    refused = {each for each in requested if rows.get(each.partition, (0,))[0] == 29}

    assert requested == {*answers.found, *answers.retried, *refused}
    assert len(requested) == len(answers.found) + len(answers.retried) + len(refused)
    assert bool(refused) is bool(answers.unauthorized)
    for partition, end in answers.found.items():
        assert (0, end.epoch, end.end_offset) == rows[partition.partition]


# --- the effect on positions


def subscription(reset, offsets):
    """Return a subscription whose positions await validation, and these positions."""
    state = SubscriptionState(reset)
    state.assign_from_user(offsets)
    for partition, offset in offsets.items():
        state.seek_unvalidated(partition, position(offset))
    return state, state.partitions_needing_validation(0.0)


def test_positions_that_the_leader_confirms_are_valid():
    """An end at the position is enough: nothing after it was read."""
    state, requested = subscription(NONE, {T[0]: 40, T[1]: 41})
    response = answer(t=[(0, 0, 3, 40), (1, 0, 3, 99)])

    assert [] == complete_validation(state, requested, read_epochs(response, requested), 7.0)
    assert not state.awaits_validation(T[0])
    assert not state.awaits_validation(T[1])


def test_partitions_without_an_answer_are_asked_about_later():
    """Their positions stay, and the others are valid."""
    state, requested = subscription(EARLIEST, {T[0]: 40, T[1]: 41, U0: 42})
    response = answer(
        t=[(0, 0, 3, 40), (1, _E.FENCED_LEADER_EPOCH, -1, -1)],
        u=[(0, _E.TOPIC_AUTHORIZATION_FAILED, -1, -1)],
    )

    assert [] == complete_validation(state, requested, read_epochs(response, requested), 7.0)
    assert {} == state.partitions_needing_validation(6.9)
    assert {T[1]: requested[T[1]], U0: requested[U0]} == state.partitions_needing_validation(7.0)


def test_a_truncation_is_an_error_without_a_reset():
    """The error has the positions, and the offsets where the leader's logs differ."""
    state, requested = subscription(NONE, {T[0]: 40, T[1]: 41})
    response = answer(t=[(0, 0, 2, 30), (1, 0, -1, -1)])
    truncations = complete_validation(state, requested, read_epochs(response, requested), 7.0)

    assert [
        LogTruncation(T[0], requested[T[0]], OffsetAndMetadata(30, 2)),
        LogTruncation(T[1], requested[T[1]], None),
    ] == truncations
    error = truncation_error(truncations)
    assert {T[0]: 40, T[1]: 41} == error.offsets
    assert {T[0]: OffsetAndMetadata(30, 2)} == error.divergent_offsets


def test_a_truncation_is_resolved_by_a_reset():
    """Reading goes on where the logs differ."""
    state, requested = subscription(EARLIEST, {T[0]: 40})
    answers = read_epochs(answer(t=[(0, 0, 2, 30)]), requested)

    assert [] == complete_validation(state, requested, answers, 7.0)
    assert 30 == state.valid_offset(T[0])


def test_topics_without_a_right_are_named():
    """The error says which right is missing."""
    error = unauthorized_error(("a", "u"))
    assert _E.TOPIC_AUTHORIZATION_FAILED == error.code
    assert str(error).startswith("OffsetForLeaderEpoch for 'a', 'u': ")
    assert str(error).endswith(". Grant this user DESCRIBE on the topic")
