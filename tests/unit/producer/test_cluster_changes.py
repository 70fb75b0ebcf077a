"""The producer during changes of the cluster: leaders, partitions, brokers and API versions."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.admin.values import NewPartitions
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError, CloseConnection
from spark_kafka_sink.errors import (
    DeliveryError,
    InvalidPartitionError,
    KafkaTimeoutError,
    UnsupportedVersionError,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
from spark_kafka_sink.network.metadata import MetadataSnapshot
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.metadata import MetadataResponseBroker
from spark_kafka_sink.record.decode import decode_records
from tests.support.faults.recreated_topic import (
    AFTER,
    BEFORE,
    KEYS,
    send_before_a_shrinking,
    write_before_and_after_shrinking,
)
from tests.support.producer.producing import patiently
from tests.support.producer.sending import LONG_LINGER, sending_producer
from tests.support.record.record_columns import columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsResponse
    from spark_kafka_sink.protocol.messages.metadata import (
        MetadataResponse,
        MetadataResponsePartition,
    )

FAST_RETRIES = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "reconnect.backoff.ms": 1}
SMALL_BATCHES = {"batch.size": 2_000, "compression.type": "none"}


def _producer(servers: str, **settings: object) -> KafkaProducer:
    given = {"bootstrap.servers": servers, **FAST_RETRIES, **SMALL_BATCHES, **settings}
    return KafkaProducer(ProducerConfig.from_mapping(given), lingers=False)


def _rows(count: int, start: int = 0) -> list[bytes]:
    return [b"%08d" % row for row in range(start, start + count)]


def _values(broker: DevBroker, partition: int = 0) -> list[bytes | None]:
    place = TopicPartition("t", partition)
    batches = broker.call(lambda b: [bytes(x) for x in b.cluster.partition(place).log.batches()])
    return [record.value for batch in batches for record in decode_records(batch)]


def _await(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another thread makes true soon, or fail."""
    pause = threading.Event()
    assert any(condition() or pause.wait(0.01) for _ in range(6_000))


def _rewrite_partitions(
    producer: KafkaProducer,
    rewrite: Callable[[tuple[MetadataResponsePartition, ...]], tuple[object, ...]],
    brokers: tuple[MetadataResponseBroker, ...] = (),
) -> None:
    """Make the producer's metadata report other partitions and, if given, other brokers."""
    metadata = producer._core._client.metadata
    update = metadata.update

    def rewritten(response: MetadataResponse, now: float, **question: bool) -> None:
        topics = tuple(
            replace(topic, partitions=rewrite(topic.partitions)) for topic in response.topics
        )
        rewritten_response = replace(response, topics=topics, brokers=brokers or response.brokers)
        update(rewritten_response, now, **question)

    metadata.update = rewritten


def test_batches_follow_a_moving_leader():
    """Batches that the old leader refuses go to the new one, each row once and in order."""
    with DevBroker(topics={"t": 1}) as old, DevBroker(topics={"t": 1}) as new:
        leader = 0
        refusal = AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        old.on(ApiKey.PRODUCE, lambda request, context: refusal if leader else None, expect=True)
        brokers = tuple(
            MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=broker.port)
            for node_id, broker in enumerate((old, new))
        )
        # Both are node 1 of a cluster of their own, and would say so.
        unchecked = {"metadata.cluster.check.enable": "false"}
        with _producer(old.bootstrap_servers, **unchecked) as producer:
            _rewrite_partitions(
                producer,
                lambda known: tuple(
                    replace(p, leader_id=leader, leader_epoch=p.leader_epoch + leader)
                    for p in known
                ),
                brokers,
            )
            producer.append(columns(_rows(5_000)))
            producer.flush()
            producer.append(columns(_rows(5_000, 5_000)), first_row=5_000)
            leader = 1
            producer.append(columns(_rows(5_000, 10_000)), first_row=10_000)
            producer.flush()
        written = _values(old) + _values(new)
        assert _rows(15_000) == written
        assert _values(new)


def test_rows_are_written_to_partitions_added_during_a_write():
    """Batches that are open when a topic grows are not lost, and the new partitions get rows."""
    with DevBroker(topics={"t": 6}) as broker:
        count = 3
        with _producer(broker.bootstrap_servers, **{"batch.size": 100_000}) as producer:
            _rewrite_partitions(producer, lambda known: known[:count])
            producer.append(columns(_rows(300), partitions=[row % 3 for row in range(300)]))
            count = 6
            producer._core._thread.call_soon(producer._core._client.metadata.request_update)
            producer._core._thread.call_soon(producer._core._sender.wakeup)
            _await(lambda: producer._core._client.metadata.snapshot.partition_count("t") == count)
            producer.append(
                columns(_rows(600, 300), partitions=[row % 6 for row in range(600)]),
                first_row=300,
            )
            producer.flush()
        first, second = _rows(300), _rows(600, 300)
        expected = [(first[p::3] if p < 3 else []) + second[p::6] for p in range(6)]
        assert expected == [_values(broker, p) for p in range(6)]


