"""Public objects show themselves, as one line of text and as HTML for notebooks."""

from __future__ import annotations

import math
import re
import threading
import time

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from spark_kafka_sink import AdminClient, KafkaProducer, RecordMetadata
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.devbroker.topic_records import TopicRecords
from spark_kafka_sink.metrics.kafka_metric import KafkaMetric, MetricName, MetricsByName
from spark_kafka_sink.metrics.snapshot import MetricsSnapshot, Summary
from spark_kafka_sink.model import UNKNOWN_OFFSET, AcksByPartition, PartitionAcks, TopicPartition
from spark_kafka_sink.record.decode import Header, Record
from spark_kafka_sink.spark.sink.driver_checks import CheckedWrite, check_write
from spark_kafka_sink.spark.sink.write_schema import WriteSchema
from spark_kafka_sink.testing import AnswerError, ApiKey, CloseConnection, DevBroker, ErrorCode
from tests.support.network.leaps import leap_at_first_contact

EVIL = "<script>alert(1)</script>"
SCHEMA = StructType(
    [
        StructField("key", StringType()),
        StructField("value", StringType()),
        StructField(EVIL, IntegerType()),
    ]
)


def acks(first, last, records):
    return PartitionAcks(first_offset=first, last_offset=last, records=records, bytes=0)


def wait_until(condition):
    """Wait for a condition, and fail after two minutes."""
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def check(devbroker, schema=SCHEMA, **options):
    return check_write(
        schema,
        {"kafka.bootstrap.servers": devbroker.bootstrap_servers, **options},
        is_dry_run=True,
    )


# --- the check of a write


def test_a_check_is_one_line(devbroker):
    """A write that passed is shown with its topic's partitions and its columns."""
    devbroker.create_topic("events", partitions=3)
    plain = StructType(SCHEMA.fields[:2])

    assert "OK: 3 partitions of events, columns key, value" == repr(
        check(devbroker, plain, topic="events")
    )


def test_a_check_names_the_columns_that_are_not_written(devbroker):
    """Columns that make up no record are named, escaped in HTML."""
    devbroker.create_topic("events")
    checked = check(devbroker, topic="events")

    assert repr(checked).endswith(
        f"1 partition of events, columns key, value (not written: {EVIL})"
    )
    assert EVIL not in checked._repr_html_()
    assert "&lt;script&gt;" in checked._repr_html_()
    assert "at least once" in checked._repr_html_()


def test_a_check_without_a_topic_says_where_rows_go(devbroker, monkeypatch):
    """Topics from a column, and one that brokers may create, are named as such."""
    leap_at_first_contact(monkeypatch)
    by_row = StructType([StructField("topic", StringType()), StructField("value", StringType())])

    assert "OK: topics are named by the column topic, columns topic, value" == repr(
        check(devbroker, by_row)
    )
    missing = StructType([StructField("value", StringType())])
    assert "OK: topic orders does not exist, and brokers may create it, column value" == repr(
        check(devbroker, missing, topic="orders", autoCreateTopics="true")
    )


def test_a_check_shows_no_secret():
    """The settings of the write, passwords among them, are neither in the line nor in the HTML."""
    options = SinkOptions.from_mapping(
        {
            "kafka.bootstrap.servers": "localhost:1",
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.location": "/secret/truststore.jks",
            "kafka.ssl.truststore.password": "s3cret-1",
            "topic": "events",
            "deliveryGuarantee": "exactly_once",
            "transactionalIdPrefix": "job",
        }
    )
    schema = WriteSchema(topic="events", used=("value",), ignored=())
    checked = CheckedWrite(options=options, schema=schema, report_path=None, partitions=2)

    assert "secret" not in repr(checked) + checked._repr_html_()
    assert "s3cret" not in repr(checked) + checked._repr_html_()
    assert "exactly once, as &#x27;job&#x27;" in checked._repr_html_()


# --- the producer and its results


