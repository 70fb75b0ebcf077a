"""Every row of the tables of OffsetCommit and OffsetFetch, and the errors that users see."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.consumer.group.classic_membership import ClassicMemberState
from spark_kafka_sink.consumer.group.commit_rules import (
    ADVICE,
    OFFSET_RULES,
    OffsetAction,
    OffsetCall,
    Verdict,
    apply_commit,
    commit_in_generation,
    commit_of_user,
    judge_group,
    judge_partitions,
    not_in_generation,
    offset_action,
    offset_error,
)
from spark_kafka_sink.consumer.group.group_requests import NO_GENERATION, Generation
from spark_kafka_sink.errors import BrokerError, CommitFailedError, RebalanceInProgressError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.consumer.classic_script import ClassicScript

_A, _C, _E, _S = OffsetAction, OffsetCall, ErrorCode, ClassicMemberState
T = [TopicPartition("t", number) for number in range(3)]
U0 = TopicPartition("u", 0)

#: Calls, codes and action, by the reason for it.
ROWS = {
    "There is no error": (list(OffsetCall), [_E.NONE], _A.DONE),
    "The user has no right to the group": (
        [_C.CLASSIC_COMMIT, _C.CONSUMER_COMMIT, _C.CLASSIC_FETCH, _C.CONSUMER_FETCH],
        [_E.GROUP_AUTHORIZATION_FAILED],
        _A.FATAL,
    ),
    "The error is to name all topics that the user has no right to": (
        [
            _C.CLASSIC_COMMIT,
            _C.CONSUMER_COMMIT,
            _C.CLASSIC_FETCH_PARTITION,
            _C.CONSUMER_FETCH_PARTITION,
        ],
        [_E.TOPIC_AUTHORIZATION_FAILED],
        _A.UNAUTHORIZED_TOPIC,
    ),
    "The same offsets are too large again": (
        [_C.CLASSIC_COMMIT, _C.CONSUMER_COMMIT],
        [_E.OFFSET_METADATA_TOO_LARGE, _E.INVALID_COMMIT_OFFSET_SIZE],
        _A.FATAL,
    ),
    "The coordinator is about to be ready": (
        [_C.CLASSIC_COMMIT, _C.CONSUMER_COMMIT, _C.CLASSIC_FETCH, _C.CONSUMER_FETCH],
        [_E.COORDINATOR_LOAD_IN_PROGRESS],
        _A.RETRY,
    ),
    "The broker may not know a new topic yet": (
        [_C.CLASSIC_COMMIT, _C.CONSUMER_COMMIT, _C.CONSUMER_FETCH_PARTITION],
        [_E.UNKNOWN_TOPIC_OR_PARTITION],
        _A.RETRY,
    ),
    "The broker may not know a new topic's id yet": (
        [_C.CONSUMER_COMMIT, _C.CONSUMER_FETCH_PARTITION],
        [_E.UNKNOWN_TOPIC_ID],
        _A.RETRY,
    ),
    "Java does not retry a fetch about a missing topic in a classic group": (
        [_C.CLASSIC_FETCH_PARTITION],
        [_E.UNKNOWN_TOPIC_OR_PARTITION],
        _A.FATAL,
    ),
    "Another broker is the coordinator": (
        [_C.CLASSIC_COMMIT, _C.CONSUMER_COMMIT, _C.CLASSIC_FETCH, _C.CONSUMER_FETCH],
        [_E.COORDINATOR_NOT_AVAILABLE, _E.NOT_COORDINATOR],
        _A.FIND_COORDINATOR,
    ),
    "The coordinator may have lost its place": (
        [_C.CLASSIC_COMMIT, _C.CONSUMER_COMMIT],
        [_E.REQUEST_TIMED_OUT],
        _A.FIND_COORDINATOR,
    ),
    "Another consumer has the group.instance.id": (
        [_C.CLASSIC_COMMIT],
        [_E.FENCED_INSTANCE_ID],
        _A.FENCED,
    ),
    "The generation is valid, but its assignment is not known": (
        [_C.CLASSIC_COMMIT],
        [_E.REBALANCE_IN_PROGRESS],
        _A.REJOIN,
    ),
    "The group is in a later generation, perhaps with this member": (
        [_C.CLASSIC_COMMIT],
        [_E.ILLEGAL_GENERATION],
        _A.REJOIN_AS_MEMBER,
    ),
    "The coordinator has removed the classic member": (
        [_C.CLASSIC_COMMIT],
        [_E.UNKNOWN_MEMBER_ID],
        _A.REJOIN_AS_NEW,
    ),
    "The coordinator has removed the member; its heartbeat lets it join again": (
        [_C.CONSUMER_COMMIT],
        [_E.UNKNOWN_MEMBER_ID],
        _A.REFUSED,
    ),
    "A removed member is no longer told the group's offsets": (
        [_C.CONSUMER_FETCH],
        [_E.UNKNOWN_MEMBER_ID],
        _A.FATAL,
    ),
    "A heartbeat brings the new epoch": (
        [_C.CONSUMER_COMMIT, _C.CONSUMER_FETCH],
        [_E.STALE_MEMBER_EPOCH],
        _A.NEW_EPOCH,
    ),
    "A transaction is about to end": (
        [_C.CLASSIC_FETCH_PARTITION, _C.CONSUMER_FETCH_PARTITION],
        [_E.UNSTABLE_OFFSET_COMMIT],
        _A.RETRY,
    ),
}


@pytest.mark.parametrize("reason", ROWS)
def test_a_row_is_the_reaction(reason):
    """Each row of the tables follows from what its code means for the call."""
    calls, codes, action = ROWS[reason]
    assert {action} == {offset_action(call, code) for call in calls for code in codes}


def test_there_is_a_reason_for_every_row():
    """The tables have no row that this test does not expect, and the other way around."""
    assert {
        (call, code) for calls, codes, _ in ROWS.values() for call in calls for code in codes
    } == {(call, code) for call, rules in OFFSET_RULES.items() for code in rules}


@pytest.mark.parametrize("call", OffsetCall)
def test_codes_beside_the_tables_are_retried_if_kafka_says_so(call):
    """An error that Kafka calls permanent, or that this client does not know, is raised."""
    assert _A.RETRY is offset_action(call, _E.NETWORK_EXCEPTION)
    assert _A.FATAL is offset_action(call, _E.UNKNOWN_SERVER_ERROR)
    assert _A.FATAL is offset_action(call, 999)


def test_the_error_of_a_group_is_about_no_partition():
    """Its verdict has the code and the action alone."""
    assert Verdict(_A.FIND_COORDINATOR, 16) == judge_group(_C.CLASSIC_FETCH, _E.NOT_COORDINATOR)


def test_partitions_without_an_error_are_done():
    """Also if there are none at all."""
    assert Verdict(_A.DONE) == judge_partitions(_C.CLASSIC_COMMIT, {T[0]: 0, T[1]: 0})
    assert Verdict(_A.DONE) == judge_partitions(_C.CLASSIC_COMMIT, {})


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, _E.UNSTABLE_OFFSET_COMMIT, _E.TOPIC_AUTHORIZATION_FAILED], _A.UNAUTHORIZED_TOPIC),
        ([_E.TOPIC_AUTHORIZATION_FAILED, _E.UNKNOWN_SERVER_ERROR, 0], _A.FATAL),
        ([0, _E.UNSTABLE_OFFSET_COMMIT, 0], _A.RETRY),
    ],
)
def test_a_permanent_error_takes_precedence(codes, expected):
    """There is no use in retrying what one of the partitions has an error for."""
    verdict = judge_partitions(_C.CLASSIC_FETCH_PARTITION, dict(zip(T, codes, strict=True)))
    assert expected is verdict.action


def test_a_verdict_lists_the_partitions_with_its_action():
    """They are sorted, and those with other errors are left out."""
    codes = {U0: 29, T[1]: 3, T[0]: 29, T[2]: 0}
    assert Verdict(_A.UNAUTHORIZED_TOPIC, 29, (T[0], U0)) == judge_partitions(
        _C.CLASSIC_COMMIT, codes
    )


@given(
    call=st.sampled_from(OffsetCall),
    codes=st.lists(st.sampled_from([*map(int, ErrorCode), 999]), max_size=6),
)
def test_a_verdict_does_not_depend_on_the_order(call, codes):
    """The order of a response is arbitrary; its action is one of those of its partitions."""
    by_partition = [(TopicPartition("t", number), code) for number, code in enumerate(codes)]
    verdict = judge_partitions(call, dict(by_partition))

    assert verdict == judge_partitions(call, dict(reversed(by_partition)))
    assert verdict.action in ({offset_action(call, code) for code in codes} or {_A.DONE})
    assert (verdict.action is _A.DONE) is (not verdict.partitions)


@pytest.mark.parametrize("action", OffsetAction)
def test_some_actions_resend_the_request(action):
    """Those after which the same call may succeed."""
    expected = action in {_A.RETRY, _A.FIND_COORDINATOR, _A.NEW_EPOCH}
    assert expected is Verdict(action).is_retried


@pytest.mark.parametrize("action", OffsetAction)
def test_the_commit_of_a_user_is_not_resent_in_another_epoch(action):
    """The partitions may have been revoked with the old epoch, as in Java's commitSync."""
    verdict = Verdict(action, 5, (T[0],))
    expected = _A.REFUSED if action is _A.NEW_EPOCH else action
    assert verdict._replace(action=expected) == commit_of_user(verdict)


