"""Typed keys and values with a Schema Registry, end to end in Spark.

The embedded broker and its Schema Registry serve both directions; confluent-kafka's serializers
write what is read here, and read what is written.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time
from enum import Enum

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row

from spark_kafka_sink import KafkaSink
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import ConfigError, SchemaError
from spark_kafka_sink.testing import Delay, NeverAnswer
from tests.spark.conftest import Topics
from tests.support.kafka.real_kafka import wait_until
from tests.support.spark.idle_workers import end_workers
from tests.support.spark.streams import PATIENCE_SECONDS, start

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: Of `make soak`: about five minutes.
RANDOM_KILLS = 40


def order_schema(*more, name="Order"):
    """Return the text of a record with an id and a text, and of further fields."""
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}, *more]
    return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": fields})


#: Fields of further versions of a schema, with the version as their number.
FIELDS = [{"name": f"f{number}", "type": "int", "default": -number} for number in range(1, 5)]
PRICE = {"name": "price", "type": "double", "default": -1.0}
NOTE = {"name": "note", "type": "string", "default": "none"}


class Registered(Topics):
    """Topics of a broker with a Schema Registry."""

    def __init__(self, broker, client):
        """Use a broker, and Confluent's client of its registry."""
        super().__init__(broker)
        self.client = client

    @property
    def servers(self):
        """The options of every read and write."""
        return {
            **super().servers,
            "valueFormat": "avro",
            "schema.registry.url": self.broker.schema_registry_url,
        }

    def register(self, subject, text):
        """Register a schema, and return its id."""
        return self.client.register_schema(subject, Schema(text, "AVRO"))

    def produce(self, topic, rows, text=None, key=None):
        """Write rows with Confluent's serializer, by a schema that it registers."""
        serializer = None if text is None else AvroSerializer(self.client, text)
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers})
        context = SerializationContext(topic, MessageField.VALUE)
        for row in rows:
            value = serializer(row, context) if serializer is not None else row
            producer.produce(topic, value=value, key=key, partition=0)
        assert 0 == producer.flush(120)

    def source(self, spark, topic, **options):
        """Return a read of a topic."""
        return spark.read.format("pykafka").options(
            **{**self.servers, "subscribe": topic, **options}
        )

    def orders(self, spark, topic, **options):
        """Return the values of a topic, in their order."""
        rows = self.source(spark, topic, **options).load().orderBy("partition", "offset").collect()
        return [None if row.value is None else row.value.asDict() for row in rows]

    def deserialized(self, topic):
        """Return the values of a topic as Confluent's deserializer reads them, sorted."""
        deserializer = AvroDeserializer(self.client)
        context = SerializationContext(topic, MessageField.VALUE)
        return sorted(
            (deserializer(record.value, context) for record in self.read(topic)),
            key=lambda row: row["id"],
        )


@pytest.fixture(scope="module")
def registered():
    """Yield the topics of a broker with a Schema Registry."""
    with (
        DevBroker(auto_create_topics=False, schema_registry=True) as broker,
        SchemaRegistryClient({"url": broker.schema_registry_url}) as client,
    ):
        yield Registered(broker, client)


def orders_frame(spark, count, *, price="id * 1.5D"):
    """Return rows with a struct as value."""
    return spark.range(0, count, 1, 1).selectExpr(
        "cast(id as string) as key",
        f"struct(id, if(id % 2 = 0, null, concat('n', id)) as name, {price} as price) as value",
    )


def expected_orders(count):
    """Return the values of `orders_frame`."""
    return [
        {"id": number, "name": f"n{number}" if number % 2 else None, "price": number * 1.5}
        for number in range(count)
    ]


def test_confluents_deserializer_reads_what_spark_writes(registered, spark):
    """A struct is written by the latest schema of the topic's subject; columns match by name."""
    topic = registered.create(partitions=2)
    schema_id = registered.register(f"{topic}-value", order_schema(PRICE))
    registered.write(orders_frame(spark, 30), topic)
    assert expected_orders(30) == registered.deserialized(topic)
    report = KafkaSink.last_report(spark)
    assert (f"values by schema {schema_id} (subject {topic}-value, version 1)",) == report.schemas


def test_spark_reads_what_confluents_serializer_writes(registered, spark):
    """Payloads of several schemas become one column with the type of the latest; null stays."""
    topic = registered.create()
    registered.produce(topic, [{"id": 1, "name": "a"}], order_schema())
    registered.produce(topic, [{"id": 2, "name": None, "price": 7.5}], order_schema(PRICE))
    registered.produce(topic, [None])
    registered.produce(topic, [{"id": 3, "name": "c"}], order_schema())
    df = registered.source(spark, topic).load()
    assert "struct<id:bigint,name:string,price:double>" == dict(df.dtypes)["value"]
    asked = registered.broker.schema_registry.on("GET /schemas/...", lambda *_: None)
    expected = [
        {"id": 1, "name": "a", "price": -1.0},
        {"id": 2, "name": None, "price": 7.5},
        None,
        {"id": 3, "name": "c", "price": -1.0},
    ]
    assert expected == registered.orders(spark, topic)
    # Each worker asks for the one id that the driver did not ship.
    assert 1 <= asked.seen <= spark.sparkContext.defaultParallelism
    asked.remove()


