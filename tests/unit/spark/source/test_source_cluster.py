from __future__ import annotations

import logging
from uuid import UUID

import pytest

from spark_kafka_sink.errors import BrokerError, KafkaTimeoutError, NetworkError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.source.source_cluster import SourceCluster
from tests.support.spark.fake_source import FakeClient, FakeClients, source_options

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
RETRIABLE = BrokerError("no leader", code=5, name="LEADER_NOT_AVAILABLE", retriable=True)


@pytest.fixture
def client():
    fake = FakeClient()
    fake.logs = {A: (0, 10), B: (0, 10)}
    return fake


@pytest.fixture
def pauses():
    return []


@pytest.fixture
def cluster(client, pauses):
    def make(*, is_stream=True, **options):
        given = source_options(is_stream=is_stream, **options)
        clients = FakeClients(client)
        return SourceCluster(given, is_stream=is_stream, clients=clients, sleep=pauses.append)

    return make


def test_nothing_is_asked_about_no_partitions(cluster, client):
    """Without partitions, no question reaches the cluster."""
    asked = cluster()
    assert {} == asked.earliest([]) == asked.latest([]) == asked.at_times({}) == asked.ids([])
    assert [] == client.calls


def test_ids_are_those_of_the_client_that_has_listed_the_partitions(client):
    """While a commit uses that client, another one of the cache is lent, which knows no ids yet."""
    clients = FakeClients(client)
    asked = SourceCluster(source_options(), is_stream=True, clients=clients, sleep=lambda _: None)
    asked.partitions()
    clients.client = FakeClient()
    assert 3 == asked.ids([A])[A].leader_epoch
    assert [] == clients.client.calls


def test_a_broker_that_does_not_know_the_latest_topic_yet_is_not_believed(cluster, client):
    """The id of a deleted topic never comes back: its broker's metadata are stale."""
    first, second, third, other = UUID(int=1), UUID(int=2), UUID(int=3), UUID(int=9)
    asked = cluster()
    seen = []
    for topic_id in (first, second, first, second, third, second, first):
        client.topic_ids = {"t": topic_id, "u": other}
        asked.partitions()
        seen.append(asked.ids([A])[A])
    assert [
        (first, 3),
        (second, 3),
        (second, -1),
        (second, 3),
        (third, 3),
        (third, -1),
        (third, -1),
    ] == seen


def test_a_transient_error_is_asked_about_again(cluster, client, pauses):
    """A question is asked fetchOffset.numRetries times, with pauses, before its error is raised."""
    client.errors = [RETRIABLE] * 2
    assert {A: 10} == cluster().latest([A])
    assert [1.0, 1.0] == pauses
    client.errors = [RETRIABLE] * 3
    with pytest.raises(BrokerError, match="no leader"):
        cluster().latest([A])


def test_the_number_and_the_pause_can_be_set(cluster, client, pauses):
    """The options fetchOffset.numRetries and fetchOffset.retryIntervalMs are obeyed."""
    client.errors = [RETRIABLE] * 4
    options = {"fetchOffset.numRetries": "5", "fetchOffset.retryIntervalMs": "20"}
    assert (A, B) == cluster(**options).partitions()
    assert [0.02] * 4 == pauses


def test_without_retries_an_error_is_raised_at_once(cluster, client, pauses):
    """Zero is as many attempts as one: a question that is never asked has no answer."""
    client.errors = [RETRIABLE]
    with pytest.raises(BrokerError, match="no leader"):
        cluster(**{"fetchOffset.numRetries": "0"}).partitions()
    assert [] == pauses


def test_a_permanent_error_is_raised_at_once(cluster, client, pauses):
    """An error that asking again cannot help is raised."""
    client.errors = [BrokerError("no right", code=29, name="TOPIC_AUTHORIZATION_FAILED")]
    with pytest.raises(BrokerError, match="no right"):
        cluster().partitions()
    assert [] == pauses


@pytest.mark.parametrize("error", [KafkaTimeoutError("slow"), NetworkError("nobody there")])
def test_only_a_stream_waits_for_brokers_again(cluster, client, error):
    """Brokers that do not answer end a batch, which has just begun, but not a stream."""
    retriable = isinstance(error, KafkaTimeoutError) or error.retriable
    client.errors = [error]
    with pytest.raises(type(error)):
        cluster(is_stream=False).partitions()
    client.errors = [error]
    assert retriable
    assert (A, B) == cluster().partitions()


@pytest.mark.parametrize("is_stream", [False, True])
def test_only_a_batch_fails_early_if_nobody_listens(cluster, client, is_stream):
    """A stream survives a cluster that is down for a while."""
    cluster(is_stream=is_stream).partitions()
    assert (not is_stream) is client.failed_early


def test_a_latest_offset_below_the_known_one_is_asked_for_again(cluster, client, pauses, caplog):
    """A stale answer is not believed at once, and the log names the partition."""
    client.stale = [{A: 6, B: 10}]
    with caplog.at_level(logging.WARNING):
        assert {A: 10, B: 10} == cluster().latest([A, B], known={A: 7, B: 10})
    assert ["t-0 (known 7, found 6)"] == [text.rpartition(": ")[2] for text in caplog.messages]
    assert [1.0] == pauses


def test_a_latest_offset_that_stays_below_is_believed(cluster, client, pauses):
    """After as many answers as the option says, the log has become shorter."""
    client.stale = [{A: 3}] * 3
    assert {A: 3} == cluster().latest([A], known={A: 7})
    assert [1.0, 1.0] == pauses