SENT = Generation(7, "m", "range")
ENDING = {_A.FENCED, _A.REJOIN_AS_NEW, _A.REJOIN_AS_MEMBER}


@pytest.mark.parametrize("action", OffsetAction)
@pytest.mark.parametrize("state", ClassicMemberState)
@pytest.mark.parametrize("current", [SENT, SENT._replace(generation_id=8), NO_GENERATION])
def test_an_answer_does_not_end_a_later_generation(action, state, current):
    """A commit of an earlier generation has failed, but the present membership is not at fault."""
    expected = action
    if current != SENT and action in ENDING:
        expected = _A.REBALANCING if state is _S.PREPARING_REBALANCE else _A.REFUSED
    verdict = Verdict(action, 5, (T[0],))
    assert verdict._replace(action=expected) == commit_in_generation(verdict, SENT, current, state)


@pytest.fixture
def stable():
    """Return a member that is stable in generation 1."""
    script = ClassicScript()
    script.become_stable()
    return script


def applied(script, action, code=_E.NOT_COORDINATOR, sent=None):
    """Apply a verdict to the member; return the action that remains."""
    verdict = Verdict(action, code, (T[0],))
    sent = sent or script.member.generation
    return apply_commit(script.member, verdict, sent, script.now).action


@pytest.mark.parametrize(
    ("action", "member_id"), [(_A.REJOIN_AS_NEW, ""), (_A.REJOIN_AS_MEMBER, "me")]
)
def test_a_commit_that_ends_the_generation_makes_the_member_join_again(stable, action, member_id):
    """With its member id if the coordinator may know it; the reason is that of Java."""
    assert action is applied(stable, action, _E.ILLEGAL_GENERATION)
    assert Generation(member_id=member_id) == stable.member.generation
    assert _S.UNJOINED is stable.member.state
    join = stable.start_join()
    assert member_id == join.generation.member_id
    assert "encountered ILLEGAL_GENERATION from OFFSET_COMMIT response" == join.reason


