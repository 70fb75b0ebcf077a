from __future__ import annotations

import inspect
import json
import logging
import pickle
import subprocess
import sys

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

import pyspark_pykafka
import spark_kafka_sink
from spark_kafka_sink.admin.cluster_check import TopicDescription
from spark_kafka_sink.errors import BrokerError, ConfigError, NetworkError, SchemaError
from spark_kafka_sink.spark.data_source import KafkaSink, KafkaSource
from spark_kafka_sink.spark.sink.writers import KafkaBatchWriter
from spark_kafka_sink.spark.source.reader import KafkaBatchReader
from tests.support.platforms.fake_frame import FakeFrame

OPTIONS = {"kafka.bootstrap.servers": "localhost:9092", "topic": "events"}
VALUE = StructType([StructField("value", StringType())])
VALUE_AND_TOPIC = StructType([*VALUE.fields, StructField("topic", StringType())])


class _Cluster:
    """A stand-in for `describe_topics` that records its calls."""

    def __init__(self):
        self.asked = []
        self.dry_runs = []
        self.can_write = None
        self.error = None

    def describe_topics(self, config, topics, *, is_dry_run, timeout):
        self.asked.append((config.bootstrap_servers, list(topics)))
        self.dry_runs.append((is_dry_run, timeout))
        if self.error is not None:
            raise self.error
        return {topic: TopicDescription(topic, 7, self.can_write) for topic in topics}


@pytest.fixture
def cluster(monkeypatch):
    fake = _Cluster()
    monkeypatch.setattr(
        "spark_kafka_sink.admin.cluster_check.describe_topics", fake.describe_topics
    )
    return fake


def sink(**options):
    return KafkaSink(CaseInsensitiveDict({**OPTIONS, **options}))


def test_the_module_that_spark_imports_has_the_sink():
    """Spark finds the sink as the DefaultSource of pyspark_pykafka, under the name pykafka."""
    assert KafkaSink is pyspark_pykafka.DefaultSource
    assert KafkaSink is spark_kafka_sink.KafkaSink
    assert "pykafka" == KafkaSink.name()


def test_the_package_has_no_other_lazy_names():
    """An unknown name in the package raises AttributeError, as usual."""
    with pytest.raises(AttributeError, match="has no attribute 'KafkaFaucet'"):
        _ = spark_kafka_sink.KafkaFaucet


def test_a_valid_write_gets_a_writer(cluster):
    """A valid write gets a writer after a single query to the cluster."""
    assert isinstance(sink().writer(VALUE, overwrite=False), KafkaBatchWriter)
    assert [((("localhost", 9092),), ["events"])] == cluster.asked


def test_a_second_writer_can_be_requested(cluster):
    """Two requests return two writers and leave the options unchanged."""
    source = sink()
    first, second = (source.writer(VALUE, overwrite=False) for _ in range(2))
    assert first is not second
    assert CaseInsensitiveDict(OPTIONS) == source.options


def test_a_sink_and_its_writer_can_be_pickled(cluster):
    """Spark pickles the class, and the writer for its tasks."""
    writer = sink().writer(VALUE, overwrite=False)
    assert KafkaSink is pickle.loads(pickle.dumps(KafkaSink))  # noqa: S301 -- our own bytes
    again = pickle.loads(pickle.dumps(writer))  # noqa: S301 -- our own bytes
    assert vars(writer) == vars(again)


def test_topics_of_a_column_are_not_described(cluster):
    """If a column names the topics, the cluster is queried without topics."""
    source = KafkaSink(CaseInsensitiveDict({"kafka.bootstrap.servers": "localhost:9092"}))
    source.writer(VALUE_AND_TOPIC, overwrite=False)
    assert [((("localhost", 9092),), [])] == cluster.asked


def nested(levels, make):
    """Return the text of a schema with types within each other."""
    schema = "int"
    for level in range(levels):
        schema = make(level, schema)
    return json.dumps(schema)


