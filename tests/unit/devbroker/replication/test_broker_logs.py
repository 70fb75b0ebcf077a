"""The logs of a broker outlive its process, in its own directory or in memory."""

from __future__ import annotations

import re
import uuid

import pytest

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.log.data_directory import MetaProperties
from spark_kafka_sink.devbroker.metadata.records import TopicIdPartition
from spark_kafka_sink.devbroker.replication.broker_logs import BrokerLogs
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.record.plain_batches import PlainRecord, plain_batch

OWNER = MetaProperties("c-1", 3)
FIRST = TopicIdPartition(uuid.UUID(int=1), 0)
SECOND = TopicIdPartition(uuid.UUID(int=2), 1)
CONFIG = TopicConfig()


def logs_at(path, owner=OWNER):
    """Return the started logs of a broker."""
    logs = BrokerLogs(BrokerSettings(), owner, path=path)
    logs.start(1.0)
    return logs


@pytest.fixture(params=["memory", "disk"])
def logs(request, tmp_path):
    """Return the logs of a broker, with a log of two records."""
    logs = logs_at(None if request.param == "memory" else tmp_path / "broker")
    write(logs.open(FIRST, "t", CONFIG), 2)
    yield logs
    logs.abandon()


def write(log, count):
    for index in range(count):
        batch = memoryview(bytearray(plain_batch([PlainRecord(timestamp=index)])))
        log.append(batch, decode_header(batch), now_ms=1000)


@pytest.mark.parametrize("orderly", [True, False])
def test_logs_and_high_watermarks_outlive_the_process(logs, orderly):
    """The epoch does so only after a clean shutdown."""
    logs.store_high_watermarks({FIRST: 1, SECOND: 5})
    if orderly:
        logs.close(7, 2.0)
    else:
        logs.abandon()
    logs.start(3.0)
    assert (7 if orderly else -1) == logs.previous_epoch
    assert 2 == logs.open(FIRST, "t", CONFIG).log_end_offset
    assert 1 == logs.high_watermark(FIRST)
    assert 0 == logs.high_watermark(SECOND)


def test_a_clean_shutdown_counts_once(logs):
    """A process that is killed later has not closed its logs."""
    logs.close(7, 2.0)
    logs.start(3.0)
    logs.open(FIRST, "t", CONFIG)
    logs.abandon()
    logs.start(4.0)
    assert -1 == logs.previous_epoch


@pytest.mark.parametrize("orderly", [True, False])
def test_a_process_that_has_opened_no_log_changes_nothing(logs, orderly):
    """It ended before it was registered; the broker still has all that it had."""
    log = logs.open(FIRST, "t", CONFIG)
    logs.store_high_watermarks({FIRST: 2})
    log.delete_records(1)
    logs.close(7, 2.0)
    logs.start(3.0)
    if orderly:
        logs.close(-1, 4.0)
    else:
        logs.abandon()
    logs.start(5.0)
    assert 7 == logs.previous_epoch
    log = logs.open(FIRST, "t", CONFIG)
    assert (1, 2) == (log.log_start_offset, log.log_end_offset)
    assert 2 == logs.high_watermark(FIRST)


def test_logs_that_were_not_opened_after_a_crash_are_recovered_later(tmp_path):
    """A process that could not register and ends in order does not take them for closed."""
    logs = logs_at(tmp_path)
    write(logs.open(FIRST, "t", CONFIG), 2)
    logs.abandon()
    with (tmp_path / "t-0" / f"{0:020}.log").open("ab") as torn:
        torn.write(b"part of a batch")
    logs.start(2.0)
    logs.close(-1, 3.0)
    logs.start(4.0)
    write(logs.open(FIRST, "t", CONFIG), 1)
    assert 3 == len(list(logs.open(FIRST, "t", CONFIG).batches()))
    logs.abandon()


def test_a_new_topic_does_not_begin_where_the_old_one_did(tmp_path):
    """The topic was deleted, and created again with its name, while the broker was away."""
    logs = logs_at(tmp_path)
    log = logs.open(FIRST, "t", CONFIG)
    write(log, 2)
    log.delete_records(1)
    logs.close(7, 2.0)
    logs.start(3.0)
    log = logs.open(TopicIdPartition(uuid.UUID(int=9), 0), "t", CONFIG)
    assert (0, 0) == (log.log_start_offset, log.log_end_offset)
    logs.abandon()


def test_a_deleted_log_begins_again(logs):
    """Also with the same name, for another topic that was created while the broker was away."""
    logs.store_high_watermarks({FIRST: 2})
    logs.delete(FIRST)
    assert 0 == logs.high_watermark(FIRST)
    assert 0 == logs.open(FIRST, "t", CONFIG).log_end_offset
    write(logs.open(FIRST, "t", CONFIG), 1)
    logs.close(7, 2.0)
    logs.start(3.0)
    other = TopicIdPartition(uuid.UUID(int=9), 0)
    assert 0 == logs.open(other, "t", CONFIG).log_end_offset
    assert 0 == logs.high_watermark(other)


