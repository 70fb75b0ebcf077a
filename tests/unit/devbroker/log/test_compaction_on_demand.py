"""Compaction when a test wants it: gaps for consumers to read over."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from tests.support.devbroker.broker_asker import produce_request
from tests.support.network.raw_client import RawClient
from tests.support.record.plain_batches import PlainRecord, plain_batch


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def broker(request, tmp_path):
    """Yield a broker with a topic whose tombstones are removed at once, and a clock of its own."""
    now = [1_700_000_000.0]

    def clock():
        now[0] += 1
        return now[0]

    with DevBroker(data_dir=tmp_path if request.param else None, clock=clock) as broker:
        broker.create_topic("t", configs={"delete.retention.ms": "0", "retention.ms": "-1"})
        yield broker


def produce(broker, *records):
    batch = plain_batch([PlainRecord(value, key) for key, value in records])
    with RawClient(broker.port) as client:
        assert (
            0
            == client.ask(produce_request("t", batch), 9)
            .responses[0]
            .partition_responses[0]
            .error_code
        )


def read(broker):
    return [(r.offset, r.key, r.value) for r in broker.records("t")[0]]


def end(broker):
    return broker.call(lambda b: b.cluster.topic("t").partitions[0].log.log_end_offset)


def test_only_the_last_record_of_each_key_remains(broker):
    """The remaining records keep their offsets, and the next one is appended at the end."""
    produce(broker, (b"a", b"1"), (b"b", b"2"))
    produce(broker, (b"a", b"3"))

    broker.compact("t")
    produce(broker, (b"c", b"4"))

    assert [(1, b"b", b"2"), (2, b"a", b"3"), (3, b"c", b"4")] == read(broker)


def test_a_tail_of_tombstones_can_disappear(broker):
    """After the second compaction the log ends where it did, without records before its end."""
    produce(broker, (b"a", b"1"))
    produce(broker, (b"a", None))

    broker.compact("t")
    assert [(1, b"a", None)] == read(broker)
    broker.compact("t")

    assert ([], 2) == (read(broker), end(broker))


def test_compaction_is_the_same_after_a_restart(broker):
    """What was removed stays removed."""
    produce(broker, (b"a", b"1"), (b"a", b"2"))
    broker.compact("t")
    broker.stop()
    broker.start()

    assert [(1, b"a", b"2")] == read(broker)


def test_only_an_existing_topic_is_compacted(broker):
    """The error names the topic."""
    with pytest.raises(RefusedError, match="'no' does not exist"):
        broker.compact("no")
