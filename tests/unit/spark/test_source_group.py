"""The offsets that a stream commits to `sourceConsumerGroup`, against the embedded broker."""

from __future__ import annotations

import logging
import pickle
import re
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.spark.data_source import KafkaSink
from spark_kafka_sink.spark.source_offsets import commit_source_offsets
from tests.support.spark.micro_batches import SCHEMA, process_of_its_own
from tests.support.spark.source_groups import SourceStream, committed_offsets, joined_consumer

EXACTLY_ONCE = {
    "deliveryGuarantee": "exactly_once",
    "transactionalIdPrefix": "orders",
    "ledgerTopic": "ledger",
}


@pytest.fixture
def broker():
    topics = {"data": 2, "read": 2}
    with process_of_its_own(), DevBroker(topics=topics, auto_create_topics=False) as made:
        yield made


@pytest.fixture
def stream(broker, tmp_path):
    return SourceStream(broker.bootstrap_servers, tmp_path / "c", "lag", topic="data")


@contextmanager
def warnings_of(caplog):
    """Collect the warnings logged within a block."""
    caplog.clear()
    found: list[str] = []
    with caplog.at_level(logging.WARNING):
        yield found
    found += [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("options", [{}, EXACTLY_ONCE], ids=["at_least_once", "exactly_once"])
def test_offsets_are_committed_for_each_finished_batch(broker, tmp_path, caplog, options):
    """After a batch the group has its end offsets; a replay commits them again."""
    stream = SourceStream(broker.bootstrap_servers, tmp_path / "c", "lag", topic="data", **options)
    expected = [{("read", 0): 2}, {("read", 0): 4, ("read", 1): 1}]
    with warnings_of(caplog) as warned:
        stream.note(0, '{"read":{"0":2}}')
        stream.run(0, "a", "b")
        assert expected[0] == committed_offsets(broker.bootstrap_servers, "lag")
        stream.note(1, '{"read":{"1":1,"0":4}}')
        for _ in range(2):
            stream.run(1, "c")
            assert expected[1] == committed_offsets(broker.bootstrap_servers, "lag")
    assert [] == warned


def test_offsets_of_an_unfinished_batch_are_not_committed(broker, stream):
    """The offsets of a batch that was only planned, or aborted, are not committed."""
    stream.note(0, '{"read":{"0":2}}')
    pickle.dumps(stream.writer())
    stream.writer().abort([], 0)
    assert {} == committed_offsets(broker.bootstrap_servers, "lag")


def test_exactly_once_offsets_are_committed_after_the_transactions(broker, tmp_path):
    """Offsets are committed once the batch's transactions have ended."""
    stream = SourceStream(
        broker.bootstrap_servers, tmp_path / "c", "lag", topic="data", **EXACTLY_ONCE
    )
    seen = []
    for key in (ApiKey.END_TXN, ApiKey.OFFSET_COMMIT):
        broker.on(key, lambda request, _, key=key: seen.append(key))
    stream.note(0, '{"read":{"0":2}}')
    stream.run(0, "a")
    assert (1, ApiKey.OFFSET_COMMIT) == (seen.count(ApiKey.OFFSET_COMMIT), seen[-1])


def test_offsets_of_a_batch_without_rows_are_committed(broker, stream):
    """Lag decreases even if a filter drops every row, or no task ran."""
    stream.note(0, '{"read":{"0":2}}')
    stream.writer().commit([], 0)
    assert {("read", 0): 2} == committed_offsets(broker.bootstrap_servers, "lag")


def test_no_offsets_are_committed_by_default(broker, stream):
    """No offsets are committed by default."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, lambda *_: None)
    stream.note(0, '{"read":{"0":2}}')
    del stream._options["sourceConsumerGroup"]
    stream.run(0, "a")
    assert 0 == hook.seen


def test_a_group_with_members_is_a_warning_and_a_later_batch_catches_up(broker, stream, caplog):
    """A group with consumers rejects the commit, and a later batch commits its offsets."""
    with joined_consumer(broker.bootstrap_servers, "lag", "read"):
        stream.note(0, '{"read":{"0":2,"1":3}}')
        with warnings_of(caplog) as warned:
            stream.run(0, "a")
    assert 1 == len(warned)
    assert warned[0].startswith("batch 0 was written, but not all of its source offsets were")
    assert 1 == warned[0].count("UNKNOWN_MEMBER_ID")
    assert "group 'lag' for read-0: " in warned[0]
    assert "the group has active members" in warned[0]
    stream.note(1, '{"read":{"0":4,"1":3}}')
    stream.run(1, "b")
    expected = {("read", 0): 4, ("read", 1): 3}
    assert expected == committed_offsets(broker.bootstrap_servers, "lag")


def test_topics_unknown_to_the_cluster_are_named(broker, stream, caplog):
    """Topics unknown to the cluster are named once each; the other offsets are committed."""
    stream.note(0, '{"there":{"0":1,"1":1},"too":{"0":1}}', "-", '{"read":{"0":2}}')
    with warnings_of(caplog) as warned:
        stream.run(0, "a")
    assert 1 == len(warned)
    assert ["there-0", "too-0"] == re.findall(r"group 'lag' for (\S+):", warned[0])
    assert 2 == warned[0].count("UNKNOWN_TOPIC_OR_PARTITION")
    assert "requires the stream to read from the cluster that it writes to" in warned[0]
    assert {("read", 0): 2} == committed_offsets(broker.bootstrap_servers, "lag")


@pytest.mark.parametrize(
    ("request_and_answer", "advice"),
    [
        ((ApiKey.FIND_COORDINATOR, ErrorCode.GROUP_AUTHORIZATION_FAILED), "READ on the group"),
        ((ApiKey.OFFSET_COMMIT, ErrorCode.GROUP_AUTHORIZATION_FAILED), "READ on the group"),
        ((ApiKey.OFFSET_COMMIT, ErrorCode.TOPIC_AUTHORIZATION_FAILED), "READ on the topics"),
        ((ApiKey.OFFSET_COMMIT, ErrorCode.INVALID_COMMIT_OFFSET_SIZE), "batch 0 was written"),
    ],
)
def test_a_rejected_offset_commit_does_not_fail_the_batch(
    broker, stream, caplog, request_and_answer, advice
):
    """A rejected commit is a warning that names the missing right."""
    api_key, code = request_and_answer
    broker.on(api_key, AnswerError(code))
    stream.note(0, '{"read":{"0":2}}')
    with warnings_of(caplog) as warned:
        stream.run(0, "a")
    assert 1 == len(warned)
    assert code.name in warned[0]
    assert advice in warned[0]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ('{"logOffset":0}', "none of its sources is Kafka"),
        ('{"read":', "line 3 is not valid JSON"),
        (None, "could not read the offsets of the batch"),
    ],
)
def test_unreadable_offsets_do_not_fail_the_batch(stream, caplog, line, cause):
    """A missing or foreign offset log is a warning with its path."""
    if line is not None:
        stream.note(0, line)
    with warnings_of(caplog) as warned:
        stream.run(0, "a")
    assert 1 == len(warned)
    assert cause in warned[0]
    assert "/c/offsets/0'" in warned[0]


def test_an_unreadable_checkpoint_is_rejected(broker, tmp_path):
    """An unusable checkpoint location is an error before the first task."""
    stream = SourceStream(broker.bootstrap_servers, tmp_path / "c", "lag", topic="data")
    stream._options["checkpointLocation"] = "s3a://bucket/c"
    with pytest.raises(ConfigError, match="not on s3a:"):
        stream.writer()
    del stream._options["checkpointLocation"]
    with pytest.raises(ConfigError, match="requires checkpointLocation as an option of the stream"):
        stream.writer()
    stream._options["checkpointLocation"] = str(tmp_path / "elsewhere")
    with pytest.raises(pickle.PickleError, match="the driver cannot read the directory"):
        pickle.dumps(stream.writer())


def test_a_batch_write_rejects_a_source_group(broker):
    """A batch's driver does not know what was read, so the option is an error."""
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "data"}
    with pytest.raises(ConfigError, match="sourceConsumerGroup is only for streams"):
        KafkaSink.check(SimpleNamespace(schema=SCHEMA), options, sourceConsumerGroup="lag")


def test_the_timeout_of_the_offset_commit_is_the_request_timeout(monkeypatch, tmp_path):
    """The timeout of the commit is request.timeout.ms, in seconds."""
    committed = []

    class Admin:
        def __init__(self, config):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def commit_group_offsets(self, group_id, offsets, *, timeout):
            committed.append((group_id, offsets, timeout))
            return {}

    monkeypatch.setattr("spark_kafka_sink.admin.driver_client.DriverClient", Admin)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_text('v1\n{}\n{"read":{"0":2}}')
    options = SinkOptions.from_mapping(
        {
            "kafka.bootstrap.servers": "localhost:9092",
            "topic": "data",
            "sourceConsumerGroup": "lag",
            "checkpointLocation": str(tmp_path),
            "kafka.request.timeout.ms": "1500",
        }
    )
    commit_source_offsets(options, 7)
    assert [("lag", {TopicPartition("read", 0): 2}, 1.5)] == committed
