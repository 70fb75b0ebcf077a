"""Requests that change many topics: one write to disk, and responses that match the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from spark_kafka_sink.devbroker.log.data_directory import DataDirectory
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.devbroker.admin_requests import (
    SET,
    TOPIC,
    alter_configs,
    create_partitions,
    delete_topics,
)
from tests.support.devbroker.broker_asker import creatable
from tests.support.devbroker.broker_requests import ask
from tests.support.devbroker.durable_cluster import DurableCluster
from tests.support.devbroker.faulty_disk import Failure, FaultyDisk

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
    from spark_kafka_sink.protocol.schema import ApiMessage

OK = ErrorCode.NONE
STORAGE = ErrorCode.KAFKA_STORAGE_ERROR
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NEW = ("a", "b", "c")
OLD = ("t", "u", "v")


class Change(NamedTuple):
    """A request that changes three topics."""

    request: ApiMessage
    names: tuple[str, ...]
    #: Returns the error code of each topic in a response.
    codes_of: Callable[[Any], dict[str, int]]
    #: Returns whether a topic has been changed.
    is_done: Callable[[StandaloneCluster, str], bool]


def created_by(answer):
    """Return the error codes of topics; one that has just been created is still unknown."""
    return {
        topic.name: OK if topic.error_code == UNKNOWN else topic.error_code
        for topic in answer.topics
    }


def exists(topics, name):
    return topics.topic(name) is not None


CHANGES = {
    "create": Change(
        CreateTopicsRequest(topics=tuple(map(creatable, NEW)), timeout_ms=1000),
        NEW,
        lambda answer: {topic.name: topic.error_code for topic in answer.topics},
        exists,
    ),
    "metadata": Change(
        MetadataRequest(topics=tuple(MetadataRequestTopic(name=name) for name in NEW)),
        NEW,
        created_by,
        exists,
    ),
    "partitions": Change(
        create_partitions(*((name, 2) for name in OLD)),
        OLD,
        lambda answer: {result.name: result.error_code for result in answer.results},
        lambda topics, name: len(topics.topic(name).partitions) == 2,
    ),
    "alter": Change(
        alter_configs(*((TOPIC, name, [("flush.ms", SET, "7")]) for name in OLD)),
        OLD,
        lambda answer: {each.resource_name: each.error_code for each in answer.responses},
        lambda topics, name: topics.topic(name).config.flush_ms == 7,
    ),
    "delete": Change(
        delete_topics(*OLD),
        OLD,
        lambda answer: {result.name: result.error_code for result in answer.responses},
        lambda topics, name: not exists(topics, name),
    ),
}


@pytest.fixture
def disk(monkeypatch):
    return FaultyDisk(monkeypatch)


def cluster_in(path, **settings):
    cluster = DurableCluster(path, **settings)
    with cluster.broker.cluster.change_topics() as changes:
        for name in OLD:
            changes.create_topic(name, partitions=1, config=cluster.settings.topic_defaults)
    return cluster


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.usefixtures("disk")
def test_a_request_for_many_topics_is_written_once(tmp_path, monkeypatch, kind):
    """The cluster file is replaced and flushed once per request."""
    change = CHANGES[kind]
    cluster = cluster_in(tmp_path / "data")
    written = []
    write = DataDirectory.write_cluster

    def count(data, stored):
        written.append(stored)
        write(data, stored)

    monkeypatch.setattr(DataDirectory, "write_cluster", count)
    codes = change.codes_of(ask(cluster.broker, change.request))
    cluster.close()

    assert (dict.fromkeys(change.names, OK), 1) == (codes, len(written))


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize("kind", CHANGES)
def test_a_topic_changes_exactly_if_the_response_says_so(tmp_path, disk, kind, failure):
    """Whatever operation fails, a topic has changed if and only if the response says so."""
    change = CHANGES[kind]
    for number in range(200):
        cluster = cluster_in(tmp_path / str(number))
        disk.failed.clear()
        disk.fail_after(number, failure)
        codes = change.codes_of(ask(cluster.broker, change.request))
        has_failed = bool(disk.failed)
        disk.free()
        assert set(codes.values()) <= {OK, STORAGE}

        expected = {name: code == OK for name, code in codes.items()}
        topics = cluster.broker.cluster
        assert expected == {name: change.is_done(topics, name) for name in change.names}, number
        logs = topics.logs.partitions
        topics = cluster.kill().cluster
        assert expected == {name: change.is_done(topics, name) for name in change.names}, number
        assert logs == topics.logs.partitions, number
        cluster.close()
        if not has_failed:
            return
    pytest.fail("there are more operations than thought")


@pytest.mark.parametrize("kind", CHANGES)
def test_a_write_that_fails_is_the_answer_for_every_topic(tmp_path, disk, monkeypatch, kind):
    """If the final write fails, nothing has changed, and the request can be repeated."""
    change = CHANGES[kind]
    cluster = cluster_in(tmp_path / "data")

    def fail(data, stored):
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(DataDirectory, "write_cluster", fail)
        codes = change.codes_of(ask(cluster.broker, change.request))

    assert dict.fromkeys(change.names, STORAGE) == codes
    codes = change.codes_of(ask(cluster.broker, change.request))
    assert dict.fromkeys(change.names, OK) == codes
    assert [] == disk.failed
    cluster.close()


def test_one_topic_without_room_for_its_logs_does_not_keep_the_others(tmp_path, disk):
    """Only that topic is refused, and none of its files is left."""
    change = CHANGES["create"]
    cluster = cluster_in(tmp_path / "data")
    disk.fail_after(0, Failure.ONCE)

    codes = change.codes_of(ask(cluster.broker, change.request))

    assert {"a": STORAGE, "b": OK, "c": OK} == codes
    assert ["b", "c", *OLD] == [topic.name for topic in cluster.kill().cluster.topics]
    cluster.close()


def test_a_full_disk_is_not_tried_for_every_topic(tmp_path, disk):
    """Only as many creations are tried as one request may do; other topics remain unknown."""
    cluster = cluster_in(tmp_path / "data", request_max_partitions=2)
    disk.fail_after(0, Failure.FULL)

    answer = ask(cluster.broker, CHANGES["metadata"].request)

    disk.free()
    assert {"a": STORAGE, "b": STORAGE, "c": UNKNOWN} == {
        topic.name: topic.error_code for topic in answer.topics
    }
    cluster.close()