def test_a_schema_is_derived_and_registered(registered, spark):
    """With autoRegisterSchemas, what Spark writes needs no schema before; key and value alike."""
    topic = registered.create()
    options = {"autoRegisterSchemas": "true", "keyFormat": "avro"}
    checked = KafkaSink.check(
        orders_frame(spark, 3), {**registered.servers, **options, "topic": topic}
    )
    assert str(checked).startswith(f"OK: 1 partition of {topic}")
    assert [] == [name for name in registered.client.get_subjects() if name.startswith(topic)]
    registered.write(orders_frame(spark, 3), topic, **options)
    assert expected_orders(3) == registered.deserialized(topic)
    rows = registered.source(spark, topic, keyFormat="avro").load().orderBy("offset").collect()
    assert ["0", "1", "2"] == [row.key for row in rows]
    assert expected_orders(3) == [row.value.asDict() for row in rows]


def test_every_type_returns_as_it_was(registered, spark):
    """Values of every type that has a derived schema are the same after a write and a read."""
    topic = registered.create()
    columns = {
        "flag": "id % 2 = 0",
        "small": "cast(id as int)",
        "real": "cast(id as float)",
        "price": "cast(id / 4 as decimal(10, 2))",
        "data": "cast(cast(id as string) as binary)",
        "day": "date_add(date'1969-12-30', cast(id as int))",
        "at": "timestamp_micros(id * 1000001 - 3000000)",
        "local": "cast(timestamp_micros(id * 999999) as timestamp_ntz)",
        "tags": "array('a', if(id = 1, null, 'b'))",
        "counts": "map('x', id, 'y', if(id = 2, null, id))",
        "inner": "if(id = 3, null, named_struct('at', timestamp_micros(id), 'name', 'n'))",
    }
    value = ", ".join(f"{text} as {name}" for name, text in columns.items())
    df = spark.range(0, 5, 1, 1).selectExpr(f"struct(id, {value}) as value")
    registered.write(df, topic, autoRegisterSchemas="true")
    read = registered.source(spark, topic).load().orderBy("offset")
    assert [row.value for row in df.collect()] == [row.value for row in read.collect()]


def test_nothing_is_registered_for_a_write_that_cannot_be(registered, spark):
    """Where a topic is missing, its subject is not made either."""
    with pytest.raises(Exception, match="no-such-topic"):
        registered.write(orders_frame(spark, 1), "no-such-topic", autoRegisterSchemas="true")
    assert [] == [name for name in registered.client.get_subjects() if "no-such" in name]


def test_a_read_selects_fields(registered, spark):
    """With a schema of the user's, only those fields are decoded that it names."""
    topic = registered.create()
    schema_id = registered.register(f"{topic}-value", order_schema(PRICE))
    registered.write(orders_frame(spark, 3), topic)
    reader = registered.source(spark, topic, valueSchema=f"id:{schema_id}")
    df = reader.schema("offset long, value struct<price: double, id: bigint>").load()
    assert [
        Row(offset=number, value=Row(price=number * 1.5, id=number)) for number in range(3)
    ] == df.orderBy("offset").collect()


