"""The ends of leader epochs, as an embedded broker knows them."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.testing import ApiKey, ErrorCode, PartitionError
from tests.support.consumer.reading import PATIENCE, fill, numbered, reading
from tests.support.devbroker.older_broker import cap_version

T = [TopicPartition("t", number) for number in range(3)]


@pytest.fixture
def broker():
    """Yield a broker that leads a log of ten records, cut to five, in its second epoch."""
    with DevBroker(topics={"t": 3}) as broker:
        for start in (0, 5):
            fill(broker.bootstrap_servers, "t", numbered(5, start))
        broker.elect_unclean_leader("t", 0, 5)
        fill(broker.bootstrap_servers, "t", numbered(9))
        yield broker


@pytest.fixture
def client(broker):
    with reading(broker.bootstrap_servers) as client:
        yield client


def requests_of(broker, api_key):
    """Return a list that gets the requests from now on."""
    found = []
    broker.on(api_key, lambda request, _: found.append(request))
    return found


def test_the_log_of_an_epoch_ends_where_the_next_one_begins(client):
    """That of the current epoch ends at the end of the log."""
    assert {T[0]: 5, T[1]: 0} == client.epoch_ends({T[0]: 0, T[1]: 0}, timeout=PATIENCE)
    assert {T[0]: 14} == client.epoch_ends({T[0]: 1}, timeout=PATIENCE)


def test_an_epoch_that_the_leader_does_not_know_is_left_out(client):
    """It may be that of a leader whose records are gone."""
    assert {T[1]: 0} == client.epoch_ends({T[0]: 7, T[1]: 0}, timeout=PATIENCE)


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER], ids=str
)
def test_a_leader_that_has_changed_is_asked_again(broker, client, code):
    """The metadata are requested before, and an answer of another partition is kept."""
    client.latest_offsets(T, timeout=PATIENCE)
    asked = requests_of(broker, ApiKey.METADATA)
    hook = broker.on(ApiKey.OFFSET_FOR_LEADER_EPOCH, PartitionError(code, [T[0]]), times=1)
    assert {T[0]: 5, T[1]: 0} == client.epoch_ends({T[0]: 0, T[1]: 0}, timeout=PATIENCE)
    assert 1 == hook.fired
    assert asked


def test_a_missing_right_is_an_error_at_once(broker, client):
    """The error names the topic and the right."""
    broker.on(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, PartitionError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, T)
    )
    with pytest.raises(BrokerError, match=r"OffsetForLeaderEpoch for 't': .* Grant this user DESC"):
        client.epoch_ends({T[0]: 0}, timeout=PATIENCE)


def test_an_older_broker_is_not_asked(broker, client):
    """Before 2.3 a consumer would need a right on the whole cluster."""
    cap_version(broker, ApiKey.OFFSET_FOR_LEADER_EPOCH, 2)
    asked = requests_of(broker, ApiKey.OFFSET_FOR_LEADER_EPOCH)
    assert {} == client.epoch_ends({T[0]: 0}, timeout=PATIENCE)
    assert [] == asked