def test_a_producer_shows_its_brokers_and_state(devbroker):
    """An open producer has its id, brokers and what was acknowledged; a closed one says so."""
    devbroker.create_topic("orders")
    settings = {"bootstrap.servers": devbroker.bootstrap_servers, "client.id": EVIL}
    with KafkaProducer(settings) as producer:
        producer.send("orders", b"a").result(timeout=120)
        page = producer._repr_html_()
        assert f"<KafkaProducer {EVIL!r} at {devbroker.bootstrap_servers}, open>" == repr(producer)

    assert EVIL not in page
    assert "1 record in 1 partition acknowledged" in page
    assert "records per second" in page
    assert repr(producer).endswith(", closed>")


def test_a_producer_shows_no_secret():
    """The settings of a producer are not shown."""
    settings = {
        "bootstrap.servers": "localhost:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="s3cret";',
    }
    with KafkaProducer(settings) as producer:
        assert "s3cret" not in repr(producer) + producer._repr_html_()


def test_a_future_shows_its_record_without_waiting(devbroker):
    """A pending future is shown at once; later it has the offset and a table."""
    devbroker.create_topic("orders")
    released = threading.Event()

    def refuse_at_first(_request, _context):
        return None if released.is_set() else CloseConnection()

    hook = devbroker.on(ApiKey.PRODUCE, refuse_at_first)
    with KafkaProducer({"bootstrap.servers": devbroker.bootstrap_servers}) as producer:
        future = producer.send("orders", b"a")
        table = producer.send_arrow(pa.table({"value": ["b", "c"]}), topic="orders")
        assert "<FutureTableMetadata: not acknowledged yet>" == repr(table)
        assert "not acknowledged yet" in table._repr_html_()
        assert "<FutureRecordMetadata: not acknowledged yet>" == repr(future)
        assert "not acknowledged yet" in future._repr_html_()
        wait_until(lambda: hook.fired)
        released.set()
        future.result(timeout=120)
        table.result(timeout=120)

    assert "<FutureRecordMetadata: orders-0 at offset 0>" == repr(future)
    assert "record acknowledged in orders-0" in future._repr_html_()
    assert "<FutureTableMetadata: 2 records in 1 partition: orders-0 at offsets 1 to 2>" == repr(
        table
    )
    assert "2 records in 1 partition acknowledged" in table._repr_html_()


def test_a_future_that_failed_shows_its_error(devbroker):
    """A failed record or table is shown with its error."""
    devbroker.create_topic("orders")
    devbroker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.INVALID_REQUEST))
    with KafkaProducer({"bootstrap.servers": devbroker.bootstrap_servers}) as producer:
        future = producer.send("orders", b"a")
        table = producer.send_arrow(pa.table({"value": ["b"]}), topic="orders")
        for each in (future, table):
            assert each.exception(timeout=120) is not None
            assert f"failed with {type(each.exception()).__name__}: " in repr(each)
            assert "failed with " in each._repr_html_()


def test_a_future_can_be_shown_in_a_callback(devbroker):
    """Callbacks run on the network thread, where nothing may wait, and may log a future."""
    devbroker.create_topic("orders")
    shown = []
    with KafkaProducer({"bootstrap.servers": devbroker.bootstrap_servers}) as producer:
        table = producer.send_arrow(pa.table({"value": ["b"]}), topic="orders")
        table.result(timeout=120)
        future = producer.send("orders", b"a")
        future.add_done_callback(lambda _: shown.extend([repr(table), repr(producer)]))
        future.result(timeout=120)
        wait_until(lambda: len(shown) == 2)

    assert "<FutureTableMetadata: 1 record in 1 partition: orders-0 at offset 0>" == shown[0]


def test_metadata_is_shown_in_words():
    """The timestamp is a date, a missing key is `none`, an unknown offset a dash."""
    page = RecordMetadata("orders", 1, UNKNOWN_OFFSET, 1_700_000_000_123, -1, 6)._repr_html_()

    assert "2023-11-14 22:13:20.123+00:00" in page
    assert ">none<" in page
    assert "&ndash;" not in page
    assert str(2**62) in RecordMetadata("orders", 1, 0, 2**62, -1, 6)._repr_html_()


