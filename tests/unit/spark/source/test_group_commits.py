from __future__ import annotations

import logging
import threading

import pytest

from spark_kafka_sink.errors import BrokerError, NetworkError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.source.stream_reader import GroupCommits

A, B = TopicPartition("a", 0), TopicPartition("a", 1)


class _Group:
    def __init__(self):
        self.committed = []
        self.answers = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_asked = threading.Event()

    def commit(self, group_id, offsets):
        self.is_asked.set()
        assert self.may_answer.wait(60)
        self.committed.append((group_id, offsets))
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def group():
    return _Group()


@pytest.fixture
def commits(group):
    return GroupCommits("monitored", group.commit)


def test_progress_is_committed(group, commits):
    """Each progress that is put is committed to the group."""
    for offset in (1, 2):
        commits.put({A: offset})
        commits.wait(60)
    assert [("monitored", {A: 1}), ("monitored", {A: 2})] == group.committed


def test_a_slow_commit_delays_nothing(group, commits):
    """While a commit waits for its answer, only the last of the following ones is kept."""
    group.may_answer.clear()
    commits.put({A: 1})
    assert group.is_asked.wait(60)
    for offset in (2, 3, 4):
        commits.put({A: offset})
    group.may_answer.set()
    commits.wait(60)
    assert [{A: 1}, {A: 4}] == [offsets for _, offsets in group.committed]


def test_waiting_without_a_commit_ends_at_once(commits):
    """A stream that has committed nothing has nothing to wait for."""
    commits.wait(60)


def refused(name="UNKNOWN_MEMBER_ID"):
    return BrokerError("it was refused", code=25, name=name)


def test_a_refusal_is_one_warning(group, commits, caplog):
    """The same refusal is logged once, with advice, however many partitions have it."""
    group.answers = [{A: refused(), B: refused()}] * 2
    with caplog.at_level(logging.WARNING):
        for offset in (1, 2):
            commits.put({A: offset})
            commits.wait(60)
    [message] = caplog.messages
    assert "was not committed to commitGroup 'monitored', which changes nothing else: " in message
    assert 1 == message.count("it was refused: the group has active members")


def test_a_failure_is_a_warning_until_it_is_over(group, commits, caplog):
    """An error does not end the commits; it is logged again if it comes back after a success."""
    group.answers = [NetworkError("nobody there"), ValueError(), {}, NetworkError("nobody there")]
    with caplog.at_level(logging.WARNING):
        for offset in range(5):
            commits.put({A: offset})
            commits.wait(60)
    assert ["nobody there", "ValueError", "nobody there"] == [
        message.rpartition(": ")[2] for message in caplog.messages
    ]
    assert 5 == len(group.committed)


def test_a_refusal_of_rights_names_the_option(group, commits, caplog):
    """The advice about missing rights names commitGroup, not the option of the sink."""
    group.answers = [{A: refused("GROUP_AUTHORIZATION_FAILED")}]
    with caplog.at_level(logging.WARNING):
        commits.put({A: 1})
        commits.wait(60)
    assert caplog.messages[0].endswith("it was refused: commitGroup requires READ on the group")