@pytest.mark.parametrize(
    ("levels", "make"),
    [
        (
            63,
            lambda n, s: {"type": "record", "name": f"R{n}", "fields": [{"name": "a", "type": s}]},
        ),
        (63, lambda _, s: {"type": "array", "items": s}),
        (31, lambda _, s: {"type": "map", "values": s}),
    ],
)
def test_types_that_are_too_deep_for_arrow_are_refused(levels, make):
    """The driver says so, and not Arrow in a task; what is just not too deep is read."""

    def read(levels):
        options = {**OPTIONS, "subscribe": "orders", "valueFormat": "avro"}
        del options["topic"]
        source = KafkaSink(CaseInsensitiveDict({**options, "valueSchema": nested(levels, make)}))
        return source.reader(source.schema())

    assert isinstance(read(levels), KafkaBatchReader)
    with pytest.raises(SchemaError, match="has types within more than 63 others"):
        read(levels + 1)


@pytest.mark.parametrize("options", [{"valueFormat": "json"}, {"valueFormat": "avro"}])
@pytest.mark.parametrize(
    "make",
    [
        lambda variant: variant,
        lambda variant: StructType([StructField("a", LongType()), StructField("v", variant)]),
        lambda variant: MapType(StringType(), ArrayType(variant)),
    ],
)
def test_a_variant_is_refused(cluster, options, make):
    """Spark hands over its own encoding of it, which no reader of the topic could use."""
    schema = {} if options["valueFormat"] == "json" else {"valueSchema": '"long"'}
    columns = StructType([StructField("value", make(VariantType()))])
    with pytest.raises(SchemaError, match=r"has the type variant, .* cast it to string"):
        sink(**options, **schema).writer(columns, overwrite=False)


def test_a_column_that_spark_cannot_hand_over_is_refused(cluster):
    """The type of array() is one, which Arrow does not have."""
    columns = StructType([StructField("value", ArrayType(NullType(), containsNull=False))])
    with pytest.raises(SchemaError, match="column 'value' is array<void>, which Spark cannot hand"):
        sink(valueFormat="avro", valueSchema='"long"').writer(columns, overwrite=False)


def test_overwriting_is_rejected(cluster):
    """Mode overwrite is rejected without querying a broker."""
    with pytest.raises(ConfigError, match="cannot be overwritten, only appended to: use mode"):
        sink().writer(VALUE, overwrite=True)
    assert [] == cluster.asked


@pytest.mark.parametrize(
    ("options", "schema", "error", "message"),
    [
        ({"kafka.ack": "1"}, VALUE, ConfigError, "did you mean 'kafka.acks'"),
        ({"topic": "a b"}, VALUE, ConfigError, "is not a valid topic name"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, VALUE, ConfigError, "acks must"),
        (
            {"reportPath": "/nowhere/to/be/found/r.json"},
            VALUE,
            ConfigError,
            "does not exist; create it",
        ),
        ({"frobnicate": "1"}, VALUE, ConfigError, "unknown option 'frobnicate'"),
        ({"reportpth": "x"}, VALUE, ConfigError, "'reportpth'; did you mean 'reportPath'"),
        ({"kafka.acks": "2"}, VALUE, ConfigError, "must be one of: all, -1, 0, 1, not '2'"),
        ({"kafka.compression.type": "zip"}, VALUE, ConfigError, "type must be one of"),
        ({"kafka.linger.ms": "soon"}, VALUE, ConfigError, "kafka.linger.ms"),
        ({"kafka.security.protocol": "TLS"}, VALUE, ConfigError, "security.protocol must be"),
        ({"kafka.transactional.id": "x"}, VALUE, ConfigError, "kafka.transactional.id"),
        ({"kafka.delivery.timeout.ms": "10"}, VALUE, ConfigError, "is 10, but must be at least"),
        (
            {"kafka.max.in.flight.requests.per.connection": "6"},
            VALUE,
            ConfigError,
            "must be at most 5 with kafka.enable.",
        ),
        ({"kafka.value.serializer": "x"}, VALUE, ConfigError, "is not supported: keys and"),
        ({"kafka.ssl.provider": "x"}, VALUE, ConfigError, "is not supported: OpenSSL does this"),
        (
            {"kafka.sasl.mechanism": "PLAIN"},
            VALUE,
            ConfigError,
            "kafka.sasl.mechanism requires kafka.security.protocol",
        ),
        ({}, StructType([StructField("id", LongType())]), SchemaError, "no column 'value'"),
        ({}, StructType([StructField("value", LongType())]), SchemaError, "'value' is bigint"),
    ],
)
def test_options_and_columns_are_checked_before_the_cluster(
    cluster, options, schema, error, message
):
    """Invalid options and columns are rejected before any broker is queried."""
    with pytest.raises(error, match=message):
        sink(**options).writer(schema, overwrite=False)
    assert [] == cluster.asked