def test_a_commit_during_a_rebalance_makes_the_member_join_again(stable):
    """It keeps its generation, in which it can commit after the next poll."""
    generation = stable.member.generation
    assert _A.REJOIN is applied(stable, _A.REJOIN)
    assert generation == stable.member.stable_generation
    join = stable.start_join()
    assert (generation, "offset commit failed since group is already rebalancing") == (
        join.generation,
        join.reason,
    )


def test_a_commit_to_another_broker_loses_the_coordinator(stable):
    """The membership goes on at the new one."""
    assert _A.FIND_COORDINATOR is applied(stable, _A.FIND_COORDINATOR)
    assert stable.member.coordinator is None
    assert stable.member.stable_generation is not None


UNCHANGED = set(OffsetAction) - {
    _A.FIND_COORDINATOR,
    _A.REJOIN,
    _A.REJOIN_AS_NEW,
    _A.REJOIN_AS_MEMBER,
}


@pytest.mark.parametrize("action", sorted(UNCHANGED, key=lambda it: it.name))
def test_other_answers_do_not_change_the_membership(stable, action):
    """They are errors of the call alone."""
    assert action is applied(stable, action)
    assert stable.member.stable_generation is not None
    assert stable.member.coordinator is not None
    assert not stable.member.is_rejoin_needed


@pytest.mark.parametrize("action", sorted(ENDING, key=lambda it: it.name))
def test_an_outdated_answer_does_not_change_the_membership(stable, action):
    """The commit was sent in generation 0, and the member is in generation 1 by now."""
    sent = stable.member.generation._replace(generation_id=0)
    assert _A.REFUSED is applied(stable, action, sent=sent)
    assert stable.member.stable_generation is not None
    assert not stable.member.is_rejoin_needed


