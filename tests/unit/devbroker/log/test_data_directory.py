"""A cluster that stores its topics and records in a directory."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.dev_broker import DevBroker
from spark_kafka_sink.devbroker.groups.group_offsets import CommittedOffset
from spark_kafka_sink.devbroker.log import disk
from spark_kafka_sink.devbroker.log.data_directory import (
    CLEANER_OFFSETS,
    LOG_STARTS,
    DataDirectory,
    MetaProperties,
    StoredCluster,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.record.decode import decode_records
from tests.support.devbroker.admin_requests import delete_records
from tests.support.devbroker.broker_process import broker_process
from tests.support.devbroker.broker_requests import ask
from tests.support.devbroker.durable_cluster import DurableCluster
from tests.support.devbroker.transactional_client import TransactionalClient, TransactionalRequests
from tests.support.network.raw_client import RawClient

INIT = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)


@pytest.fixture
def cluster(tmp_path):
    cluster = DurableCluster(tmp_path / "data")
    yield cluster
    cluster.close()


@pytest.fixture(params=["restart", "kill"])
def again(request, cluster):
    """Return the function that reopens the cluster after a clean close or after a kill."""
    return getattr(cluster, request.param)


def create(cluster, name="t", partitions=1, **configs):
    configs = {key.replace("_", "."): value for key, value in configs.items()}
    defaults = cluster.broker.settings.topic_defaults
    return cluster.broker.cluster.create_topic(
        name, partitions=partitions, config=defaults.with_values(configs), overrides=configs
    )


def files(cluster, pattern):
    return sorted(str(path.relative_to(cluster.path)) for path in cluster.path.glob(pattern))


def test_topics_ids_and_settings_outlive_the_broker(cluster, again):
    """A topic is the same after a restart, whether the broker was closed or killed."""
    first = create(cluster, "a", 3, max_message_bytes="5000")
    second = create(cluster, "b.c")

    broker = again()

    assert ["a", "b.c"] == [topic.name for topic in broker.cluster.topics]
    topic = broker.cluster.topic("a")
    assert (first.topic_id, 3, {"max.message.bytes": "5000"}, 5000) == (
        topic.topic_id,
        len(topic.partitions),
        topic.overrides,
        topic.config.max_message_bytes,
    )
    assert second.topic_id == broker.cluster.topic("b.c").topic_id
    assert [1, 1, 1] == [partition.leader_id for partition in topic.partitions]


def test_changes_of_topics_outlive_the_broker(cluster, again):
    """New partitions, configs and deletions are durable once they are acknowledged."""
    state = cluster.broker.cluster
    topic = create(cluster)
    create(cluster, "gone", 2)
    with state.change_topics() as changes:
        changes.add_partitions(topic, 4)
    with state.change_topics() as changes:
        config = topic.config.with_values({"flush.ms": "7"})
        changes.configure_topic(topic, config, {"flush.ms": "7"})
    state.delete_topic(state.topic("gone"))

    broker = again()

    assert (4, {"flush.ms": "7"}, 7) == (
        len(broker.cluster.topic("t").partitions),
        broker.cluster.topic("t").overrides,
        broker.cluster.topic("t").partitions[3].log.config.flush_ms,
    )
    assert None is broker.cluster.topic("gone")
    assert [] == files(cluster, "gone*") + files(cluster, "*-delete")


def test_a_topic_that_is_created_again_has_none_of_the_old_records(cluster, again):
    """Whatever happened to the old files, a new topic is empty."""
    create(cluster)
    client = TransactionalClient(cluster.broker)
    client.produce((7, 0), 0, attributes=0)
    cluster.broker.cluster.delete_topic(cluster.broker.cluster.topic("t"))
    create(cluster)

    broker = again()

    assert 0 == broker.cluster.topic("t").partitions[0].log.log_end_offset


def test_records_and_leader_epochs_outlive_the_broker(cluster, again):
    """Acknowledged records can be read, and a new leader epoch begins."""
    create(cluster)
    client = TransactionalClient(cluster.broker)
    assert [(0, 0)] == client.produce((7, 0), 0, attributes=0, value=b"x")

    client.broker = again()

    assert [(0, 1)] == client.produce((7, 0), 1, attributes=0, value=b"y")
    log = client.broker.cluster.topic("t").partitions[0].log
    assert [b"x", b"y"] == client.read_committed()
    assert ((0, 0), (1, 1)) == log.leader_epochs.entries


def test_a_log_start_outlives_the_broker(cluster, again):
    """Records that DeleteRecords removed do not come back."""
    create(cluster)
    client = TransactionalClient(cluster.broker)
    for sequence in range(4):
        client.produce((7, 0), sequence, attributes=0)
    ask(cluster.broker, delete_records(("t", 0, 3)))

    log = again().cluster.topic("t").partitions[0].log

    assert (3, 4) == (log.log_start_offset, log.log_end_offset)


def test_a_producer_id_is_never_given_out_twice(cluster, again):
    """Ids that may have been handed out before are skipped."""
    given = [ask(cluster.broker, INIT).producer_id for _ in range(3)]
    assert [0, 1, 2] == given
    for _ in range(3):
        broker = again()
        given += [ask(broker, INIT).producer_id for _ in range(2)]

    assert 9 == len(set(given))
    assert sorted(given) == given


def test_the_files_have_kafkas_names(cluster):
    """Directories, checkpoints and the clean shutdown marker are named as in Kafka."""
    create(cluster, "orders", 2)
    cluster.close()

    assert [
        ".kafka_cleanshutdown",
        ".lock",
        ".reserve",
        "cluster.json",
        "log-start-offset-checkpoint",
        "orders-0",
        "orders-1",
        "recovery-point-offset-checkpoint",
    ] == files(cluster, "*")
    metadata = (cluster.path / "orders-0" / "partition.metadata").read_text()
    assert re.fullmatch(r"version: 0\ntopic_id: [\w-]{22}\n", metadata)
    assert (
        "0\n2\norders 0 0\norders 1 0\n"
        == (cluster.path / "recovery-point-offset-checkpoint").read_text()
    )


def test_only_the_brokers_user_can_read_the_data_directory(cluster, again):
    """Directories are 0700 and files 0600, also files that are replaced or created later."""
    create(cluster, "orders", 2, retention_ms="1000")
    ask(cluster.broker, INIT)
    again()
    create(cluster, "later")
    cluster.close()

    assert {0o700: True, 0o600: False} == {
        stat.S_IMODE(path.stat().st_mode): path.is_dir()
        for path in (cluster.path, *cluster.path.rglob("*"))
    }


def test_a_running_broker_has_no_clean_shutdown_marker(cluster):
    """A broker that is killed with open logs must not be mistaken for one that was closed."""
    create(cluster, "orders")
    assert [] == files(cluster, ".kafka*")
    cluster.restart()
    assert [] == files(cluster, ".kafka*")


def test_flushing_is_left_to_the_system_unless_a_topic_asks_for_it(cluster):
    """flush.messages counts records and flush.ms time; without either nothing is flushed."""
    logs = [
        create(cluster, name, **configs).partitions[0].log
        for name, configs in (
            ("never", {}),
            ("often", {"flush_messages": "2"}),
            ("soon", {"flush_ms": "100"}),
        )
    ]
    for name in ("never", "often", "soon"):
        client = TransactionalClient(cluster.broker, topic=name)
        for sequence in range(3):
            client.produce((7, 0), sequence, attributes=0)
    assert [0, 2, 0] == [log.recovery_point for log in logs]

    cluster.broker.tick(cluster.now + 0.1)

    assert [0, 2, 3] == [log.recovery_point for log in logs]


def test_where_logs_were_flushed_is_kept_every_minute(cluster):
    """After a kill, only records after the checkpoint have to be checked."""
    create(cluster, flush_messages="1")
    TransactionalClient(cluster.broker).produce((7, 0), 0, attributes=0)
    assert not files(cluster, "recovery-point*")

    cluster.broker.tick(cluster.now + 60)

    points = (cluster.path / "recovery-point-offset-checkpoint").read_text()
    assert "0\n1\nt 0 1\n" == points


def test_a_directory_is_used_by_one_broker_at_a_time(cluster):
    """A second broker reports that the directory is in use, and changes nothing."""
    with pytest.raises(ConfigError, match="in use by another broker"):
        DurableCluster(cluster.path)


def test_a_directory_with_other_files_is_refused(tmp_path):
    """Files of another program are never mistaken for a log."""
    (tmp_path / "thesis.txt").write_text("x")

    with pytest.raises(ConfigError, match="is not empty"):
        DataDirectory(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"version": 2}', b"[]", b"\xff"])
def test_a_broken_cluster_file_is_refused(tmp_path, content):
    """A broker that cannot read its topics does not start without them."""
    (tmp_path / "cluster.json").write_bytes(content)
    data = DataDirectory(tmp_path)

    with pytest.raises(ConfigError, match=r"cluster\.json cannot be read"):
        data.read_cluster()
    data.close()


def test_a_directory_that_cannot_be_read_is_not_marked_as_closed_in_order(cluster):
    """The next broker that opens the directory checks every log."""
    create(cluster)
    cluster.broker.cluster.groups.offsets.commit(
        "g", {TopicPartition("t", 0): CommittedOffset(1)}, now_ms=0
    )
    cluster.close()
    (log,) = cluster.path.glob("__consumer_offsets-*/*.log")
    whole = log.read_bytes()
    log.write_bytes(whole[:-1] + b"?")

    with pytest.raises(ConfigError, match="the data directory cannot be read"):
        DurableCluster(cluster.path)

    assert [] == files(cluster, ".kafka*")
    log.write_bytes(whole)
    assert 1 == len(cluster.restart().cluster.groups.offsets.committed("g"))


@pytest.mark.parametrize(
    "content",
    [b"", b"0\n1\n", b"0\n1\nt 0\n", b"1\n0\n", b"0\n1\nt 0 \xb2\n", "0\n1\n\u00fc 0 1\n".encode()],
)
def test_a_broken_checkpoint_is_refused(tmp_path, content):
    """Offsets are not guessed, and bytes that are not ASCII are reported like other damage."""
    (tmp_path / "cluster.json").write_text("{}")
    (tmp_path / "log-start-offset-checkpoint").write_bytes(content)
    data = DataDirectory(tmp_path)

    with pytest.raises(ConfigError, match="log-start-offset-checkpoint cannot be read"):
        data.read_checkpoint(LOG_STARTS)
    data.close()


@pytest.mark.parametrize("name", ["../up", "a/b", "..", "."])
def test_no_topic_leads_out_of_the_directory(cluster, name):
    """A topic's name is part of a path, so Kafka's rule for names matters twice here."""
    with pytest.raises(RefusedError) as caught:
        create(cluster, name)

    assert ErrorCode.INVALID_TOPIC_EXCEPTION == caught.value.error_code
    assert [".lock", ".reserve", "cluster.json"] == files(cluster, "*")


def _snapshot(directory):
    """Return the files below a directory, each with its content."""
    return {path: path.is_file() and path.read_bytes() for path in directory.rglob("*")}


@pytest.mark.parametrize(
    "name", ["../../home/x", "../home", "a/b", "..", ".", "", "a\nb", "x" * 250, 7, None, ["t"]]
)
@pytest.mark.parametrize("place", ["topics", "internal_topic_ids"])
def test_no_stored_name_leads_out_of_the_directory(cluster, tmp_path, name, place):
    """A stored cluster with a name that no topic can have is refused before anything changes."""
    create(cluster, "orders")
    cluster.close()
    (tmp_path / "home" / "x-0").mkdir(parents=True)
    (tmp_path / "home" / "x-0" / "letter").write_text("x")
    (cluster.path / "old-delete").mkdir()
    stored = json.loads((cluster.path / "cluster.json").read_text())
    if place == "topics":
        stored["topics"][0]["name"] = name
    else:
        stored["internal_topic_ids"] = {str(name or "/"): "00000000-0000-0000-0000-000000000000"}
        if name in (7, ["t"]):
            stored["internal_topic_ids"] = [name]
    (cluster.path / "cluster.json").write_text(json.dumps(stored))
    before = _snapshot(tmp_path)

    with pytest.raises(ConfigError, match=r"cluster\.json cannot be read: ") as caught:
        cluster.open()

    assert 1 == len(str(caught.value).splitlines())
    assert before == _snapshot(tmp_path)


@pytest.mark.parametrize("entry", ["../x 0 1", "t -1 1", "t 1_0 1", "t 00 1", "t \u0661 1"])
def test_a_checkpoint_with_a_name_or_number_that_cannot_be_is_refused(tmp_path, entry):
    """Checkpoints name partitions, which are paths too."""
    (tmp_path / "cluster.json").write_text("{}")
    (tmp_path / "cleaner-offset-checkpoint").write_text(f"0\n1\n{entry}\n")
    data = DataDirectory(tmp_path)

    with pytest.raises(ConfigError, match="cleaner-offset-checkpoint cannot be read"):
        data.read_checkpoint(CLEANER_OFFSETS)
    data.close()


def test_a_directory_is_a_log_only_under_the_name_that_kafka_gives_it(cluster):
    """A number with leading zeros does not stand for the partition of another directory."""
    create(cluster, "t", 2)
    (cluster.path / "t-01").mkdir(mode=0o700)
    (cluster.path / "t-\u0661").mkdir(mode=0o700)

    assert [0, 1] == cluster.broker.cluster.logs.data.partitions("t")


@pytest.mark.parametrize(
    "place",
    ["cluster.json", "cluster.json.tmp", ".lock", ".reserve", "t-0", "t-0/partition.metadata",
     "t-0/00000000000000000000.log"],
)  # fmt: skip
def test_no_link_is_followed(cluster, tmp_path, place):
    """A link in place of any file or log is refused, and its target is unchanged."""
    create(cluster)
    cluster.close()
    path = cluster.path / place
    target = tmp_path / "target"
    if path.exists():
        path.rename(target)
    else:
        target.write_text("precious")
    path.symlink_to(target)
    before = _snapshot(tmp_path)

    with pytest.raises(ConfigError, match=f"{path} is not a (file|directory)"):
        cluster.open()

    assert before == _snapshot(tmp_path)


def test_a_link_that_appears_later_is_not_followed(cluster, tmp_path):
    """A small file is replaced by a new one, whatever is in the way under its temporary name."""
    (tmp_path / "target").write_text("precious")
    (cluster.path / "cluster.json.tmp").symlink_to(tmp_path / "target")
    create(cluster, "orders")

    assert "precious" == (tmp_path / "target").read_text()
    assert "orders" in (cluster.path / "cluster.json").read_text()
    assert not (cluster.path / "cluster.json").is_symlink()


@pytest.mark.parametrize("operation", ["open_file", "create_file", "rename", "remove"])
@pytest.mark.parametrize("linked", ["directory", "file"])
def test_no_disk_function_follows_a_link(tmp_path, operation, linked):
    """Neither a file nor its directory is reached through a link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("precious")
    (tmp_path / "link").symlink_to("real" if linked == "directory" else "real/file")
    path = tmp_path / "link" / "file" if linked == "directory" else tmp_path / "link"
    arguments = {"open_file": {"create": True}, "rename": {"target": path.with_name("other")}}
    with suppress(OSError):
        getattr(disk, operation)(path, **arguments.get(operation, {}))

    assert ["file"] == [each.name for each in (tmp_path / "real").iterdir()]
    assert "precious" == (tmp_path / "real" / "file").read_text()
    assert linked != "directory" or (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("mode", [0o777, 0o757])
@pytest.mark.parametrize("place", [".", "data", "data/t-0"])
def test_a_directory_that_others_can_change_is_refused(cluster, tmp_path, mode, place):
    """Another user could put a link or another topic into it, at any time."""
    create(cluster)
    cluster.close()
    cluster.path.chmod(0o755)
    (tmp_path / place).chmod(mode)
    before = _snapshot(tmp_path)

    with pytest.raises(ConfigError, match=rf"other users can write to {tmp_path / place}\. "):
        cluster.open()

    assert before == _snapshot(tmp_path)


@pytest.mark.parametrize("place", ["data", "data/cluster.json", "data/t-0"])
def test_a_directory_of_another_user_is_refused(cluster, tmp_path, monkeypatch, place):
    """Its owner could change it whatever its mode."""
    create(cluster)
    cluster.close()
    read = Path.lstat

    def lstat(path):
        fields = list(read(path))
        fields[stat.ST_UID] += path == tmp_path / place
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "lstat", lstat)
    with pytest.raises(
        ConfigError, match=rf"{tmp_path / place} belongs to user {os.geteuid() + 1}"
    ):
        cluster.open()