@pytest.mark.parametrize("name", ["kafka.sasl.jaas.config", "kafka.ssl.truststore.password"])
def test_a_rejected_secret_is_not_shown(cluster, name):
    """The message about a secret that has no effect does not contain the secret."""
    with pytest.raises(ConfigError, match=f"{name} requires kafka.security.protocol") as caught:
        sink(**{name: "hunter2"}).writer(VALUE, overwrite=False)
    assert "hunter2" not in str(caught.value)


def test_a_write_without_a_topic_is_rejected(cluster):
    """A write needs a topic option or a topic column."""
    source = KafkaSink(CaseInsensitiveDict({"kafka.bootstrap.servers": "localhost:9092"}))
    with pytest.raises(SchemaError, match="there is no topic: set the option 'topic' or add"):
        source.writer(VALUE, overwrite=False)
    assert [] == cluster.asked


def test_an_unreachable_cluster_fails_on_the_driver(cluster):
    """The error of the cluster check is raised unchanged."""
    cluster.error = NetworkError("nobody there")
    with pytest.raises(NetworkError, match="nobody there"):
        sink().writer(VALUE, overwrite=False)


@pytest.mark.parametrize("can_write", [True, None])
def test_a_granted_or_unknown_write_permission_is_accepted(cluster, can_write):
    """A broker that does not report the client's rights does not prevent the write."""
    cluster.can_write = can_write
    assert isinstance(sink().writer(VALUE, overwrite=False), KafkaBatchWriter)
    assert 7 == KafkaSink.check(FakeFrame(schema=VALUE), OPTIONS).partitions
    assert [["events"], ["events"]] == [topics for _, topics in cluster.asked]


def test_a_missing_write_permission_fails_on_the_driver(cluster):
    """A topic that the client cannot write to is rejected with Kafka's error code."""
    cluster.can_write = False
    with pytest.raises(
        BrokerError, match="topic 'events': this client is not authorized"
    ) as caught:
        sink().writer(VALUE, overwrite=False)
    assert (29, "TOPIC_AUTHORIZATION_FAILED") == (caught.value.code, caught.value.name)


def test_an_error_on_the_driver_has_no_inner_frames(cluster):
    """Spark prints one frame and the message of a rejected write, with no earlier error."""
    cluster.error = NetworkError("nobody there")
    cluster.error.__context__ = ValueError("inner")
    with pytest.raises(NetworkError) as caught:
        sink().writer(VALUE, overwrite=False)
    frames = [entry.name for entry in caught.traceback]
    assert ["test_an_error_on_the_driver_has_no_inner_frames", "writer"] == frames
    assert caught.value.__suppress_context__


def test_options_of_the_source_are_ignored_with_a_warning(cluster, caplog):
    """Options of Spark's Kafka source are ignored with one warning that names them."""
    with caplog.at_level(logging.WARNING):
        sink(startingOffsets="earliest", **{"kafka.group.id": "g"}).writer(VALUE, overwrite=False)
    warning = "Kafka: these options are for reading from Kafka and have no effect on a write: "
    assert [f"{warning}kafka.group.id, startingOffsets"] == caplog.messages


def test_a_write_without_source_options_logs_no_warning(cluster, caplog):
    """A write without such options logs nothing."""
    with caplog.at_level(logging.DEBUG):
        sink().writer(VALUE, overwrite=False)
    assert [] == caplog.messages


