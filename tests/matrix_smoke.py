"""A smoke test of every door of the installed package: `make matrix` runs it for each PySpark.

It is copied out of the repository first, since the package must be the installed one, and pytest
finds `devbroker` by the entry point of that package. PySpark 4.0 has batches only.
"""

from __future__ import annotations

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_kafka_sink import KafkaProducer, KafkaSink, read_arrow
from spark_kafka_sink.devbroker import DevBroker

HAS_STREAMS = not pyspark.__version__.startswith("4.0.")
VALUES = {f"value {number}".encode() for number in range(1000)}
EXACTLY_ONCE = {"deliveryGuarantee": "exactly_once", "transactionalIdPrefix": "smoke"}
#: One of a hundred rows has a partition that does not exist.
BAD = {value for value in VALUES if value.endswith(b"99")}
WITH_BAD_ROWS = ("key", "value", "if(cast(value as string) like '%99', 99, 0) as partition")
DEAD_LETTERS = {"onError": "dlq", "dlqTopic": "letters", "maxErrors": "5%"}
TIMEOUT = 120
ORDER = "struct(id, concat('n', id) as name, id / 4 as price, array(id) as tags) as value"
ORDERS = [(number, f"n{number}", number / 4, [number]) for number in range(100)]
DDL = "struct<id: bigint, name: string, price: double, tags: array<bigint>>"
streams_only = pytest.mark.skipif(not HAS_STREAMS, reason="PySpark 4.0 has batches only")


@pytest.fixture(scope="module")
def spark():
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def broker(devbroker):
    for topic in ("events", "copies", "letters"):
        devbroker.create_topic(topic, partitions=2)
    return devbroker


@pytest.fixture
def rows(spark):
    return spark.range(len(VALUES)).selectExpr(
        "cast(id as string) as key", "concat('value ', id) as value"
    )


def written(broker, topic):
    return sorted(r.value for records in broker.records(topic).values() for r in records)


def write(rows, broker, **options):
    (
        rows.write.format("pykafka")
        .mode("append")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("topic", "events")
        .options(**options)
        .save()
    )


