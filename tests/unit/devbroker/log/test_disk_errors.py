"""How the broker responds to disk errors, which state it keeps, and how it recovers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from spark_kafka_sink import devbroker
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.log.files import AppendFile, OpenFiles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsRequest
from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.devbroker.admin_requests import (
    SET,
    TOPIC,
    alter_configs,
    create_partitions,
    delete_records,
    delete_topics,
)
from tests.support.devbroker.broker_asker import creatable
from tests.support.devbroker.broker_requests import ask
from tests.support.devbroker.durable_cluster import DurableCluster
from tests.support.devbroker.faulty_disk import OPERATIONS, Failure, FaultyDisk
from tests.support.devbroker.group_client import GroupClient
from tests.support.devbroker.log_script import LogWriter, Step, open_log, records_of
from tests.support.devbroker.transactional_client import TransactionalClient
from tests.support.record.plain_batches import PlainRecord, plain_batch

OK = ErrorCode.NONE
STORAGE = ErrorCode.KAFKA_STORAGE_ERROR
ASK_AGAIN = ErrorCode.NOT_COORDINATOR
#: Every batch is indexed, and every third one begins a segment.
SMALL = TopicConfig(segment_bytes=250, index_interval_bytes=0)


@pytest.fixture
def disk(monkeypatch):
    return FaultyDisk(monkeypatch)


@pytest.fixture
def cluster(tmp_path, disk):
    cluster = DurableCluster(tmp_path / "data", topic_defaults=SMALL)
    topics = cluster.broker.cluster
    topics.create_topic("t", partitions=1, config=cluster.settings.topic_defaults)
    yield cluster
    disk.free()
    cluster.close()


@pytest.fixture
def client(cluster):
    return TransactionalClient(cluster.broker)


def log_of(cluster, topic="t"):
    return cluster.broker.cluster.topic(topic).partitions[0].log


def produce(client, *sequences):
    return [client.produce((7, 0), each, attributes=0)[0][0] for each in sequences]


def append(log, batch, *, expected):
    """Append a batch at the expected offset, and return the error code, NONE if it succeeds."""
    memory = memoryview(bytearray(batch))
    try:
        result = log.append(memory, decode_header(memory))
    except RefusedError as refused:
        return refused.error_code
    assert expected == result.first_offset
    return OK


def in_use(name):
    """Return the places where a module of the broker changes files directly."""
    changing = {
        "open", "pwrite", "ftruncate", "fsync", "rename", "unlink", "rmtree", "mkdir", "rmdir",
        "write_text", "write_bytes", "touch", "makedirs", "remove", "truncate", "symlink_to",
    }  # fmt: skip
    tree = ast.parse(name.read_text())
    return [
        f"{name.name}:{node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in {"os", "shutil", "path", "entry", "temporary", "source", "target"}
        and node.func.attr in changing
    ]


def test_everything_on_disk_is_changed_in_one_place():
    """This is why a test that makes the disk fail covers every change of a file."""
    directory = Path(devbroker.__file__).parent
    modules = {path: in_use(path) for path in directory.rglob("*.py")}
    disk = directory / "log" / "disk.py"
    # Its socket is no data, and it runs beside the broker.
    control = directory / "net" / "control.py"

    assert in_use(disk)
    others = modules.keys() - {disk, control}
    assert [] == [place for path in others for place in modules[path]]
    functions = ast.parse(disk.read_text()).body
    assert list(OPERATIONS) == [
        node.name
        for node in functions
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]


class TestLog:
    """The log of one partition."""

    @pytest.mark.parametrize("flush_messages", [1, 2, 2**63 - 1])
    @pytest.mark.parametrize("failure", Failure)
    def test_a_batch_that_is_refused_leaves_nothing(self, tmp_path, disk, failure, flush_messages):
        """After any failure in an append the next one gets its offset, and a kill loses nothing."""
        config = TopicConfig(
            segment_bytes=250, index_interval_bytes=0, flush_messages=flush_messages
        )
        for number in range(1000):
            path = tmp_path / str(number)
            log = open_log(path, config=config)
            disk.failed.clear()
            disk.fail_after(number, failure)
            for value in range(8):
                batch = plain_batch([PlainRecord(b"%d" % value)])
                for _ in range(3):
                    code = append(log, batch, expected=value)
                    if code is OK:
                        break
                    assert (STORAGE, value) == (code, log.log_end_offset)
                    if failure is not Failure.ONCE and len(disk.failed) > 1:
                        disk.free()
            has_failed = bool(disk.failed)
            disk.free()
            before, recovery_point = records_of(log), log.recovery_point
            log.directory.close()
            log = open_log(path, config=config, clean=False, recovery_point=recovery_point)

            expected = [(value, 0, b"%d" % value) for value in range(8)]
            assert (expected, expected) == (before, records_of(log)), number
            log.close(0)
            log = open_log(path, config=config)
            assert expected == records_of(log), number
            log.directory.close()
            if not has_failed:
                return
        pytest.fail("there are more operations than thought")

    def test_an_index_is_written_when_the_segment_is_flushed(self, tmp_path):
        """An append writes only the batch; a flush writes its index entries."""
        log = open_log(tmp_path, config=TopicConfig(index_interval_bytes=0))
        writer = LogWriter(log)
        writer.do([Step(1, 1, 3, committed=True)] * 3 + [Step(1, 0, 4, committed=False)])
        files = [tmp_path / f"{0:020d}{suffix}" for suffix in (".index", ".timeindex", ".txnindex")]
        assert [0, 0, False] == [
            files[0].stat().st_size,
            files[1].stat().st_size,
            files[2].exists(),
        ]

        log.flush(0)

        assert [24, 24, 34] == [file.stat().st_size for file in files]
        log.directory.close()

    def test_a_segment_that_could_not_be_rolled_leaves_no_gap(self, tmp_path, disk):
        """The empty file of a failed roll does not end the log if a smaller batch follows it."""
        size = len(plain_batch([PlainRecord(b"x")]))
        log = open_log(tmp_path, config=TopicConfig(segment_bytes=3 * size))
        writer = LogWriter(log)
        for _ in range(2):
            writer.append(plain_batch([PlainRecord(b"x")]))
        large = plain_batch([PlainRecord(b"x" * size)])
        for number in range(100):
            disk.fail_after(number, Failure.ONCE)
            with pytest.raises(RefusedError, match="No space"):
                writer.append(large)
            if (tmp_path / f"{2:020d}.log").exists():
                break
        writer.append(plain_batch([PlainRecord(b"y")]))
        log.directory.close()

        log = open_log(tmp_path, clean=False)

        assert [b"x", b"x", b"y"] == [value for _, _, value in records_of(log)]
        log.directory.close()

    def test_a_file_that_cannot_be_cut_back_is_cut_before_it_is_used(self, tmp_path, disk):
        """A partial write stays in the file only until the next write or flush."""
        file = AppendFile(tmp_path / "x", OpenFiles())
        file.append(b"before")
        disk.fail_after(0, Failure.READ_ONLY)
        with pytest.raises(OSError, match="No space"):
            file.append(b"more bytes")
        assert (6, True, 11) == (file.size, file.is_torn, (tmp_path / "x").stat().st_size)
        disk.free()

        file.flush()

        assert b"before" == (tmp_path / "x").read_bytes()
        file.delete()

    def test_old_segments_go_on_a_full_disk(self, tmp_path, disk):
        """Old segments are deleted before anything is written; creating a new one comes last."""
        log = open_log(tmp_path, config=TopicConfig(segment_bytes=250, retention_ms=10))
        writer = LogWriter(log)
        writer.do([Step(0, 1, 0, committed=True)] * 7)
        assert 3 < len(log.segments)
        disk.fail_after(0, Failure.FULL)

        with pytest.raises(OSError, match="No space"):
            log.delete_old_segments(10**6)

        assert (1, 6, 7) == (len(log.segments), log.log_start_offset, log.log_end_offset)
        assert 1 == len(list(tmp_path.glob("*.log")))
        disk.free()
        log.delete_old_segments(10**6)
        assert (7, 7) == (log.log_start_offset, log.log_end_offset)
        log.directory.close()

    def test_an_epoch_that_cannot_be_written_is_known_from_the_batches(self, tmp_path, disk):
        """A leader continues on a full disk, and its epoch is restored after a restart."""
        log = open_log(tmp_path)
        LogWriter(log).append(plain_batch(3))
        disk.fail_after(0, Failure.FULL)
        log.begin_leader_epoch(4)
        disk.free()
        LogWriter(log).append(plain_batch(2))
        log.directory.close()

        log = open_log(tmp_path, clean=False)

        assert (4, ((0, 0), (4, 3))) == (log.leader_epoch, log.leader_epochs.entries)
        log.directory.close()


class TestTransactions:
    """Transaction markers and the records of the coordinator."""

    @pytest.mark.parametrize("failure", Failure)
    def test_an_abort_is_an_abort_whatever_fails(self, cluster, client, disk, failure):
        """Aborted records are never visible, and the id can be used again once the disk works."""
        for number in range(100):
            disk.free()
            disk.failed.clear()
            code, identity = client.init()
            assert OK == code
            client.produce(identity, 0, value=b"aborted")
            disk.fail_after(number, failure)
            while (code := client.end(identity, committed=False)[0]) != OK:
                assert code in {ASK_AGAIN, ErrorCode.CONCURRENT_TRANSACTIONS}
                disk.free()
            assert [] == client.read_committed()
            has_failed = bool(disk.failed)
            disk.free()
            client.now += 1
            client.broker.tick(client.now)
            assert ("CompleteAbort", log_of(cluster).log_end_offset) == (
                client.state(),
                log_of(cluster).last_stable_offset,
            )
            if not has_failed:
                break
        cluster.now = client.now
        client.broker = cluster.kill()
        assert [] == client.read_committed()

    @pytest.mark.parametrize("committed", [True, False])
    def test_an_end_that_cannot_be_written_has_not_begun(self, cluster, client, disk, committed):
        """The producer retries and succeeds without a restart of the broker."""
        _, identity = client.init()
        client.produce(identity, 0)
        disk.fail_after(0, Failure.FULL)

        assert (ASK_AGAIN, "Ongoing") == (
            client.end(identity, committed=committed)[0],
            client.state(),
        )
        disk.free()
        assert OK == client.end(identity, committed=committed)[0]
        assert ([b"v"] if committed else []) == client.read_committed()
        assert 2 == client.latest()

    def test_a_step_that_cannot_be_written_is_not_taken(self, cluster, client, disk):
        """No epoch is bumped and no transaction begun that would be lost in a restart."""
        _, identity = client.init()
        disk.fail_after(0, Failure.FULL)

        assert ASK_AGAIN == client.init()[0]
        assert identity == client.identity()
        assert [ASK_AGAIN] == client.add(identity, 0)
        assert ("Empty", set()) == (
            client.state(),
            client.broker.cluster.transactions.find("x", 0).partitions,
        )

    def test_a_timeout_that_cannot_be_written_comes_again(self, cluster, client, disk):
        """The next check aborts the transaction."""
        _, identity = client.init(timeout_ms=5000)
        client.produce(identity, 0)
        disk.fail_after(0, Failure.FULL)
        client.broker.tick(client.now + 20)
        assert "Ongoing" == client.state()
        disk.free()

        client.now += 31
        client.broker.tick(client.now)

        assert "CompleteAbort" == client.state()
        assert (2, []) == (client.latest(), client.read_committed())

    def test_an_id_that_cannot_be_forgotten_is_known(self, tmp_path, disk):
        """The id expires once the expiration can be written."""
        cluster = DurableCluster(tmp_path / "short", transactional_id_expiration_ms=1000)
        client = TransactionalClient(cluster.broker)
        client.init()
        client.now += 2
        disk.fail_after(0, Failure.FULL)
        assert "Empty" == client.state()
        disk.free()
        assert None is client.state()
        cluster.close()


class TestGroups:
    """The records of the group coordinator."""

    def test_an_assignment_that_cannot_be_written_is_not_sent(self, cluster, disk):
        """The group rebalances, and its member joins again and gets its assignment later."""
        group = GroupClient(cluster.broker)
        joined = group.join()
        disk.fail_after(0, Failure.FULL)

        answer = group.sync(joined.member_id, 1, {joined.member_id: b"all"})
        assert (ASK_AGAIN, b"", "PreparingRebalance") == (
            answer.error_code,
            answer.assignment,
            group.state(),
        )
        disk.free()
        again = group.join(joined.member_id)
        assert (OK, 2) == (again.error_code, again.generation_id)
        assert b"all" == group.sync(joined.member_id, 2, {joined.member_id: b"all"}).assignment

    def test_a_static_member_that_cannot_be_written_keeps_its_id(self, cluster, disk):
        """The previous member continues with its id."""
        group = GroupClient(cluster.broker)
        joined = group.join(instance_id="one")
        group.sync(joined.member_id, 1, {joined.member_id: b"all"}, instance_id="one")
        disk.fail_after(0, Failure.FULL)

        assert ASK_AGAIN == group.join(instance_id="one").error_code

        assert OK == group.heartbeat(joined.member_id, 1, instance_id="one")
        disk.free()
        assert OK == group.join(instance_id="one").error_code

    def test_offsets_and_deletions_that_cannot_be_written_do_not_count(self, cluster, disk):
        """The previously committed offsets remain, also after a kill."""
        group = GroupClient(cluster.broker)
        group.commit({("t", 0): 3})
        disk.fail_after(0, Failure.FULL)

        assert [ASK_AGAIN] == group.commit({("t", 0): 4})
        (answer,) = ask(cluster.broker, DeleteGroupsRequest(groups_names=("g",))).results
        assert (ASK_AGAIN, {("t", 0): (OK, 3)}) == (answer.error_code, group.offsets("t", 0))
        disk.free()
        group.broker = cluster.kill()
        assert {("t", 0): (OK, 3)} == group.offsets("t", 0)

    @pytest.mark.parametrize("again", ["create", "kill"])
    def test_offsets_of_a_deleted_topic_never_come_back(self, cluster, disk, again):
        """Even if the log could not record it at once, a new topic of that name has no offsets."""
        topics = cluster.broker.cluster
        config = cluster.settings.topic_defaults
        gone = topics.create_topic("gone", partitions=1, config=config)
        GroupClient(cluster.broker).commit({("gone", 0): 3})
        log = topics.groups.offsets._log.partition(3)
        log.config = TopicConfig(segment_bytes=1)  # Nothing more fits into it.
        topics.delete_topic(gone)
        log.config = TopicConfig()

        if again == "kill":
            topics = cluster.kill().cluster
        topics.create_topic("gone", partitions=1, config=config)

        cluster.kill()
        assert {("gone", 0): (OK, -1)} == GroupClient(cluster.broker).offsets("gone", 0)


class TestTopics:
    """The requests of administrators."""

    def test_records_can_be_deleted_on_a_full_disk(self, cluster, client, disk):
        """Whole segments are deleted at once, which frees the space that the rest needs."""
        produce(client, *range(8))
        log = log_of(cluster)
        bases = [segment.base_offset for segment in log.segments]
        offset = bases[-1] - 1
        disk.fail_after(0, Failure.FULL)

        def delete():
            return ask(cluster.broker, delete_records(("t", 0, offset))).topics[0].partitions[0]

        assert STORAGE == delete().error_code
        assert (bases[-2], bases[-2]) == (log.log_start_offset, log.segments[0].base_offset)
        disk.free()
        assert (OK, offset) == (delete().error_code, log.log_start_offset)
        assert offset == cluster.kill().cluster.topic("t").partitions[0].log.log_start_offset

    def test_a_failed_write_is_a_storage_error_and_changes_nothing(self, cluster, disk):
        """No topic is created, changed or deleted in part; later all requests succeed."""
        broker = cluster.broker
        requests = [
            (
                CreateTopicsRequest(topics=(creatable("new", 3),), timeout_ms=1000),
                lambda answer: answer.topics[0].error_code,
            ),
            (create_partitions(("t", 3)), lambda answer: answer.results[0].error_code),
            (
                alter_configs((TOPIC, "t", [("flush.ms", SET, "7")])),
                lambda answer: answer.responses[0].error_code,
            ),
            (delete_topics("t"), lambda answer: answer.responses[0].error_code),
        ]
        disk.fail_after(0, Failure.FULL)
        assert [STORAGE] * 4 == [code(ask(broker, request)) for request, code in requests]
        disk.free()
        topic = broker.cluster.topic("t")
        assert (["t"], 1, {}) == (
            [each.name for each in broker.cluster.topics],
            len(topic.partitions),
            topic.overrides,
        )
        assert [OK] * 4 == [code(ask(broker, request)) for request, code in requests]
        assert ["new"] == [each.name for each in cluster.kill().cluster.topics]

    def test_files_of_a_deleted_topic_go_later_if_they_cannot_go_now(self, cluster, client, disk):
        """The topic is deleted at once; the next check of old segments removes its files."""
        produce(client, 0)
        # The operations up to recording the deletion in the cluster file succeed.
        disk.fail_after(6, Failure.READ_ONLY)
        (answer,) = ask(cluster.broker, delete_topics("t")).responses
        assert (OK, None) == (answer.error_code, cluster.broker.cluster.topic("t"))
        assert [*cluster.path.glob("t-0"), *cluster.path.glob("*-delete")]
        disk.free()

        cluster.broker.tick(cluster.now + 301)

        assert [] == [*cluster.path.glob("t-0"), *cluster.path.glob("*-delete")]

    def test_a_producer_id_is_not_given_out_before_it_is_set_aside(self, cluster, disk):
        """An id that would be handed out again after a restart is refused."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        disk.fail_after(0, Failure.FULL)
        for _ in range(2):
            answer = ask(cluster.broker, request)
            assert (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1) == (
                answer.error_code,
                answer.producer_id,
            )
        disk.free()
        first = ask(cluster.broker, request).producer_id
        assert first < ask(cluster.kill(), request).producer_id


