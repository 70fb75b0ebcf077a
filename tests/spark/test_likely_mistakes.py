"""The likeliest mistakes of users: the sentence that Spark shows, and how many lines.

Spark adds the first words and the last line. Of a stream's error, only the part before Spark's
description of the query counts.
"""

from __future__ import annotations

import json
import socket

import pytest
from pyspark.errors import PySparkException

from spark_kafka_sink.testing import AnswerError, ApiKey, DevBroker, ErrorCode
from tests.support.security.secure_listeners import PASSWORD, USER, listener
from tests.support.spark.streams import run_to_end

VALUE = "cast(id as string) value"
#: The sentence, Spark's own words and its line "SQLSTATE: 38000".
MAX_LINES = 3
SERVERS = "kafka.bootstrap.servers"

#: Name -> columns, options (None removes one), and the sentence: no task runs. The sentences about
#: other options and columns are in `test_data_source` and `test_write_schema`.
REFUSED_WRITES = {
    "no topic": (VALUE, {"topic": None}, "there is no topic: set the option 'topic' or add a"),
    "no servers": (VALUE, {SERVERS: None}, "kafka.bootstrap.servers"),
    "misspelt option": (VALUE, {"kafka.ack": "1"}, "did you mean 'kafka.acks'?"),
    "case of value": (f"{VALUE[:-5]}Value", {}, "are case-sensitive here: rename it"),
    "an interval": (
        f"{VALUE}; interval '1' year as x",
        {},
        "column 'x' is interval year, which Spark cannot hand to a Python data source: drop it",
    ),
    "two equal names": (f"{VALUE}; 1 as x; 2 as x", {}, "2 columns are named 'x', which Spark"),
    "no password": (
        VALUE,
        {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"},
        "kafka.sasl.jaas.config is required with kafka.sasl.mechanism=PLAIN",
    ),
    "TLS to a plaintext port": (
        VALUE,
        {"kafka.security.protocol": "SSL"},
        "this listener does not use TLS: use the port of a TLS listener, or set kafka.security.",
    ),
    "unreachable": (
        VALUE,
        {SERVERS: "127.0.0.1:1", "kafka.max.block.ms": "1000"},
        "no broker answered through 127.0.0.1:1 (kafka.bootstrap.servers); last cause: 127.0.0.1:",
    ),
    "unknown topic": (VALUE, {"topic": "missing-topic"}, "topic 'missing-topic' does not exist in"),
    "no prefix": (VALUE, {"deliveryGuarantee": "exactly_once"}, "transactionalIdPrefix"),
}
#: Name -> a column that is wrong in row 1 of each task, and the sentence.
FAILING_ROWS = {
    "partition": ("cast(if(id % 2 = 1, 7, 0) as int) partition", "partition 7: the topic has no"),
    "too large": (
        "if(id % 2 = 1, repeat('x', 2000000), '') key",
        "but kafka.max.request.size and kafka.buffer.memory allow at most",
    ),
    "timestamp": ("timestamp_millis(if(id % 2 = 1, -1, id)) timestamp", "before 1970"),
    "header": (
        "array(struct(if(id % 2 = 1, null, 'k') as key, x'00' as value)) headers",
        "the key of a header is null. Remove the header or set its key",
    ),
    "topic": ("if(id % 2 = 1, null, 'TOPIC') topic", "the topic is null. Set a topic in every row"),
}
#: Mechanism -> Java's login module, and what is wrong with the password.
LOGINS = {
    "PLAIN": ("plain.PlainLoginModule", "Invalid username or password"),
    "SCRAM-SHA-256": ("scram.ScramLoginModule", "invalid credentials"),
}
#: Name -> the API that the broker refuses, its code, more options, and what to grant.
MISSING_RIGHTS = {
    "topic": (ApiKey.PRODUCE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, {}, "WRITE on the topic"),
    "transactions": (
        ApiKey.INIT_PRODUCER_ID,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        {"deliveryGuarantee": "exactly_once", "transactionalIdPrefix": "no-rights"},
        "spark_kafka_sink.errors.BrokerError: InitProducerId of 'no-rights.ledger': no authori",
    ),
}
#: Name -> options, and the sentence.
REFUSED_READS = {
    "no subscribe": ({"subscribe": None}, "subscribe"),
    "two choices": ({"assign": '{"t": [0]}'}, "subscribe"),
    "misspelt option": ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
    "offsets": ({"startingOffsets": '{"t":'}, "startingOffsets is not JSON"),
    "latest": ({"startingOffsets": "latest"}, "startingOffsets"),
    "unknown topic": ({"subscribe": "missing-topic"}, "topic 'missing-topic' does not exist"),
    "data loss": ({"startingOffsets": "TOO_FAR"}, "To go on without these offsets, set failOnData"),
}
#: Name -> options, output mode, and the sentence.
REFUSED_STREAMS = {
    "no topic": ({"topic": None}, "append", "SchemaError: there is no topic: set the option"),
    "unknown topic": ({"topic": "missing-topic"}, "append", "topic 'missing-topic' does not exist"),
    "update": ({}, "update", "pykafka does not support Update mode"),
    "no checkpoint": ({"checkpointLocation": None}, "append", "checkpointLocation must be spec"),
}


def given(defaults, options):
    """Return the options without those that are None."""
    merged = {**defaults, **options}
    return {name: value for name, value in merged.items() if value is not None}


def check(action, sentence):
    """Check that an action fails with a sentence before all else; return the message."""
    with pytest.raises(PySparkException) as caught:
        action()
    message = str(caught.value).partition("=== Streaming Query ===")[0].strip()
    lines = message.splitlines()
    assert sentence in " ".join(lines[:2])
    assert MAX_LINES >= len(lines), message
    assert 'File "' not in message
    assert "(id -" not in message
    return message


@pytest.mark.parametrize("name", REFUSED_WRITES)
def test_a_write_is_refused_in_one_sentence(name, topics, spark):
    """A mistake in options or columns fails the write at once, and the first line says what."""
    columns, options, sentence = REFUSED_WRITES[name]
    df = spark.range(4).selectExpr(*columns.split("; "))
    options = given({**topics.servers, "topic": topics.create()}, options)
    check(df.write.format("pykafka").mode("append").options(**options).save, sentence)


@pytest.mark.parametrize("name", FAILING_ROWS)
def test_a_row_is_refused_in_one_sentence(name, topics, spark):
    """A row that cannot be sent is named by its task and its place in the task."""
    column, sentence = FAILING_ROWS[name]
    topic = topics.create()
    columns = [VALUE, column.replace("TOPIC", topic)]
    df = spark.range(4, numPartitions=2).selectExpr(*columns)
    option = None if name == "topic" else topic
    message = check(lambda: topics.write(df, option), sentence)
    assert "Error: row 1 of task 0" in message or "Error: row 1 of task 1" in message


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [("overwrite", "use mode('append')"), (None, 'Please use either the "Append"')],
)
def test_a_wrong_mode_is_refused_in_one_sentence(mode, sentence, topics, spark):
    """Mode overwrite is refused by the sink, and no mode by Spark, before it asks the sink."""
    writer = spark.range(1).selectExpr(VALUE).write.format("pykafka").options(**topics.servers)
    check((writer if mode is None else writer.mode(mode)).save, sentence)