def test_a_malformed_payload_ends_a_read_or_becomes_null(registered, spark):
    """The error names the record; with onDecodeError=null a column does."""
    topic = registered.create()
    schema_id = registered.register(f"{topic}-value", order_schema(PRICE))
    bad = b"\0" + schema_id.to_bytes(4, "big") + b"\x02\xff"
    registered.write(orders_frame(spark, 2), topic)
    registered.produce(topic, [bad, b"text"], key=b"k")
    with pytest.raises(Exception, match=rf"offset 2, schema {schema_id}, value.*onDecodeError"):
        registered.source(spark, topic).load().collect()
    df = registered.source(spark, topic, onDecodeError="null").load().orderBy("offset")
    fine, _, short, foreign = df.collect()
    assert (0, None, None, None) == (
        fine.value.id,
        fine.decodeError,
        fine.rawKey,
        fine.rawValue,
    )
    assert (None, b"k", bad) == (short.value, short.rawKey, short.rawValue)
    assert f"value.name: a value of 1 bytes is longer than the payload (schema {schema_id})" == (
        short.decodeError
    )
    assert "value: it has 4 bytes, fewer than the 5 of the framing of a registry" == (
        foreign.decodeError
    )


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_a_stream_writes_and_reads_avro(registered, spark, tmp_path, guarantee):
    """A stream's micro-batches are encoded on their way in, and decoded on their way out."""
    source, target = registered.create(partitions=2), registered.create(partitions=2)
    registered.register(f"{source}-value", order_schema(PRICE))
    registered.write(orders_frame(spark, 20), source)
    options = {"autoRegisterSchemas": "true", "topic": target, "deliveryGuarantee": guarantee}
    if guarantee == "exactly_once":
        options["transactionalIdPrefix"] = target
    stream = spark.readStream.format("pykafka").options(
        **registered.servers, subscribe=source, startingOffsets="earliest"
    )
    for count in (20, 25):
        if count > 20:
            registered.write(orders_frame(spark, 25).where("key >= 20"), source)
        query = (
            stream.load()
            .select("key", "value")
            .writeStream.format("pykafka")
            .options(**registered.servers, **options, checkpointLocation=str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        assert True is query.awaitTermination(300)
    assert expected_orders(25) == registered.deserialized(target)


def test_a_running_stream_meets_new_schemas(registered, spark, tmp_path):
    """With schemaEvolutionMode=restart new fields end a stream; the next one reads every row."""
    topic = registered.create()
    numbers = itertools.count()

    def produce(version):
        registered.produce(topic, [versioned(next(numbers), version)], versions()[version])

    def run(mode):
        stream = registered_stream(registered, spark, topic, schemaEvolutionMode=mode)
        return (
            stream.selectExpr("to_json(value, map('ignoreNullFields', 'false')) as json")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )

    produce(0)
    assert True is run("restart").awaitTermination(300)
    # A query that began with the first schema meets the others.
    begun = registered_stream(registered, spark, topic, schemaEvolutionMode="restart")
    for version in range(1, 5):
        produce(version)
    query = (
        begun.selectExpr("to_json(value) as json")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "d"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(
        Exception, match=r"offset 1, schema .* more than .*: field f1.*start the query"
    ):
        query.awaitTermination(300)
    assert True is run("restart").awaitTermination(300)
    found = [json.loads(row.json) for row in spark.read.parquet(str(tmp_path / "rows")).collect()]
    expected = [{"id": 0, "name": "x"}] + [
        {"id": version, "name": "x"}
        | {f"f{n}": n * 10 if n <= version else -n for n in range(1, 5)}
        for version in range(1, 5)
    ]
    assert expected == sorted(found, key=lambda row: row["id"])


def versions(name="Order"):
    """Return the texts of five versions, each with a field more than the one before."""
    return [order_schema(*FIELDS[:count], name=name) for count in range(len(FIELDS) + 1)]


def versioned(number, version):
    """Return a row of one of the versions of a schema."""
    return {"id": number, "name": "x"} | {f"f{n}": n * 10 for n in range(1, version + 1)}


class Victim(Enum):
    """What is killed while a stream runs."""

    TASK = "pyspark.worker"
    SOURCE = "pyspark.sql.streaming.python_streaming_source_runner"
    QUERY = "query"


class EvolvingStream:
    """A stream that reads all versions by one of them, and is started again when it ends."""

    #: What it reads by: older rows lack fields of it, and newer ones have more.
    VERSION = 2

    def __init__(self, registered, spark, directory):
        """Start the stream of a new topic."""
        self._registered, self._spark, self._directory = registered, spark, directory
        self._topic = registered.create()
        # Under a name of its own, since workers keep the schemas of other tests.
        self._versions = versions(self._topic.replace("-", "_"))
        self.ids = [registered.register(f"{self._topic}-value", text) for text in self._versions]
        self._expected = []
        self.starts = 0
        self._start()

    def _start(self):
        self.starts += 1
        stream = registered_stream(
            self._registered,
            self._spark,
            self._topic,
            valueSchema=f"id:{self.ids[self.VERSION]}",
            maxOffsetsPerTrigger="3",
        )
        writer = stream.selectExpr("to_json(value) as json").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self._directory / "checkpoint"))
        writer = writer.option("path", str(self._directory / "rows"))
        self.query = start(writer, {"processingTime": "0 seconds"})

    def produce(self, version, count=4):
        """Write rows of a version."""
        first = len(self._expected)
        rows = [versioned(number, version) for number in range(first, first + count)]
        self._registered.produce(self._topic, rows, self._versions[version])
        self._expected += [
            {"id": row["id"], "name": "x", "f1": row.get("f1", -1), "f2": row.get("f2", -2)}
            for row in rows
        ]

    def kill(self, victim):
        """Kill what a stream consists of, whatever it does at the moment."""
        if victim is Victim.QUERY:
            self.query.stop()
        else:
            end_workers(self._spark, victim.value)

    def settle(self):
        """Wait until all rows are read, and start the query again whenever it has ended."""
        for _ in range(10):
            with contextlib.suppress(StreamingQueryException):
                self.query.processAllAvailable()
                if self.query.isActive:
                    return
            self._start()
        raise AssertionError(f"the query does not stay alive: {self.query.exception()}")

    def check(self):
        """Check that every row was read once, with the defaults of the fields that it lacks."""
        read = self._spark.read.parquet(str(self._directory / "rows")).collect()
        found = sorted((json.loads(row.json) for row in read), key=lambda row: row["id"])
        assert self._expected == found


@pytest.fixture
def evolving(registered, spark, tmp_path):
    stream = EvolvingStream(registered, spark, tmp_path)
    yield stream
    stream.query.stop()


def test_every_row_is_read_once_while_schemas_change_and_processes_are_killed(registered, evolving):
    """Whatever is killed while a worker waits for a new schema, rows and defaults are the same."""
    registry = registered.broker.schema_registry
    victims = {0: Victim.TASK, 1: Victim.QUERY, 3: Victim.SOURCE, 4: Victim.TASK}
    for version in range(len(evolving.ids)):
        victim = victims.get(version)
        if victim is None:
            # The driver has shipped it, so that no worker asks for it.
            evolving.produce(version)
        else:
            # A dead source is noticed only after the micro-batch.
            fault = Delay(0.5) if victim is Victim.SOURCE else NeverAnswer()
            hook = registry.on(f"GET /schemas/ids/{evolving.ids[version]}", fault, times=1)
            evolving.produce(version)
            wait_until(lambda hook=hook: hook.fired, seconds=PATIENCE_SECONDS, what="a request")
            evolving.kill(victim)
        evolving.settle()
    evolving.check()
    assert len(victims) < evolving.starts


@pytest.mark.soak
def test_random_kills_while_schemas_change_lose_and_duplicate_no_row(evolving):
    """For a few minutes, any process dies at any moment, and versions change back and forth."""
    seed = random.SystemRandom().randrange(2**31)
    chance = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201 -- pytest shows it with a failure
    for number in range(RANDOM_KILLS):
        evolving.produce(chance.randrange(len(evolving.ids)), chance.choice((1, 4, 10)))
        time.sleep(chance.uniform(0, 2))
        evolving.kill(chance.choice(list(Victim)))
        if number % 3:
            evolving.settle()
    evolving.settle()
    evolving.check()


def registered_stream(registered, spark, topic, **options):
    """Return a stream of a topic from its beginning."""
    given = {**registered.servers, "subscribe": topic, "startingOffsets": "earliest", **options}
    return spark.readStream.format("pykafka").options(**given).load()


@pytest.mark.parametrize(
    ("price", "options", "expected"),
    [
        ("'cheap'", {}, (SchemaError, "value.price")),
        ("1.5D", {"valueSchema": "version:9"}, (Exception, "40402")),
        ("1.5D", {"valueSubject": "none"}, (Exception, "40401")),
        ("1.5D", {"valueSchema": order_schema()}, (SchemaError, "is not registered under")),
        ("1.5D", {"keyFormat": "avro"}, (Exception, "-key")),
        ("1.5D", {"valueFormat": "protobuf"}, (ConfigError, "protobuf is not supported yet")),
    ],
)
def test_a_write_that_cannot_be_is_refused_on_the_driver(
    registered, spark, price, options, expected
):
    """What is wrong with schema, options or columns is said before a task runs."""
    topic = registered.create()
    registered.register(f"{topic}-value", order_schema(PRICE))
    kind, text = expected
    with pytest.raises(kind, match=text):
        KafkaSink.check(
            orders_frame(spark, 3, price=price), {**registered.servers, "topic": topic, **options}
        )
    with pytest.raises(Exception, match=text):
        registered.write(orders_frame(spark, 3, price=price), topic, **options)


def test_a_row_that_the_schema_does_not_have_is_named(registered, spark):
    """A null where the schema has none ends the task with the row and the field."""
    topic = registered.create()
    registered.register(f"{topic}-value", order_schema(PRICE))
    df = orders_frame(spark, 5, price="if(id = 3, null, 1.5D)").coalesce(1)
    with pytest.raises(Exception, match=r"row 3 of task 0.*value\.price: the value is null"):
        registered.write(df, topic)


def test_the_latest_schema_needs_no_columns_of_the_user(registered, spark):
    """A reader with columns of the user's is asked for several times, and must be the same."""
    topic = registered.create()
    registered.register(f"{topic}-value", order_schema())
    with pytest.raises(Exception, match=r"valueSchema=version:7, id:42 or the text of a schema"):
        registered.source(spark, topic).schema("value struct<id: bigint>").load().collect()