@pytest.mark.parametrize("action", [_A.REJOIN_AS_NEW, _A.REJOIN_AS_MEMBER, _A.REFUSED])
def test_a_refused_commit_advises_to_poll_in_time(action):
    """The error names both settings that a slow consumer can change."""
    error = offset_error(_C.CLASSIC_COMMIT, Verdict(action, _E.UNKNOWN_MEMBER_ID, (T[0],)), "g")
    assert type(error) is CommitFailedError
    assert str(error).startswith("OffsetCommit of group 'g': this consumer is no longer a member")
    assert "(UNKNOWN_MEMBER_ID)" in str(error)
    assert "within max.poll.interval.ms: raise it" in str(error)
    assert str(error).endswith("by lowering max.poll.records")


@pytest.mark.parametrize("action", [_A.REJOIN, _A.REBALANCING])
def test_a_commit_during_a_rebalance_can_be_repeated(action):
    """After a poll has completed the rebalance."""
    error = offset_error(_C.CLASSIC_COMMIT, Verdict(action, _E.REBALANCE_IN_PROGRESS), "g")
    assert type(error) is RebalanceInProgressError
    assert (
        "OffsetCommit of group 'g': the group rebalances (REBALANCE_IN_PROGRESS). Call poll, "
        "which completes the rebalance, then commit again"
    ) == str(error)


def test_all_topics_without_a_right_are_named():
    """Each once, in one error."""
    codes = dict.fromkeys([U0, *T], _E.TOPIC_AUTHORIZATION_FAILED)
    call = _C.CONSUMER_FETCH_PARTITION
    error = offset_error(call, judge_partitions(call, codes), "g")
    assert isinstance(error, BrokerError)
    assert _E.TOPIC_AUTHORIZATION_FAILED == error.code
    assert str(error).startswith("OffsetFetch of group 'g' for 't', 'u': ")
    assert str(error).endswith("Grant this user READ and DESCRIBE on the topic")


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [((), "'g': "), ((T[0],), "'g' for t-0: "), (tuple(T), "'g' for t-0 and 2 more: ")],
)
def test_other_errors_name_the_first_partition(partitions, expected):
    """An assignment may have thousands."""
    verdict = Verdict(_A.FATAL, _E.OFFSET_METADATA_TOO_LARGE, partitions)
    error = offset_error(_C.CLASSIC_COMMIT, verdict, "g")
    assert str(error).startswith(f"OffsetCommit of group {expected}")
    assert "offset.metadata.max.bytes" in str(error)
    assert not error.retriable


@pytest.mark.parametrize("action", [_A.RETRY, _A.FIND_COORDINATOR])
def test_the_error_of_a_passing_condition_is_retriable(action):
    """An asynchronous commit reports it, and the caller may commit again."""
    rows = [
        (call, code)
        for call, rules in OFFSET_RULES.items()
        for code, found in rules.items()
        if found is action
    ]
    errors = [offset_error(call, Verdict(action, code), "g") for call, code in rows]
    assert errors
    assert all(error.retriable for error in errors)


def test_every_error_that_a_user_can_act_on_advises():
    """Permanent errors of the tables have advice, except the end of the membership."""
    raised = {
        code
        for rules in OFFSET_RULES.values()
        for code, action in rules.items()
        if action in {_A.FATAL, _A.FENCED, _A.UNAUTHORIZED_TOPIC}
    }
    assert raised - {_E.UNKNOWN_MEMBER_ID} == ADVICE.keys()


@pytest.mark.parametrize("state", ClassicMemberState)
def test_a_commit_outside_of_a_generation_is_not_sent(state):
    """During a rebalance it can be repeated; otherwise the member was removed."""
    error = not_in_generation("g", state)
    if state in {_S.PREPARING_REBALANCE, _S.COMPLETING_REBALANCE}:
        assert type(error) is RebalanceInProgressError
        assert str(error).startswith("OffsetCommit of group 'g': the group rebalances. Call poll")
    else:
        assert type(error) is CommitFailedError
        assert str(error).startswith("OffsetCommit of group 'g': this consumer is not a member. ")
        assert "max.poll.interval.ms" in str(error)
