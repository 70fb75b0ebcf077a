"""Kafka's own DumpLogSegments can read what the embedded broker writes to disk."""

from __future__ import annotations

import re

import pytest

from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.log.log_cleaner import clean
from spark_kafka_sink.record.decode import decode_record_batch
from tests.support.devbroker.broker_requests import ask
from tests.support.devbroker.consumer_groups.consumer_group_client import (
    consumer_heartbeat,
    joining,
)
from tests.support.devbroker.durable_cluster import DurableCluster
from tests.support.devbroker.group_client import WITH_NAMES, GroupClient, txn_commit_request
from tests.support.devbroker.log_script import SMALL, LogWriter, Step, open_log
from tests.support.devbroker.transactional_client import TransactionalClient
from tests.support.kafka.java_tools import run_java_tool
from tests.support.record.plain_batches import PlainRecord, plain_batch

pytestmark = pytest.mark.kafka

STORY = [
    Step(0, 2, 1, committed=True),
    Step(1, 1, 2, committed=True),
    Step(2, 3, 9, committed=True),
    Step(1, 0, 14, committed=False),
    Step(3, 2, 15, committed=True),
    Step(2, 1, 20, committed=True),
]


def dump(*arguments):
    """Run the tool, and check that it reports no mismatch."""
    output = run_java_tool("org.apache.kafka.tools.DumpLogSegments", *arguments)
    assert "Mismatch" not in output
    return output


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "orders-0"
    writer = LogWriter(open_log(path))
    writer.do(STORY * 4)
    writer.log.close(0)
    return path


def files(directory, suffix):
    paths = sorted(directory.glob(f"*{suffix}"))
    assert paths
    return ",".join(map(str, paths))


def test_segments_hold_the_records_that_were_written(directory):
    """Every batch is valid, every record is there, and offsets have no gaps."""
    output = dump("--deep-iteration", "--print-data-log", "--files", files(directory, ".log"))

    log = open_log(directory, config=SMALL)
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", output, re.MULTILINE)]
    assert list(range(log.log_end_offset)) == offsets
    assert "isvalid: false" not in output
    assert output.count("isvalid: true") == len(list(log.batches()))
    assert 4 == output.count("endTxnMarker: ABORT coordinatorEpoch: 0")
    log.directory.close()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_indexes_pass_kafkas_sanity_check_and_fit_their_segments(directory, suffix):
    """The tool accepts each index and finds no entry that does not match its segment."""
    paths = files(directory, suffix)

    sane = dump("--index-sanity-check", "--files", paths)
    dumped = dump("--files", paths)

    for path in paths.split(","):
        assert re.search(rf"{re.escape(path)} (passed sanity check|is empty)", sane)
    assert "position: " in dumped or "timestamp: " in dumped
    for complaint in ("Mismatches", "Found timestamp mismatch", "Found out of order", "not found"):
        assert complaint not in dumped


def test_the_transaction_index_lists_the_aborted_transactions(directory):
    """Each entry has version 0, and the offsets of the transaction and its marker."""
    output = dump("--files", files(directory, ".txnindex"))

    log = open_log(directory, config=SMALL)
    expected = [
        f"version: 0 producerId: {txn.producer_id} firstOffset: {txn.first_offset} "
        f"lastOffset: {txn.last_offset} lastStableOffset: {txn.last_stable_offset}"
        for txn in log.aborted_transactions(0, log.log_end_offset)
    ]
    assert 4 == len(expected)
    assert expected == [line for line in output.splitlines() if line.startswith("version:")]
    log.directory.close()


def test_a_snapshot_names_the_producers(directory):
    """The last snapshot has every producer with its last batch."""
    output = dump("--files", files(directory, ".snapshot").split(",")[-1])

    log = open_log(directory, config=SMALL)
    for entry in log.producer_state.entries():
        open_since = entry.current_txn_first_offset
        assert (
            f"producerId: {entry.producer_id} producerEpoch: 0 "
            f"coordinatorEpoch: {entry.coordinator_epoch} "
            f"currentTxnFirstOffset: {'None' if open_since is None else open_since}"
        ) in output.replace("OptionalLong.empty", "None").replace("OptionalLong[", "").replace(
            "]", ""
        )
        assert f"lastSequence: {entry.last_sequence} lastOffset: {entry.last_offset}" in output
    log.directory.close()