def test_a_check_needs_no_job(cluster):
    """A check accepts a DataFrame's schema, and options in a mapping or as keywords."""
    df = FakeFrame(schema=VALUE)
    checked = KafkaSink.check(df, {"kafka.bootstrap.servers": "localhost:9092"}, topic="events")
    assert ("events", 7) == (checked.schema.topic, checked.partitions)
    assert checked == KafkaSink.check(df, **OPTIONS)
    assert [((("localhost", 9092),), ["events"])] * 2 == cluster.asked


def test_a_check_is_a_dry_run_and_a_write_is_not(cluster):
    """Only a write may create its topic; both wait 15 seconds for brokers."""
    KafkaSink.check(FakeFrame(schema=VALUE), OPTIONS)
    sink().writer(VALUE, overwrite=False)
    assert [(True, 15.0), (False, 15.0)] == cluster.dry_runs


def test_a_check_accepts_camel_case_options(cluster, tmp_path):
    """A check uses the same option names as a write."""
    path = tmp_path / "r.json"
    checked = KafkaSink.check(FakeFrame(schema=VALUE), OPTIONS, reportPath=str(path))
    assert str(path) == checked.report_path
    assert [] == list(tmp_path.iterdir())


def test_a_check_raises_what_a_write_would(cluster):
    """A check raises the same errors as a write."""
    with pytest.raises(SchemaError, match="no column 'value'"):
        KafkaSink.check(FakeFrame(schema=StructType([])), OPTIONS)


def test_an_error_of_a_check_comes_without_its_causes(cluster):
    """The sentence has all that the causes say, so their tracebacks are left out."""
    cluster.error = NetworkError("no broker answered")
    cluster.error.__cause__ = ConnectionRefusedError()
    with pytest.raises(NetworkError) as caught:
        KafkaSink.check(FakeFrame(schema=VALUE), OPTIONS)
    assert (None, True) == (caught.value.__cause__, caught.value.__suppress_context__)


def test_a_check_has_no_partition_count_for_a_topic_column(cluster):
    """If a column names the topics, the partition count is None."""
    servers = {"kafka.bootstrap.servers": "localhost:9092"}
    assert KafkaSink.check(FakeFrame(schema=VALUE_AND_TOPIC), servers).partitions is None


def source(**options):
    servers = {"kafka.bootstrap.servers": "localhost:9092"}
    return KafkaSource(CaseInsensitiveDict({**servers, "subscribe": "events", **options}))


def test_one_class_serves_both_directions():
    """Whatever its name, the class that is registered writes and reads."""
    assert KafkaSink is KafkaSource


def test_a_read_has_sparks_columns():
    """Without a schema of the user's, the columns depend on includeHeaders alone."""
    assert "timestampType" == source().schema().names[-1]
    assert "headers" == source(includeheaders="true").schema().names[-1]
    with pytest.raises(ConfigError, match="includeHeaders"):
        source(includeHeaders="perhaps").schema()


BYTES = StructType([StructField("value", BinaryType())])


def test_readers_are_requested_without_asking_a_broker():
    """Spark requests readers often; both only parse options, and can be pickled with plain data."""
    for reader in (source().reader(BYTES), source().streamReader(BYTES)):
        again = pickle.loads(pickle.dumps(reader))  # noqa: S301 -- our own bytes
        assert vars(reader) == vars(again)


def test_a_stream_supports_limits_where_pyspark_does():
    """With PySpark 4.2 and later, the maximum is the limit, otherwise the minimum, if any."""
    limits = pytest.importorskip("pyspark.sql.streaming.datasource")
    assert isinstance(source().streamReader(BYTES), limits.SupportsTriggerAvailableNow)
    for options, expected in (
        ({}, limits.ReadAllAvailable()),
        ({"minOffsetsPerTrigger": "5"}, limits.ReadMinRows(5)),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "7"}, limits.ReadMaxRows(7)),
    ):
        assert expected == source(**options).streamReader(BYTES).getDefaultReadLimit()


def read_batch(options, schema):
    """Request the reader of a batch."""
    source(**options).reader(schema)


def start_stream(options, schema):
    """Request the reader of a new stream, and where it starts."""
    source(**options).streamReader(schema).initialOffset()