@pytest.mark.parametrize("through_link", [False, True])
def test_a_directory_with_the_usual_mode_works(cluster, tmp_path, through_link):
    """A directory that the user has made before, or a link to it, is as good as a new one."""
    cluster.close()
    path = tmp_path / "made"
    path.mkdir(mode=0o755)
    if through_link:
        path = tmp_path / "link"
        path.symlink_to("made")
    again = DurableCluster(path)
    create(again, "orders")
    broker = again.restart()

    assert ["orders"] == [topic.name for topic in broker.cluster.topics]
    again.close()


def test_a_stopped_dev_broker_can_be_started_again_or_replaced(tmp_path):
    """Records survive both `stop` and the broker object itself."""
    with DevBroker(data_dir=tmp_path, topics={"t": 1}) as broker:
        with RawClient(broker.port) as client:
            _produce(client, [0, 1])
        broker.stop()
        broker.start()
        assert 2 == broker.call(lambda it: it.cluster.topic("t").partitions[0].log.log_end_offset)
    with DevBroker(data_dir=tmp_path, topics={"t": 1, "u": 2}) as broker:
        assert ["t", "u"] == broker.topic_names
        assert [0, 1] == _values(broker)


def test_a_dev_broker_with_a_directory_returns_its_records(tmp_path):
    """Records are returned even if several batches are read from a file at once."""
    with DevBroker(data_dir=tmp_path, topics={"t": 1}) as broker:
        with RawClient(broker.port) as client:
            _produce(client, range(3))
        assert [b"0", b"1", b"2"] == [record.value for record in broker.records("t")[0]]


