"""Ranges read from followers, from older brokers, and after unclean elections."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_kafka_sink.consumer.range_reader import read_range
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import DataLossError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.testing import AnswerError
from tests.support.consumer.reading import (
    VALUES,
    fill,
    numbered,
    range_of,
    read_all,
    reading,
    values_of,
)
from tests.support.devbroker.older_broker import cap_version

ALL = numbered(200)
RACKS = ("a", "b", "c")


@pytest.fixture
def cluster():
    """Yield three brokers in racks; broker 1 leads `t`, which has `ALL`."""
    with DevBroker(
        brokers=3, topics={"t": 1}, racks=RACKS, rack_aware_replica_selector=True
    ) as cluster:
        cluster.move_leader("t", 0, 1)
        fill(cluster.bootstrap_servers, "t", ALL)
        yield cluster


class _Fetches:
    """The Fetch requests that brokers receive."""

    def __init__(self, cluster: DevBroker) -> None:
        """Count from now on."""
        self.by_node: Counter[int] = Counter()
        self.racks: set[str] = set()
        cluster.on(ApiKey.FETCH, self._note)

    def _note(self, request, context):
        self.by_node[context.node_id] += 1
        self.racks.add(request.rack_id)


def test_a_follower_in_the_own_rack_is_read(cluster):
    """The leader is asked once, and recommends the follower, which is read to the end."""
    fetches = _Fetches(cluster)
    with reading(cluster.bootstrap_servers, **{"client.rack": "b"}) as client:
        assert ALL == read_all(client, range_of(client))

    assert {"b"} == fetches.racks
    assert {1, 2} == set(fetches.by_node)
    assert 1 == fetches.by_node[1]


@pytest.mark.parametrize("rack", ["", "a", "z"])
def test_the_leader_is_read_without_a_follower_in_the_rack(cluster, rack):
    """Without a rack, with that of the leader, or an unknown one, the leader is read."""
    fetches = _Fetches(cluster)
    with reading(cluster.bootstrap_servers, **{"client.rack": rack}) as client:
        assert ALL == read_all(client, range_of(client))

    assert {1} == set(fetches.by_node)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_the_leader_replaces_a_follower_that_fails(cluster, code):
    """An error of a follower is no loss: the leader is read, without another recommendation."""
    cluster.on(
        ApiKey.FETCH,
        lambda _, context: AnswerError(code) if context.node_id == 2 else None,
        expect=True,
    )
    with reading(cluster.bootstrap_servers, **{"client.rack": "b"}) as client:
        assert ALL == read_all(client, range_of(client))


def test_the_leader_replaces_a_follower_that_stops(cluster):
    """A follower that cannot be reached is replaced by the leader."""
    stopped = []

    def stop(_, context):
        # Not from the server's own thread, which would wait for itself.
        if context.node_id == 2:
            stopped.append(2)
            return AnswerError(ErrorCode.REPLICA_NOT_AVAILABLE)
        return None

    cluster.on(ApiKey.FETCH, stop)
    with reading(cluster.bootstrap_servers, **{"client.rack": "b"}) as client:
        which = range_of(client)
        assert ALL == read_all(client, which)
        cluster.stop(2)
        assert ALL == read_all(client, which)
    assert stopped


def test_an_unclean_election_is_a_loss(cluster):
    """Records that a new leader does not have are an error, or are skipped and reported."""
    with reading(cluster.bootstrap_servers) as client:
        which = range_of(client)
        cluster.elect_unclean_leader("t", 0, 100)
        losses = []
        found = read_all(client, which, fail_on_data_loss=False, on_data_loss=losses.append)

        assert ALL[: len(found)] == found
        assert 100 >= len(found) > 80
        assert [(200, len(found), 200 - len(found))] == [
            (it.wanted, it.available, it.lost) for it in losses
        ]
        with pytest.raises(DataLossError, match=f"the log ends at offset {len(found)}"):
            read_all(client, which)


@pytest.mark.usefixtures("small_batches")
def test_a_log_that_diverges_under_the_reader_is_a_loss(cluster):
    """The epoch of the last record read tells the leader that the log has others now (KIP-595)."""
    with reading(cluster.bootstrap_servers) as client:
        losses = []
        batches = read_range(
            client,
            range_of(client),
            VALUES,
            fail_on_data_loss=False,
            on_data_loss=losses.append,
        )
        found = values_of([next(batches)])
        cluster.elect_unclean_leader("t", 0, 15)
        fill(cluster.bootstrap_servers, "t", numbered(300, 1000))
        found += values_of(batches)

        [loss] = losses
        assert loss.available <= 15 < loss.wanted
        assert loss.wanted - loss.available == loss.lost
        assert "the log was truncated to offset" in loss.reason
        # The offsets after those that were read are read from the log as it is now.
        log = [record.value for record in cluster.records("t")[0]]
        assert [*ALL[: loss.wanted], *log[loss.wanted : 200]] == found


def test_a_follower_that_lags_behind_does_not_hide_records(cluster):
    """What a follower does not have yet is read from the leader."""
    cluster.stop_replication("t", 0, 2)
    fill(cluster.bootstrap_servers, "t", numbered(50, 200))
    with reading(
        cluster.bootstrap_servers, **{"client.rack": "b", "fetch.max.wait.ms": 20}
    ) as client:
        assert [*ALL, *numbered(50, 200)] == read_all(client, range_of(client))


@pytest.mark.parametrize("highest", [4, 8, 11, 12])
def test_older_brokers_are_read_by_the_name_of_the_topic(highest):
    """A broker without topic ids in Fetch is asked in a version that names the topic."""
    with DevBroker(topics={"t": 1}) as broker:
        cap_version(broker, ApiKey.FETCH, highest)
        fill(broker.bootstrap_servers, "t", ALL)
        versions = set()
        broker.on(
            ApiKey.FETCH,
            lambda _, context: versions.add(context.header.request_api_version),
        )
        with reading(broker.bootstrap_servers) as client:
            assert ALL == read_all(client, range_of(client))
        assert {highest} == versions
