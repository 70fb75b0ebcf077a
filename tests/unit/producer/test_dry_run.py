"""A producer that does everything except sending."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.dry_run import DryRunProducer, dry_run_config
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.record.arrow.record_columns import record_columns
from spark_kafka_sink.record.refused_rows import RefusedRows


@pytest.fixture
def broker():
    with DevBroker(topics={"orders": 2}, auto_create_topics=True) as broker:
        yield broker


class Tried:
    """What a producer has been told and has observed."""

    def __init__(self, broker, *, limit=None, **settings):
        given = {"bootstrap.servers": broker.bootstrap_servers, **settings}
        self.seen = []
        self.asked = []
        self.limit = limit
        self.producer = DryRunProducer(
            dry_run_config(ProducerConfig.from_mapping(given)),
            limits_of=self._limits,
            observe=lambda columns, first_row, _: self.seen.append((first_row, columns.num_rows)),
        )

    def _limits(self, topics):
        self.asked.append(list(topics))
        return {} if self.limit is None else dict.fromkeys(topics, self.limit)

    def write(self, *tables):
        """Append tables; return what counts as acknowledged."""
        row = 0
        with self.producer as producer:
            for table in tables:
                for batch in table.to_batches():
                    columns = record_columns(batch, topic="orders", first_row=row)
                    producer.append_good(columns, first_row=row, refused=RefusedRows())
                    row += batch.num_rows
            producer.flush()
            return producer.take_acks()


def table_of(*values, partition=0):
    return pa.table({"value": values, "partition": pa.array([partition] * len(values), pa.int32())})


def test_nothing_is_sent(broker):
    """Rows count as acknowledged, and the broker has been asked for metadata only."""
    seen = []
    for key in (ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID):
        broker.on(key, lambda *_: seen.append(1))
    tried = Tried(broker, **{"transactional.id": "orders", "acks": "all"})
    acks = tried.write(table_of("a", "b"), table_of("c", partition=1))
    assert {0: 2, 1: 1} == {place.partition: part.records for place, part in acks.items()}
    assert ([], 0) == (seen, broker.records("orders").count)
    assert ([(0, 2), (2, 1)], [["orders"]]) == (tried.seen, tried.asked)


def test_sizes_are_those_of_compressed_batches(broker):
    """The totals have records before and after compression, as batches of the codec."""
    tried = Tried(broker, **{"compression.type": "zstd"})
    acks = tried.write(table_of(*["value"] * 1_000))
    totals = tried.producer.totals
    assert 1 == totals.batches
    assert 10 * totals.compressed_bytes < totals.uncompressed_bytes
    assert [totals.compressed_bytes + 61] == [part.bytes for part in acks.values()]


def test_batches_that_a_topic_would_refuse_are_split(broker):
    """Several records that are too large together become batches that are not."""
    tried = Tried(broker, limit=700, **{"compression.type": "none"})
    acks = tried.write(table_of(*["v" * 200] * 8))
    assert 8 == acks[TopicPartition("orders", 0)].records
    assert [] == tried.producer.take_too_large()
    assert (4, 3) == (
        tried.producer.totals.batches,
        tried.producer.metrics_snapshot().batch_split_total,
    )


def test_a_record_that_a_topic_would_refuse_is_kept_as_an_error(broker):
    """It has the row, and the error that would end a write."""
    tried = Tried(broker, limit=700, **{"compression.type": "none"})
    tried.write(table_of(*["v" * 200] * 5, "v" * 1_000, "v"))
    [record] = tried.producer.take_too_large()
    assert (TopicPartition("orders", 0), 5) == (record.topic_partition, record.row)
    assert "row 5, was not delivered: max.message.bytes of topic 'orders' is 700" in str(
        record.error
    )
    assert str(record.error).endswith("raise it, or write smaller records")
    assert [] == tried.producer.take_too_large()


def test_a_dry_run_creates_no_topic():
    """The settings change nothing in the cluster, and do not wait for long."""
    given = {"bootstrap.servers": "localhost:9092", "transactional.id": "orders"}
    config = dry_run_config(ProducerConfig.from_mapping(given))
    assert (None, False, 15_000) == (
        config.transactional_id,
        config.allow_auto_create_topics,
        config.max_block_ms,
    )