@pytest.mark.parametrize("mechanism", LOGINS)
def test_a_wrong_password_is_refused_in_one_sentence(mechanism, spark):
    """A wrong password fails the write at once, and the sentence shows no password."""
    module, sentence = LOGINS[mechanism]
    wrong = "my wrong password"
    login = f'org.apache.kafka.common.security.{module} required username="{USER}"'
    with DevBroker(listeners=[listener("SASL_PLAINTEXT")], topics={"events": 1}) as broker:
        options = {
            SERVERS: broker.bootstrap_servers,
            "topic": "events",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": mechanism,
            "kafka.sasl.jaas.config": f'{login} password="{wrong}";',
        }
        df = spark.range(4).selectExpr(VALUE)
        message = check(df.write.format("pykafka").mode("append").options(**options).save, sentence)
    assert "Check username and password in kafka.sasl.jaas.config" in message
    assert wrong not in message
    assert PASSWORD not in message


def test_a_port_that_does_not_speak_kafka_is_refused_in_one_sentence(spark):
    """A server that accepts connections and never answers is named, with no frames of a timeout."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        options = {
            SERVERS: address,
            "topic": "events",
            "kafka.max.block.ms": "2000",
            "kafka.socket.connection.setup.timeout.ms": "1000",
        }
        df = spark.range(4).selectExpr(VALUE)
        save = df.write.format("pykafka").mode("append").options(**options).save
        check(save, f"no broker answered through {address} (kafka.bootstrap.servers)")


def test_the_checkpoint_of_another_source_is_refused_in_one_sentence(topics, spark, tmp_path):
    """A query whose source was another one is told to use its own checkpoint, or a new one."""

    def run(source):
        stream = source.load().writeStream.format("noop")
        run_to_end(stream.option("checkpointLocation", str(tmp_path)))

    run(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1))
    kafka = spark.readStream.format("pykafka").options(**topics.servers, subscribe=topics.create())
    check(lambda: run(kafka), "use the checkpoint of this query, or a new one")


@pytest.mark.parametrize("name", MISSING_RIGHTS)
def test_a_missing_right_is_refused_in_one_sentence(name, topics, spark):
    """A user who may not write to the topic, or not in transactions, is told what to grant."""
    api, code, options, sentence = MISSING_RIGHTS[name]
    topic = topics.create()
    hook = topics.broker.on(api, AnswerError(code))
    try:
        df = spark.range(4).selectExpr(VALUE)
        message = check(lambda: topics.write(df, topic, **options), sentence)
    finally:
        hook.remove()
    assert code.name in message
    assert "RefusedWriteError" not in message


def test_a_table_is_a_name_without_options(topics, spark):
    """`saveAsTable` writes the rows, and leaves a table without options that nothing can use."""
    topic = topics.create()
    writer = spark.range(4).selectExpr(VALUE).write.format("pykafka").mode("append")
    try:
        writer.options(**topics.servers, topic=topic).saveAsTable("a_table_of_kafka")
        assert 4 == len(topics.values(topic))
        insert = "insert into a_table_of_kafka values ('4')"
        check(lambda: spark.sql(insert), "kafka.bootstrap.servers is required")
    finally:
        spark.sql("drop table if exists a_table_of_kafka")
    assert 4 == len(topics.values(topic))


@pytest.mark.parametrize("name", REFUSED_READS)
def test_a_read_is_refused_in_one_sentence(name, topics, spark):
    """A mistake in the options of a read fails it at once, and the first line says what."""
    options, sentence = REFUSED_READS[name]
    topic = topics.create()
    options = given({**topics.servers, "subscribe": topic}, options)
    if options.get("startingOffsets") == "TOO_FAR":
        options["startingOffsets"] = json.dumps({topic: {"0": 100}})
    check(lambda: spark.read.format("pykafka").options(**options).load().collect(), sentence)


@pytest.mark.parametrize("name", REFUSED_STREAMS)
def test_a_stream_is_refused_in_one_sentence(name, topics, spark, tmp_path):
    """A mistake in a stream ends its query at once, and the first line says what."""
    options, mode, sentence = REFUSED_STREAMS[name]
    stream = spark.readStream.format("rate").load()
    if mode == "update":
        stream = stream.groupBy("value").count()
    stream = stream.selectExpr("cast(value as string) value")
    checkpoint = {"checkpointLocation": str(tmp_path / "checkpoint")}
    options = given({**topics.servers, "topic": topics.create(), **checkpoint}, options)
    writer = stream.writeStream.format("pykafka").outputMode(mode).options(**options)
    check(lambda: run_to_end(writer, {"processingTime": "0 seconds"}), sentence)