@pytest.mark.parametrize("read", [read_batch, start_stream])
@pytest.mark.parametrize(
    ("options", "schema", "error", "message"),
    [
        ({"topic": "events"}, BYTES, ConfigError, "topic is an option of writes"),
        ({"assign": '{"events": [0]}'}, BYTES, ConfigError, "subscribe"),
        ({"kafka.fetch.min.byte": "1"}, BYTES, ConfigError, "did you mean 'kafka.fetch.min.bytes'"),
        ({}, VALUE, SchemaError, "column 'value' is string, but must be binary"),
    ],
)
def test_options_and_columns_of_a_read_are_checked_first(read, options, schema, error, message):
    """Invalid options and columns are rejected before a broker is asked, in one sentence."""
    with pytest.raises(error, match=message) as caught:
        read(options, schema)
    assert "\n" not in str(caught.value)


def test_options_of_one_kind_of_read_are_refused_in_the_other():
    """A stream has no end, and a batch has no progress."""
    with pytest.raises(ConfigError, match="endingOffsets"):
        start_stream({"endingOffsets": "latest"}, BYTES)
    with pytest.raises(ConfigError, match="commitGroup is for streams"):
        source(commitGroup="monitored").reader(BYTES)


def test_a_refused_stream_says_why_whatever_is_asked():
    """A query that continues asks for the latest offsets, or for a batch to replay."""
    refused = source(subscribe="").streamReader(BYTES)
    refused.stop()
    for ask in (
        refused.latestOffset,
        lambda: refused.latestOffset({}, object()),
        lambda: refused.partitions({}, {}),
        lambda: refused.read(InputPartition(None)),
    ):
        with pytest.raises(ConfigError, match="subscribe"):
            ask()


def test_an_error_of_a_trigger_is_prepared_for_users(monkeypatch):
    """Spark shows the chain of its causes, which one sentence replaces."""
    reader = source().streamReader(BYTES)

    def fail(*_, **__):
        raise NetworkError("no broker answered") from ConnectionRefusedError()

    monkeypatch.setattr(reader._driver, "next_end", fail)
    with pytest.raises(NetworkError) as caught:
        reader.latestOffset({}, ReadAllAvailable())
    assert caught.value.__cause__ is None


def test_limits_are_refused_where_pyspark_has_none(monkeypatch):
    """PySpark 4.1 cannot limit a batch: the error names its version, and the reader fits it."""
    monkeypatch.setattr("spark_kafka_sink.spark.data_source.find_spec", lambda _: None)
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    with pytest.raises(
        ConfigError, match=r"maxOffsetsPerTrigger requires PySpark 4\.2 .* 4\.1\.4,"
    ):
        start_stream({"maxOffsetsPerTrigger": "5"}, BYTES)
    reader = source().streamReader(BYTES)
    assert [] == list(inspect.signature(reader.latestOffset).parameters)


def test_streams_are_refused_where_pyspark_has_none(monkeypatch):
    """PySpark 4.0 has no streams of Arrow batches: both directions say what they need."""
    monkeypatch.delattr("pyspark.sql.datasource.DataSourceStreamArrowWriter")
    monkeypatch.setattr("pyspark.__version__", "4.0.5")
    message = r"streams need PySpark 4\.1 or newer, and this is PySpark 4\.0\.5"
    with pytest.raises(ConfigError, match=message):
        sink().streamWriter(VALUE, overwrite=False)
    with pytest.raises(ConfigError, match=message):
        start_stream({}, BYTES)


def test_importing_the_sink_loads_no_heavy_library():
    """The module that every worker imports loads no numba, pyarrow, numpy or network code."""
    heavy = ["numba", "llvmlite", "pyarrow", "numpy", "asyncio", "pandas", "lz4", "zstandard"]
    script = f"""
import json, sys
import pyspark.sql.datasource, pyspark.sql.types, pyspark.taskcontext
before = set(sys.modules)
import pyspark_pykafka
loaded = set(sys.modules) - before
print(json.dumps(sorted(loaded & set({heavy!r}))))
"""
    done = subprocess.run(  # noqa: S603 -- our own interpreter and script
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=600
    )
    assert [] == json.loads(done.stdout)