def test_acks_are_a_dict_with_a_summary():
    """Acknowledgements compare as a dict, and are shown by records and offsets."""
    written = {
        TopicPartition("orders", 1): acks(5, 5, 1),
        TopicPartition("orders", 0): acks(0, 1999, 2000),
    }
    shown = AcksByPartition(written)

    assert written == shown
    assert (
        "<2,001 records in 2 partitions: orders-1 at offset 5, orders-0 at offsets 0 to 1999>"
        == repr(shown)
    )
    assert "<0 records in 0 partitions>" == repr(AcksByPartition())


def test_acks_without_offsets_say_why():
    """With acks=0 there are no offsets, and a note explains it."""
    shown = AcksByPartition({TopicPartition("orders", 0): acks(UNKNOWN_OFFSET, UNKNOWN_OFFSET, 7)})

    assert "<7 records in 1 partition: orders-0 at unknown offsets>" == repr(shown)
    assert "acks=0" in shown._repr_html_()


def test_ten_thousand_partitions_are_a_short_page():
    """Acknowledgements and records of 10,000 partitions are shown by the first of them."""
    shown = AcksByPartition(
        {TopicPartition("orders", number): acks(0, 9, 10) for number in range(10_000)}
    )
    records = TopicRecords("orders", {number: [] for number in range(10_000)})

    for page in (shown._repr_html_(), records._repr_html_()):
        assert "... and 9,980 more partitions" in page
        assert 60 > page.count("<tr")
        assert 60_000 > len(page)
    assert repr(shown).endswith("and 9,997 more>")


# --- metrics


def test_metrics_show_their_groups_and_values(devbroker):
    """`repr` counts, `print` and HTML have values; metrics without one are left out."""
    devbroker.create_topic("orders")
    with KafkaProducer({"bootstrap.servers": devbroker.bootstrap_servers}) as producer:
        producer.send("orders", b"a").result(timeout=120)
        metrics = producer.metrics()
        snapshot = producer.metrics_snapshot()

    assert f"<{len(metrics)} metrics: " in repr(metrics)
    assert "of producer-metrics" in repr(metrics)
    assert "record-send-total" in str(metrics)
    assert "nan" not in str(metrics)
    assert "record-send-total" in metrics._repr_html_()
    assert "<MetricsSnapshot: 1 request of 1 record; answered in " in repr(snapshot)
    assert "record-send-total" in snapshot._repr_html_()


def test_metrics_are_escaped_and_bounded():
    """Names, groups and tags of metrics are text, and a group has a limited number of lines."""
    names = [MetricName(EVIL, EVIL, EVIL, {"topic": f"{EVIL}{number}"}) for number in range(10_000)]
    metrics = MetricsByName({name: KafkaMetric(name, lambda _: 1.0, lambda: 0.0) for name in names})
    pages = [metrics._repr_html_(), metrics[names[0]]._repr_html_()]

    assert [] == [page for page in pages if EVIL in page]
    assert "... and 9,900 more metrics" in pages[0]


def test_empty_metrics_are_shown():
    """Without a value there is a sentence instead of a table."""
    name = MetricName("a", "b")
    metrics = MetricsByName({name: KafkaMetric(name, lambda _: math.nan, lambda: 0.0)})

    assert "<1 metric: 1 of b>" == repr(metrics)
    assert "no metric has a value yet" == str(metrics)
    assert "<0 metrics>" == repr(MetricsByName())
    assert "<MetricsSnapshot: nothing was sent>" == repr(MetricsSnapshot())
    assert "nothing was sent" in MetricsSnapshot(records_per_request=Summary())._repr_html_()


# --- the broker


def test_the_broker_shows_how_many_records_it_has(devbroker):
    """Deleted records do not count; the ends of the partitions are beside their number."""
    devbroker.create_topic("orders", partitions=2)
    with KafkaProducer({"bootstrap.servers": devbroker.bootstrap_servers}) as producer:
        for number in range(7):
            producer.send("orders", b"v", partition=number % 2)
    partition = TopicPartition("orders", 0)
    with AdminClient({"bootstrap.servers": devbroker.bootstrap_servers}) as admin:
        admin.delete_records({partition: 3})
    row = re.search(r"<tr>(?:(?!</tr>).)*orders.*?</tr>", devbroker._repr_html_(), re.DOTALL)
    assert ["orders", "2", "4", "4, 3"] == re.findall(r"<td[^>]*>([^<]*)</td>", row[0])