def test_the_first_answer_about_unknown_partitions_is_believed(cluster, client):
    """A new query knows no offsets."""
    client.stale = [{A: 3}]
    assert {A: 3} == cluster().latest([A])
    assert 1 == client.calls.count("log_ends")


def test_a_missing_topic_is_an_error_at_the_start(cluster):
    """A new query, and a batch, need their topics."""
    with pytest.raises(BrokerError, match="topic 'u' does not exist"):
        cluster(subscribe="t,u").partitions()


@pytest.mark.parametrize(
    "selection", [{"subscribe": "t,u"}, {"assign": '{"t": [0, 1], "u": [0]}'}], ids=str
)
def test_a_topic_that_is_gone_is_left_out_later(cluster, selection, caplog):
    """A running query is told which partitions remain; failOnDataLoss decides what that means."""
    running = cluster(**selection)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert (A, B) == running.remaining_partitions()
    assert ["topic 'u' does not exist"] == caplog.messages


@pytest.mark.parametrize(
    "selection", [{"subscribe": "t,u"}, {"assign": '{"t": [0, 1], "u": [0]}'}], ids=str
)
def test_a_topic_that_is_back_is_missed_again(cluster, client, selection, caplog):
    """Once nothing is missing any more, the next topic that is gone is waited for and reported."""
    running, back = cluster(**selection), TopicPartition("u", 0)
    for _ in range(2):
        running.remaining_partitions()
        client.logs[back] = (0, 1)
        assert (A, B, back) == running.remaining_partitions()
        del client.logs[back]
    assert ["topic 'u' does not exist"] * 2 == caplog.messages


def test_an_assigned_partition_that_is_missing_is_waited_for_once(cluster, client, caplog):
    """As long as a partition of an existing topic is missing, the others are listed at once."""
    running = cluster(assign='{"t": [0], "u": [0, 1]}')
    running.remaining_partitions()
    there = TopicPartition("u", 0)
    client.logs[there] = (0, 1)
    for _ in range(2):
        assert (A, there) == running.remaining_partitions()
    assert 1 == len(caplog.messages)


@pytest.mark.parametrize(
    ("is_stream", "consequence"), [(True, "the query waits for one"), (False, "nothing is read")]
)
def test_a_pattern_without_a_match_is_reported_once(
    cluster, client, caplog, is_stream, consequence
):
    """A pattern that matches nothing is no error, and logged when it begins to match nothing."""
    logs, client.logs = client.logs, {}
    running = cluster(is_stream=is_stream, subscribePattern="^t$")
    assert () == running.partitions() == running.remaining_partitions()
    expected = (
        f"Kafka: subscribePattern '^t$' matches no topic that this user may describe; {consequence}"
    )
    assert [expected] == caplog.messages
    client.logs = logs
    assert (A, B) == running.remaining_partitions()
    client.logs = {}
    assert () == running.remaining_partitions()
    assert [expected] * 2 == caplog.messages


@pytest.mark.parametrize(
    "selection",
    [
        {"subscribe": "t"},
        {"subscribe": "t,u"},
        {"subscribePattern": "t"},
        {"assign": '{"t": [0, 1]}'},
    ],
    ids=str,
)
@pytest.mark.parametrize("unknown", [{A, B}, {B}], ids=["topic", "partition"])
def test_a_broker_that_does_not_know_a_partition_yet_is_not_believed(
    cluster, client, pauses, selection, unknown
):
    """What another broker has listed is asked for again before it counts as gone."""
    running = cluster(**selection)
    assert (A, B) == running.remaining_partitions()
    client.unknown = [unknown, unknown]
    assert (A, B) == running.remaining_partitions()
    assert 3.0 > sum(pauses)


def test_partitions_that_stay_away_are_gone(cluster, client, pauses):
    """After some seconds that is believed, and the next trigger does not ask about them again."""
    running = cluster(subscribePattern="t")
    running.remaining_partitions()
    del client.logs[B]
    assert (A,) == running.remaining_partitions()
    assert 3.0 == sum(pauses)
    assert (A,) == running.remaining_partitions()
    assert 3.0 == sum(pauses)


def test_a_topic_made_again_with_fewer_partitions_is_believed_at_once(cluster, client, pauses):
    """The partitions that it lacks are those of another topic."""
    client.topic_ids["t"] = UUID(int=1)
    running = cluster()
    running.remaining_partitions()
    client.topic_ids["t"] = UUID(int=2)
    del client.logs[B]
    assert (A,) == running.remaining_partitions()
    assert [] == pauses


def test_partitions_that_were_not_assigned_are_left_out(cluster):
    """Of an assigned topic, only the assigned partitions remain."""
    assert (B,) == cluster(assign='{"t": [1], "u": [0]}').remaining_partitions()


def test_missing_rights_end_a_running_query(cluster, client):
    """Only a topic that does not exist is left out."""
    client.errors = [BrokerError("no right", code=29, name="TOPIC_AUTHORIZATION_FAILED")]
    with pytest.raises(BrokerError, match="no right"):
        cluster().remaining_partitions()


def test_a_commit_is_tried_once(cluster, client, pauses):
    """A commit for monitors is not worth a retry; the next batch makes up for it."""
    client.errors = [RETRIABLE]
    with pytest.raises(BrokerError):
        cluster().commit("monitored", {A: 3})
    assert {} == cluster().commit("monitored", {A: 3})
    assert [("monitored", {A: 3})] == client.commits
    assert [] == pauses
