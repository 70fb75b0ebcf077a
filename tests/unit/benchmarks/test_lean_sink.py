import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from benchmarks.lean_sink import LeanSink, Sent
from benchmarks.lean_write import BLOCK_BYTES
from benchmarks.payloads import RECORD_BYTES, record_batch
from spark_kafka_sink import read_arrow
from spark_kafka_sink.spark import worker
from spark_kafka_sink.testing import AnswerError, ApiKey, CloseConnection, DevBroker, ErrorCode

PARTITIONS = 2


@pytest.fixture(autouse=True)
def _unprepared(monkeypatch):
    """Leave the memory of the test process as it is: other tests look for leaks in it."""
    for prepare in ("freeze_imported_objects", "keep_freed_memory"):
        monkeypatch.setattr(worker, prepare, lambda: None)


@pytest.fixture
def broker():
    with DevBroker(topics=dict.fromkeys(BLOCK_BYTES, PARTITIONS)) as started:
        yield started


def write(broker, codec, batches):
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": codec,
        "partitions": str(PARTITIONS),
        "kafka.compression.type": codec,
    }
    return LeanSink(options).writer(StructType(), overwrite=False).write(iter(batches))


@pytest.mark.parametrize("codec", BLOCK_BYTES)
def test_all_rows_are_in_the_topic(broker, codec):
    """Full batches and the last ones arrive, each row once."""
    batch = record_batch(key=True)
    fills_each_block_once = PARTITIONS * BLOCK_BYTES[codec] // (batch.num_rows * RECORD_BYTES) + 1
    rows = pa.Table.from_batches([batch] * fills_each_block_once)

    assert Sent(rows.num_rows) == write(broker, codec, rows.to_batches())

    reader = read_arrow(broker.bootstrap_servers, codec, columns=["key", "value"])
    order = [("key", "ascending"), ("value", "ascending")]
    expected = rows.select(["key", "value"]).sort_by(order)
    assert expected.to_pylist() == reader.read_all().sort_by(order).to_pylist()


def test_a_refused_batch_ends_the_write(broker):
    """A batch that the broker does not accept is not counted as sent."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.MESSAGE_TOO_LARGE), times=1)
    with pytest.raises(RuntimeError, match=r"none-[01]: .* MESSAGE_TOO_LARGE"):
        write(broker, "none", [record_batch(key=True)])


def test_a_lost_connection_ends_the_write(broker):
    """Without a response, the batch is not counted as sent, even if it was written."""
    broker.on(ApiKey.PRODUCE, CloseConnection(handled=True), times=1)
    with pytest.raises(ConnectionError):
        write(broker, "none", [record_batch(key=True)])


def test_rows_without_a_key_are_rejected(broker):
    """The lean sink does not choose partitions for them."""
    with pytest.raises(RuntimeError, match="row 0 of a batch: STICKY_FULL"):
        write(broker, "none", [record_batch(key=False)])