@pytest.mark.parametrize("how", ["append", "send_arrow"])
def test_rows_are_written_to_a_partition_that_the_metadata_do_not_have_yet(how):
    """Before a row is refused for its partition, the metadata are requested again."""
    with (
        DevBroker(topics={"t": 1}) as broker,
        AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin,
        _producer(broker.bootstrap_servers) as producer,
    ):
        for partition, values in enumerate([[b"a", b"b"], [b"c", b"d"]]):
            if partition:
                admin.create_partitions({"t": NewPartitions(2)})
            if how == "append":
                producer.append(columns(values, partitions=[0, partition]), first_row=2 * partition)
            else:
                table = pa.table({"value": values, "partition": [0, partition]})
                producer.send_arrow(table, topic="t")
        producer.flush()
        assert [[b"a", b"b", b"c"], [b"d"]] == [_values(broker, number) for number in range(2)]


def test_a_row_for_a_partition_that_does_not_exist_is_refused_after_one_look():
    """The metadata are requested once; what they do not have then is a mistake."""
    looks = []
    with DevBroker(topics={"t": 1}) as broker, _producer(broker.bootstrap_servers) as producer:
        producer.append(columns([b"a"]))
        broker.on(ApiKey.METADATA, lambda *_: looks.append(1))
        with pytest.raises(InvalidPartitionError, match=r"row 2, .* partition 1: .* 1 partition"):
            producer.append(columns([b"b", b"c"], partitions=[0, 1]), first_row=1)
        assert [1] == looks


def test_records_of_a_briefly_missing_topic_are_written():
    """Records of a topic that is missing for a moment get partitions by its last known count."""
    with DevBroker(topics={"t": 2}) as broker, sending_producer(broker, **LONG_LINGER) as producer:
        patiently(lambda: producer.partitions_for("t"))
        futures = [producer.send("t", b"a"), producer.send("t", b"b", partition=1)]
        metadata = producer._core._client.metadata
        known, metadata.snapshot = metadata.snapshot, MetadataSnapshot()
        producer._gatherer.write_staged()
        metadata.snapshot = known
        producer.flush()
        assert [None, None] == [future.exception(0) for future in futures]
        assert [b"a", b"b"] == sorted(_values(broker, 0) + _values(broker, 1))


def test_batches_wait_for_an_unknown_leader():
    """Batches of a partition without a leader wait, and are sent once it has one."""
    with DevBroker(topics={"t": 2}) as broker:
        answers = itertools.count()
        with _producer(broker.bootstrap_servers) as producer:
            _rewrite_partitions(
                producer,
                lambda known: (
                    known[0],
                    known[1] if next(answers) > 5 else replace(known[1], leader_id=-1),
                ),
            )
            producer.append(columns(_rows(1_000), partitions=[0, 1] * 500))
            producer.flush()
        assert [_rows(1_000)[p::2] for p in range(2)] == [_values(broker, p) for p in range(2)]
        assert next(answers) > 6


def test_a_missing_leader_is_reported_after_the_delivery_timeout():
    """After delivery.timeout.ms without a leader the error names the partition."""
    with DevBroker(topics={"t": 1}) as broker:
        producer = _producer(broker.bootstrap_servers)
        # From here on the producer has an id, and only the leader is missing.
        producer.append(columns([b"first"]))
        producer.flush()
        core, place = producer._core, TopicPartition("t", 0)
        _rewrite_partitions(producer, lambda known: tuple(replace(p, leader_id=-1) for p in known))
        core._thread.call_soon(core._client.metadata.request_update)
        core._thread.call_soon(core._sender.wakeup)
        _await(lambda: core._client.metadata.snapshot.leader_of(place) is None)
        producer.append(columns([b"v"]), first_row=1)
        with pytest.raises(KafkaTimeoutError):
            producer.flush(0)
        clock = core._sender._clock
        core._sender._clock = lambda: clock() + 120
        core._thread.call_soon(core._sender.wakeup)
        with pytest.raises(DeliveryError, match=r"t-0.*delivery\.timeout\.ms.*no leader"):
            producer.flush()
        producer.close(0)