def source(reader, broker, topic="events"):
    return (
        reader.format("pykafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )


def copy(spark, broker, checkpoint, columns=("key", "value"), **options):
    query = (
        source(spark.readStream, broker)
        .selectExpr(*columns)
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("topic", "copies")
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(TIMEOUT)
    finally:
        query.stop()


def test_batch(rows, broker):
    """A batch is written once, after a check."""
    settings = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "events"}
    assert "events" == KafkaSink.check(rows, settings).schema.topic
    write(rows, broker)
    assert sorted(VALUES) == written(broker, "events")


def test_exactly_once_batch(rows, broker):
    """A batch that is run twice under one `writeId` is written once."""
    options = {**EXACTLY_ONCE, "writeId": "run-1"}
    write(rows, broker, **options)
    write(rows, broker, **options)
    assert sorted(VALUES) == written(broker, "events")


def test_read(spark, rows, broker):
    """A batch is read back."""
    write(rows, broker)
    read = source(spark.read, broker).selectExpr("cast(value as string) as value").collect()
    assert sorted(VALUES) == sorted(row.value.encode() for row in read)


def test_bad_rows_become_dead_letters(rows, broker):
    """Rows and dead letters are together what was written, exactly once, and are counted."""
    options = {**EXACTLY_ONCE, **DEAD_LETTERS, "writeId": "run-1"}
    bad = rows.selectExpr(*WITH_BAD_ROWS)
    write(bad, broker, **options)
    report = KafkaSink.last_report(rows.sparkSession)
    write(bad, broker, **options)
    assert sorted(VALUES - BAD) == written(broker, "events")
    assert sorted(BAD) == written(broker, "letters")
    assert (len(VALUES - BAD), (("partition", len(BAD)),)) == (report.rows, report.bad_rows.counts)


def test_too_many_bad_rows_end_a_write(rows, broker):
    """A write with more bad rows than it may have fails, and leaves nothing."""
    options = {**EXACTLY_ONCE, **DEAD_LETTERS, "maxErrors": str(len(BAD) - 1)}
    with pytest.raises(PySparkException, match="more than maxErrors allows"):
        write(rows.selectExpr(*WITH_BAD_ROWS), broker, **options)
    with read_arrow(
        broker.bootstrap_servers, ["events", "letters"], **{"isolation.level": "read_committed"}
    ) as reader:
        assert 0 == reader.read_all().num_rows


def test_a_batch_is_paced(rows, broker):
    """A task finds out how many executors there are, and the report has the pauses."""
    write(rows, broker, maxRecordsPerSecond="2000", maxBytesPerSecond="1000000")
    assert sorted(VALUES) == written(broker, "events")
    assert KafkaSink.last_report(rows.sparkSession).paced_seconds > 0


def test_keys_in_several_tasks_are_found(rows, broker):
    """`keyOrder=fail` fails a write whose tasks share keys, and no other."""
    shared = rows.selectExpr("cast(int(key) % 50 as string) as key", "value").repartition(4)
    with pytest.raises(PySparkException, match="keyOrder=fail: 50 of 50 sampled keys"):
        write(shared, broker, keyOrder="fail", **EXACTLY_ONCE)
    write(shared.repartition(4, "key"), broker, keyOrder="fail", **EXACTLY_ONCE)
    report = KafkaSink.last_report(rows.sparkSession)
    assert (len(VALUES), 50, 0) == (report.rows, report.sampled_keys, report.spread_keys)


@streams_only
def test_stream(spark, rows, broker, tmp_path):
    """A stream copies a topic, and copies nothing again after a restart."""
    write(rows, broker)
    copy(spark, broker, tmp_path)
    copy(spark, broker, tmp_path)
    assert sorted(VALUES) == written(broker, "copies")


@streams_only
def test_exactly_once_stream(spark, rows, broker, tmp_path):
    """A stream copies a topic exactly once."""
    write(rows, broker)
    copy(spark, broker, tmp_path, **EXACTLY_ONCE)
    copy(spark, broker, tmp_path, **EXACTLY_ONCE)
    assert sorted(VALUES) == written(broker, "copies")


@streams_only
def test_bad_rows_of_a_paced_stream_become_dead_letters(spark, rows, broker, tmp_path):
    """A stream goes on after bad rows, keeps its pace, and repeats nothing after a restart."""
    write(rows, broker)
    options = {
        **EXACTLY_ONCE,
        **DEAD_LETTERS,
        "maxRecordsPerSecond": "2000",
        "keyOrder": "fail",
    }
    for _ in range(2):
        copy(spark, broker, tmp_path, WITH_BAD_ROWS, **options)
    assert sorted(VALUES - BAD) == written(broker, "copies")
    assert sorted(BAD) == written(broker, "letters")


@pytest.mark.skipif(HAS_STREAMS, reason="this PySpark has streams")
@pytest.mark.parametrize("direction", ["write", "read"])
def test_streams_are_refused(spark, broker, tmp_path, direction):
    """PySpark 4.0 answers a stream with a sentence that says what it needs."""
    if direction == "write":
        stream = spark.readStream.format("rate").load().selectExpr("'x' as value")
        sink = (
            stream.writeStream.format("pykafka")
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .option("topic", "copies")
        )
    else:
        sink = source(spark.readStream, broker).writeStream.format("noop")
    with pytest.raises(PySparkException, match=r"streams need PySpark 4\.1 or newer"):
        sink.option("checkpointLocation", str(tmp_path)).start().awaitTermination(TIMEOUT)


@pytest.fixture
def orders(spark):
    return spark.range(len(ORDERS)).selectExpr("cast(id as string) as key", ORDER)


@pytest.fixture(params=["avro", "json"])
def typed(request):
    """Yield a broker with a Schema Registry, and the options of each format to write and read."""
    with DevBroker(topics={"events": 2, "copies": 2}, schema_registry=True) as broker:
        options = {"valueFormat": request.param}
        if request.param == "avro":
            options["schema.registry.url"] = broker.schema_registry_url
            yield broker, {**options, "autoRegisterSchemas": "true"}, options
        else:
            yield broker, options, {**options, "valueSchema": DDL}


def test_typed_batch(spark, orders, typed):
    """Structs are checked, written as Avro or JSON, and read as the same structs."""
    broker, to_write, to_read = typed
    servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    assert "events" == KafkaSink.check(orders, {**servers, **to_write}, topic="events").schema.topic
    write(orders, broker, **to_write)
    df = source(spark.read.options(**to_read), broker)
    assert {field.name: field.dataType.simpleString() for field in df.schema}["value"] == (
        DDL.replace(" ", "")
    )
    read = df.select("value.*").collect()
    assert ORDERS == sorted(tuple(row) for row in read)


def test_typed_error(orders, typed):
    """A column that the format cannot write is refused with a sentence."""
    broker, to_write, _ = typed
    months = orders.selectExpr("struct(interval '1' month as months) as value")
    with pytest.raises(Exception, match=r"month"):
        write(months, broker, **to_write)


@streams_only
def test_typed_stream(spark, orders, typed, tmp_path):
    """A stream of structs copies a topic."""
    broker, to_write, to_read = typed
    write(orders, broker, **to_write)
    query = (
        source(spark.readStream.options(**to_read), broker)
        .select("key", "value")
        .writeStream.format("pykafka")
        .options(**to_write, topic="copies", checkpointLocation=str(tmp_path))
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(TIMEOUT)
    finally:
        query.stop()
    df = source(spark.read.options(**to_read), broker, "copies").select("value.*")
    assert ORDERS == sorted(tuple(row) for row in df.collect())


def test_producer_and_read_arrow(broker):
    """The producer and `read_arrow` work beside Spark."""
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.send("events", b"a value").result(timeout=30)
    with read_arrow(broker.bootstrap_servers, "events", columns=["value"]) as reader:
        assert [{"value": b"a value"}] == reader.read_all().to_pylist()