class TestHousekeeping:
    """Periodic work."""

    def test_a_checkpoint_that_fails_is_written_a_minute_later(self, tmp_path, disk):
        """Checkpoints and timed flushes continue after a failure."""
        cluster = DurableCluster(tmp_path / "data")
        config = TopicConfig(flush_ms=1000)
        cluster.broker.cluster.create_topic("t", partitions=1, config=config)
        client = TransactionalClient(cluster.broker)
        produce(client, 0)
        disk.fail_after(0, Failure.READ_ONLY)
        cluster.broker.tick(cluster.now + 61)
        assert 0 == log_of(cluster).recovery_point
        disk.free()

        cluster.broker.tick(cluster.now + 121)

        points = (cluster.path / "recovery-point-offset-checkpoint").read_text()
        assert "0\n1\nt 0 1\n" == points
        cluster.close()

    def test_a_log_that_cannot_be_flushed_keeps_no_other_from_it(self, tmp_path, disk):
        """Each log is flushed on its own."""
        cluster = DurableCluster(tmp_path / "data")
        logs = []
        for name in ("a", "b", "c"):
            config = TopicConfig(flush_ms=1000)
            cluster.broker.cluster.create_topic(name, partitions=1, config=config)
            produce(TransactionalClient(cluster.broker, topic=name), 0)
            logs.append(log_of(cluster, name))
        disk.fail_after(0, Failure.ONCE)
        cluster.broker.tick(cluster.now + 1)
        assert [0, 1, 1] == [log.recovery_point for log in logs]

        cluster.broker.tick(cluster.now + 2)

        assert [1, 1, 1] == [log.recovery_point for log in logs]
        cluster.close()

    def test_a_broker_that_cannot_be_closed_in_order_is_looked_through(self, cluster, client, disk):
        """Closing raises, and the next broker recovers as after a kill, with all records."""
        produce(client, 0, 1)
        disk.fail_after(0, Failure.FULL)
        with pytest.raises(OSError, match="No space"):
            cluster.close()
        assert not (cluster.path / ".kafka_cleanshutdown").exists()
        disk.free()

        cluster.open()

        assert 2 == log_of(cluster).log_end_offset

    def test_a_broker_starts_on_a_full_disk(self, cluster, client, disk):
        """Otherwise no client could ask it to free space."""
        produce(client, 0, 1, 2)
        cluster.end()
        disk.fail_after(0, Failure.FULL)

        cluster.open()

        assert 3 == log_of(cluster).log_end_offset