def test_the_client_rebootstraps_if_all_known_brokers_are_unavailable():
    """A cluster that moved to other addresses is found through bootstrap.servers (KIP-899)."""
    with DevBroker(topics={"t": 1}) as first, DevBroker(topics={"t": 1}) as second:
        second.stop()
        servers = f"{first.bootstrap_servers},127.0.0.1:{second.port}"
        with _producer(servers) as producer:
            producer.append(columns(_rows(100)))
            producer.flush()
            first.stop()
            second.start()
            producer.append(columns(_rows(100, 100)), first_row=100)
            producer.flush()
        first.start()
        assert (_rows(100), _rows(100, 100)) == (_values(first), _values(second))


@pytest.mark.parametrize(
    ("highest", "idempotent", "cause"),
    [
        ({ApiKey.PRODUCE: None}, False, "does not support the PRODUCE API"),
        ({ApiKey.PRODUCE: 2}, False, "PRODUCE: the broker supports versions 0 to 2"),
        ({ApiKey.INIT_PRODUCER_ID: None}, True, "does not support the INIT_PRODUCER_ID API"),
        ({ApiKey.METADATA: None}, True, "does not support the METADATA API"),
    ],
    ids=["no Produce", "old Produce", "no InitProducerId", "no Metadata"],
)
def test_the_error_for_an_outdated_broker_names_the_api(monkeypatch, highest, idempotent, cause):
    """A missing or outdated API ends the write at once with an error that names the API."""
    of = NodeApiVersions.of

    def older(response: ApiVersionsResponse) -> NodeApiVersions:
        known = of(response).versions
        lowered = {key: (0, version) for key, version in highest.items() if version is not None}
        kept = {key: span for key, span in known.items() if key not in highest}
        return NodeApiVersions({**kept, **lowered}, {})

    monkeypatch.setattr(NodeApiVersions, "of", older)
    with DevBroker(topics={"t": 1}) as broker:
        producer = _producer(broker.bootstrap_servers, **{"enable.idempotence": idempotent})
        with pytest.raises(UnsupportedVersionError, match=cause):
            _append_and_flush(producer)
        producer.close(0)


def _append_and_flush(producer: KafkaProducer) -> None:
    producer.append(columns([b"v"]))
    producer.flush()


@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize(
    "fault", [AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER), CloseConnection()]
)
def test_without_idempotence_nothing_is_lost(fault, in_flight):
    """Retries deliver every row, and one request in flight preserves the order as well."""
    settings = {
        "enable.idempotence": "false",
        "max.in.flight.requests.per.connection": in_flight,
    }
    with DevBroker(topics={"t": 1}) as broker:
        hook = broker.on(
            ApiKey.PRODUCE, lambda request, context: fault if context.number % 4 == 0 else None
        )
        with _producer(broker.bootstrap_servers, **settings) as producer:
            producer.append(columns(_rows(5_000)))
            producer.flush()
            assert (
                producer._core.gatherer._builder._pool.total_bytes
                == producer._core.gatherer._builder._pool.available_bytes
            )
        written = _values(broker)
        assert hook.fired > 5
    assert _rows(5_000) == (written if in_flight == 1 else sorted(set(written)))


def test_without_acks_a_lost_connection_is_reestablished():
    """With acks=0 the rows of a lost connection may be lost, but later rows arrive."""
    with DevBroker(topics={"t": 1}) as broker:
        broker.on(ApiKey.PRODUCE, CloseConnection(), times=1)
        with _producer(broker.bootstrap_servers, acks=0) as producer:
            producer.append(columns(_rows(100)))
            producer.flush()
            _await(lambda: producer._core._client.last_error is not None)
            producer.append(columns(_rows(100, 100)), first_row=100)
            producer.flush()
            _await(lambda: len(_values(broker)) >= 100)
        assert _rows(100, 100) == _values(broker)[-100:]


def test_records_of_a_topic_recreated_with_fewer_partitions_are_delivered():
    """Records after a topic was recreated go only to partitions that exist."""
    with DevBroker(topics={"t": BEFORE}, auto_create_topics=False) as broker:
        before, after = set(range(BEFORE)), set(range(AFTER))
        assert [before, before, after, after] == write_before_and_after_shrinking(broker, "t")


def test_a_lingering_record_for_a_deleted_partition_fails_alone():
    """Only the record of the deleted partition fails, and all others arrive."""
    with DevBroker(topics={"t": BEFORE, "other": 1}, auto_create_topics=False) as broker:
        ended = send_before_a_shrinking(broker, "t", "other")
        assert isinstance(ended.gone, InvalidPartitionError)
        assert [None] * 2 * KEYS == ended.others