def test_logs_that_the_broker_is_not_to_have_are_deleted(logs):
    """Their partitions were moved or deleted while it was away."""
    write(logs.open(SECOND, "u", CONFIG), 1)
    logs.remove_others([FIRST])
    assert 2 == logs.open(FIRST, "t", CONFIG).log_end_offset
    assert 0 == logs.open(SECOND, "u", CONFIG).log_end_offset


def test_an_open_log_takes_new_settings(logs):
    """A process that follows another one in memory gets the same log."""
    log = logs.open(FIRST, "t", CONFIG)
    changed = CONFIG.with_values({"retention.ms": "5"})
    assert log is logs.open(FIRST, "t", changed)
    assert changed == log.config


def test_strays_on_disk_are_deleted(tmp_path):
    """A process that has not opened a log deletes its files, too."""
    logs = logs_at(tmp_path)
    logs.open(SECOND, "u", CONFIG)
    logs.close(7, 2.0)
    logs.start(3.0)
    logs.open(FIRST, "t", CONFIG)
    logs.remove_others([FIRST])
    assert ["t-0"] == [path.name for path in tmp_path.iterdir() if path.is_dir()]
    logs.abandon()


def test_a_directory_says_whose_it_is(tmp_path):
    """In Kafka's format, with an id of its own."""
    logs_at(tmp_path).close(7, 2.0)
    pattern = r"cluster\.id=c-1\ndirectory\.id=[\w-]{22}\nnode\.id=3\nversion=1\n"
    assert re.fullmatch(pattern, (tmp_path / "meta.properties").read_text())
    assert '{"version":0,"brokerEpoch":7}' == (tmp_path / ".kafka_cleanshutdown").read_text()


@pytest.mark.parametrize("owner", [MetaProperties("c-1", 4), MetaProperties("c-2", 3)])
def test_a_directory_of_another_broker_is_refused(tmp_path, owner):
    """Nothing is changed, so its own broker starts as before."""
    logs_at(tmp_path).close(7, 2.0)
    with pytest.raises(ConfigError, match="belongs to broker 3 of cluster c-1, and this is broker"):
        logs_at(tmp_path, owner)
    logs = logs_at(tmp_path)
    assert 7 == logs.previous_epoch
    logs.abandon()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "version=1\ncluster.id=c-1\n",
        "version=0\ncluster.id=c-1\nbroker.id=3\n",
        "version=1\ncluster.id=c-1\nnode.id=three\n",
        "version=1\ncluster.id=\\uZ\nnode.id=3\n",
    ],
)
def test_broken_meta_properties_are_refused(tmp_path, content):
    """It is not known whose logs these are."""
    (tmp_path / "meta.properties").write_text(content)
    with pytest.raises(ConfigError, match=r"meta\.properties cannot be read"):
        logs_at(tmp_path)


@pytest.mark.parametrize("name", ["meta.properties", "cluster.json"])
def test_a_symbolic_link_is_refused(tmp_path, name):
    """The directory may have been prepared by somebody else."""
    target = tmp_path / "target"
    target.write_text("version=1\ncluster.id=c-1\nnode.id=3\n")
    directory = tmp_path / "broker"
    directory.mkdir()
    (directory / name).symlink_to(target)
    with pytest.raises(ConfigError, match="is not a file"):
        logs_at(directory)


def test_a_directory_with_other_files_is_refused(tmp_path):
    """So is that of a cluster, whose logs are not one broker's."""
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"is not empty and has no meta\.properties"):
        logs_at(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", '{"brokerEpoch":"x"}', "[]"])
def test_a_marker_without_an_epoch_is_one_of_a_clean_shutdown(tmp_path, content):
    """As in Kafka; the broker then is not known to have all that it had."""
    logs_at(tmp_path).close(7, 2.0)
    (tmp_path / ".kafka_cleanshutdown").write_text(content)
    logs = logs_at(tmp_path)
    assert -1 == logs.previous_epoch
    logs.abandon()


def test_truncated_logs_are_recovered_from_where_they_ended(tmp_path):
    """What is appended after a truncation is checked after a crash, although more was flushed."""
    logs = logs_at(tmp_path)
    log = logs.open(FIRST, "t", CONFIG)
    write(log, 3)
    log.flush(0)
    logs.truncated()
    log.truncate_as_follower(1, 0)
    logs.truncated()
    points = (tmp_path / "recovery-point-offset-checkpoint").read_text()
    assert "0\n1\nt 0 1\n" == points
    logs.abandon()