@pytest.fixture
def coordinated(tmp_path):
    """Store a committed transaction with a group's offsets, and a group with a member."""
    cluster = DurableCluster(tmp_path / "data")
    state = cluster.broker.cluster
    state.create_topic("t", partitions=2, config=cluster.broker.settings.topic_defaults)
    client, group = TransactionalClient(cluster.broker, "my-id"), GroupClient(cluster.broker)
    _, identity = client.init(timeout_ms=12_345)
    client.produce(identity, 0, 0, 1)
    request = txn_commit_request("g", identity, {("t", 1): 77}, transactional_id="my-id")
    client.ask(request, WITH_NAMES)
    client.end(identity, committed=True)
    member = group.join().member_id
    group.sync(member, 1, {member: b""})
    cluster.close()
    return tmp_path / "data"


def logs(directory, topic):
    return ",".join(str(path) for path in directory.glob(f"{topic}-*/*.log"))


def test_kafka_reads_the_coordinators_transactions(coordinated):
    """The transaction log has every state of the transaction, with its partitions and timeout."""
    output = dump("--transaction-log-decoder", "--files", logs(coordinated, "__transaction_state"))

    # First with the topic, then with the group.
    states = ["Empty", "Ongoing", "Ongoing", "PrepareCommit", "CompleteCommit"]
    found = re.findall(r'"transactionStatus":"?(\w+)', output)
    # Before 4.4, the tool prints their numbers.
    numbers = {"0": "Empty", "1": "Ongoing", "2": "PrepareCommit", "4": "CompleteCommit"}
    assert states == [numbers.get(state, state) for state in found]
    assert 5 == output.count('"transactionalId":"my-id"')
    assert 5 == output.count('"transactionTimeoutMs":12345')
    assert 3 == output.count('{"topic":"t","partitionIds":[0,1]}')
    assert "isvalid: false" not in output


def test_kafka_reads_the_coordinators_groups(coordinated):
    """The offsets log has the transaction's offset, its marker, and the group's metadata."""
    output = dump("--offsets-decoder", "--files", logs(coordinated, "__consumer_offsets"))

    assert '"offset":77' in output
    assert '"protocolType":"consumer"' in output
    assert "endTxnMarker: COMMIT" in output
    assert "isvalid: false" not in output


def test_kafka_reads_a_compacted_log(tmp_path):
    """A compacted log is valid, with gaps, empty batches and tombstones' deletion times."""
    directory = tmp_path / "orders-0"
    config = TopicConfig(cleanup_policy="compact", segment_bytes=700, index_interval_bytes=0)
    writer = LogWriter(open_log(directory, config=config))
    for number in range(20):
        records = [
            PlainRecord(None if number == 5 else b"%d" % number, b"%d" % (number % 3), number)
        ]
        writer.append(
            plain_batch(records * 2, producer_id=8, producer_epoch=0, base_sequence=2 * number)
        )
    writer.log.roll(0)
    writer.append(plain_batch([PlainRecord(b"last", b"key", 99)]))
    clean(writer.log, 0)
    kept = sum(len(decode_record_batch(batch).records) for batch in writer.log.batches())
    writer.log.close(0)

    output = dump("--deep-iteration", "--print-data-log", "--files", files(directory, ".log"))
    for suffix in (".index", ".timeindex"):
        dumped = dump("--files", files(directory, suffix))
        for complaint in ("Mismatches", "mismatch", "out of order", "not found"):
            assert complaint not in dumped

    assert "isvalid: false" not in output
    assert kept == len(re.findall(r"^\| offset: ", output, re.MULTILINE)) < 20


def test_kafka_reads_the_records_of_consumer_groups(tmp_path):
    """Members, expressions, epochs and assignments of the new protocol are Kafka's records."""
    cluster = DurableCluster(tmp_path)
    state = cluster.broker.cluster
    topic = state.create_topic("t", partitions=2, config=cluster.broker.settings.topic_defaults)
    for request in (
        joining("g", "a", topics=["t"], instance_id="i", rack_id="r", assignor="range"),
        joining("g", "b", regex="t.*"),
        consumer_heartbeat("g", "b", 2),
        consumer_heartbeat("g", "a", 2, instance_id="i"),
        consumer_heartbeat("g", "a", 2, instance_id="i", owned={topic.topic_id: [0]}),
        consumer_heartbeat("g", "b", 3),
        consumer_heartbeat("g", "b", -1),
    ):
        assert 0 == ask(cluster.broker, request).error_code
    cluster.close()

    output = dump("--offsets-decoder", "--files", logs(tmp_path, "__consumer_offsets"))

    kinds = re.findall(r'key: \{"type":"(\d+)"', output)
    assert {"3", "5", "6", "7", "8", "16"} == set(kinds)
    assert '"instanceId":"i","rackId":"r","clientId":"test"' in output
    assert '"regularExpression":"t.*"' in output
    assert '"topics":["t"]' in output
    assert '"assignmentEpochs":[2]' in output
    assert "Could not" not in output