def test_start_returns_the_broker():
    """`DevBroker().start()` can be assigned, and shows whether it runs."""
    broker = DevBroker(topics={"orders": 2}).start()
    try:
        address = broker.bootstrap_servers
        assert f"<DevBroker at {address}, running>" == repr(broker)
        page = broker._repr_html_()
    finally:
        broker.stop()

    assert "orders" in page
    assert "0, 0" in page
    assert f"<DevBroker at {address}, stopped>" == repr(broker)
    assert "stopped" in broker._repr_html_()


def test_a_cluster_shows_which_brokers_run():
    """A stopped broker is marked, and starting one again returns the cluster, too."""
    with DevBroker(brokers=3) as cluster:
        cluster.stop(2)
        assert 2 == cluster._repr_html_().count(">running<")
        assert 1 == cluster._repr_html_().count(">stopped<")
        assert cluster is cluster.start(2)
        assert 3 == cluster._repr_html_().count(">running<")


def test_a_fault_shows_how_often_it_was_injected(devbroker):
    """A hook names its API and counts."""
    devbroker.create_topic("orders")
    hook = devbroker.on(ApiKey.PRODUCE, CloseConnection(), times=1)
    assert "<FaultHook for PRODUCE: injected 0 times>" == repr(hook)
    with KafkaProducer({"bootstrap.servers": devbroker.bootstrap_servers}) as producer:
        producer.send("orders", b"a").result(timeout=120)

    assert "<FaultHook for PRODUCE: injected 1 time>" == repr(hook)


def test_many_topics_are_a_short_page():
    """A broker with 100 topics lists the first ones, and topics of 1,000 partitions in short."""
    with DevBroker(topics={f"topic-{number}": 1 for number in range(99)}) as broker:
        broker.create_topic("a-wide-one", partitions=1000)
        assert "... and 80 more topics" in broker._repr_html_()
        assert 60 > broker._repr_html_().count("<tr")


RECORDS = TopicRecords(
    "orders",
    {
        0: [Record(0, 1_700_000_000_123, b"k", b"\xff", (Header("h", b"x"), Header("g", None)))],
        1: [],
        2: [Record(7, -1, None, EVIL.encode())],
    },
)


def test_records_are_an_arrow_table():
    """The table has the columns of Spark's source, in bytes or as text."""
    table = RECORDS.to_arrow()

    assert [0, 2] == table["partition"].to_pylist()
    assert [0, 7] == table["offset"].to_pylist()
    assert [b"k", None] == table["key"].to_pylist()
    assert [b"\xff", EVIL.encode()] == table["value"].to_pylist()
    assert [[{"key": "h", "value": b"x"}, {"key": "g", "value": None}], []] == table[
        "headers"
    ].to_pylist()
    assert table["timestamp"][1].as_py() is None
    assert ["\N{REPLACEMENT CHARACTER}", EVIL] == RECORDS.to_arrow(text=True)["value"].to_pylist()


def test_records_are_a_pandas_data_frame():
    """The frame has keys and values as text, unless bytes are asked for."""
    assert ["k", None] == list(RECORDS.to_pandas()["key"])
    assert [b"k", None] == list(RECORDS.to_pandas(text=False)["key"])


@pytest.mark.parametrize(
    "records", [RECORDS, TopicRecords("orders", {}), TopicRecords(EVIL, {0: []})]
)
def test_records_are_shown_escaped(records):
    """Records, and a topic without any, show themselves as text and as HTML."""
    assert f"<{records.count} record" in repr(records)
    assert EVIL not in records._repr_html_()
    assert records.count == records.to_arrow().num_rows


def test_records_are_still_a_dict(devbroker):
    """What `records` returned before is equal to what it returns now."""
    devbroker.create_topic("orders", partitions=2)

    assert {0: [], 1: []} == devbroker.records("orders")
    assert "<0 records in 2 partitions of orders>" == repr(devbroker.records("orders"))