class _OverSocket(TransactionalRequests):
    """A client that sends its requests through a connection."""

    def __init__(self, client):
        super().__init__("x", "t")
        self.client = client

    def ask(self, request, version, **fields):
        return self.client.ask(request, version)


def _request(number):
    return _OverSocket(None).produce_request((7, 0), number, attributes=0, value=b"%d" % number)


def _produce(client, numbers):
    over_socket = _OverSocket(client)
    return [
        over_socket.produce((7, 0), number, attributes=0, value=b"%d" % number)[0]
        for number in numbers
    ]


def _values(broker):
    def read(it):
        log = it.cluster.partition(TopicPartition("t", 0)).log
        batches = log.batches()
        return [int(r.value) for batch in batches for r in decode_records(bytes(batch))]

    return broker.call(read)


@pytest.mark.parametrize(
    "place", ["brokers", "brokers/3", "brokers/3/t-0", "brokers/3/t-0/partition.metadata"]
)
def test_the_directories_of_brokers_are_checked_with_the_clusters(tmp_path, place):
    """They lie in it, with files two levels deeper, which nobody else may change either."""
    data = DataDirectory(tmp_path)
    data.write_cluster(StoredCluster(cluster_id="c"))
    broker = DataDirectory(data.broker_path(3), MetaProperties("c", 3))
    broker.log_directory(TopicPartition("t", 0), uuid.UUID(int=1))
    broker.close()
    data.close()
    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(0o755)
    DataDirectory(tmp_path).close()
    (tmp_path / place).chmod(0o777)
    with pytest.raises(ConfigError, match=rf"other users can write to {tmp_path / place}\. "):
        DataDirectory(tmp_path)


@pytest.mark.slow
def test_a_broker_killed_in_mid_write_has_all_that_it_has_answered(tmp_path):
    """After SIGKILL every acknowledged record is there once, and its producer can continue."""
    data = str(tmp_path / "data")
    answered = 0
    with broker_process("--port", "0", "--data-dir", data, "--topic", "t") as process:
        port = int(process.stdout.readline().rpartition(":")[2])
        client = RawClient(port)
        client.send_bytes(b"".join(client.frame(_request(number), 11) for number in range(1000)))
        try:
            while True:
                client.receive()
                answered += 1
                if answered == 100:
                    process.send_signal(signal.SIGKILL)
        except OSError:
            client.close()
    assert 100 <= answered
    assert "cluster_id" in json.loads((tmp_path / "data" / "cluster.json").read_text())

    with DevBroker(data_dir=tmp_path / "data") as broker:
        values = _values(broker)
        count = len(values)
        assert list(range(count)) == values
        assert answered <= count
        with RawClient(broker.port) as client:
            recent = range(count - 5, count)
            assert [(0, number) for number in recent] == _produce(client, recent)
            assert [(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)] == _produce(client, [count + 1])
            assert [(0, count)] == _produce(client, [count])
