"""The code blocks of README and the documentation that use Spark run as they stand."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from spark_kafka_sink import KafkaProducer, KafkaSink
from spark_kafka_sink.testing import DevBroker, Listener
from tests.support.documentation import ADDRESS, BLOCKS, faults_of_example
from tests.support.kafka.readers import read_with_confluent
from tests.support.security.secure_listeners import PASSWORD, listener

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

#: The paths in the blocks, which readers replace by their own: a run that found the checkpoint of
#: an earlier one would resume its query.
CHECKPOINTS = re.compile(r'(?<="checkpointLocation", ")[^"]+')
#: The broker, the certificate and the secret of the block that connects with TLS and SASL.
SECURED_ADDRESS = "broker.example:9093"
TRUST_STORE = "/etc/kafka/ca.pem"
SECRET = "/etc/kafka/secret"  # noqa: S105 - the path of a file
PYTHON = [
    block
    for block in BLOCKS
    if block.language == "python" and block.needs_spark and not block.is_excerpt
]
RUNNABLE = [block for block in PYTHON if SECURED_ADDRESS not in block.code]
SECURED = [block for block in PYTHON if SECURED_ADDRESS in block.code]
#: The topics that the blocks write to or read.
TOPICS = {"events": 3, "copy": 3, "dead-letters": 1}
ROWS = 100


@contextmanager
def names_for(spark: SparkSession, directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the names that blocks use without defining them, and stop the queries they start."""
    df = spark.range(ROWS).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    try:
        yield {"spark": spark, "df": df, "stream": numbers(spark, directory)}
    finally:
        for query in spark.streams.active:
            query.stop()


def numbers(spark: SparkSession, directory: Path) -> DataFrame:
    """Return a stream of a file with `ROWS` numbers."""
    source = directory / "source"
    source.mkdir()
    (source / "numbers.txt").write_text("".join(f"{number}\n" for number in range(ROWS)))
    return spark.readStream.text(str(source))


def send_numbers(bootstrap_servers: str, topic: str) -> None:
    """Send `ROWS` numbers to a topic."""
    with KafkaProducer({"bootstrap.servers": bootstrap_servers}) as producer:
        for number in range(ROWS):
            producer.send(topic, b"%d" % number)
        producer.flush()


@pytest.mark.slow
@pytest.mark.parametrize("block", RUNNABLE, ids=lambda block: block.place)
def test_a_block_with_spark_runs_unchanged(block, spark, tmp_path):
    """The block runs with a session and a broker, and writes its rows if it writes any."""
    copies = '"copy"' in block.code
    with DevBroker(topics=TOPICS) as broker, names_for(spark, tmp_path) as names:
        if copies:
            send_numbers(broker.bootstrap_servers, "events")
        code = block.code.replace(ADDRESS, broker.bootstrap_servers)
        code = CHECKPOINTS.sub(str(tmp_path / "checkpoint"), code).replace("1_000_000", f"{ROWS}")

        exec(compile(code, block.place, "exec"), names)  # noqa: S102 - our own text
        if "query" in names:
            names["query"].processAllAvailable()

        writes = re.search(r"\.(save|start)\(\)|mapInArrow\(", code) is not None
        assert (ROWS if writes else 0) == len(
            read_with_confluent(broker.bootstrap_servers, "copy" if copies else "events")
        )


@pytest.mark.slow
@pytest.mark.parametrize("block", SECURED, ids=lambda block: block.place)
def test_a_block_with_security_runs_unchanged(block, spark, certificates, tmp_path):
    """The block writes its rows with TLS and the password of the file that it refers to."""
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    listeners = [
        Listener(),
        listener("SASL_SSL", certificates, mechanisms=["SCRAM-SHA-512"]),
    ]
    with (
        DevBroker(listeners=listeners, topics={"events": 3}) as broker,
        names_for(spark, tmp_path) as names,
    ):
        code = (
            block.code.replace(SECURED_ADDRESS, broker.address("SASL_SSL"))
            .replace(TRUST_STORE, str(certificates.authority.pem_file))
            .replace(SECRET, str(secret))
        )

        exec(compile(code, block.place, "exec"), names)  # noqa: S102 - our own text

        assert ROWS == len(read_with_confluent(broker.bootstrap_servers, "events"))


@pytest.mark.usefixtures("spark")
def test_the_example_of_the_data_source_runs_unchanged():
    """The example in the docstring of the class writes a row and reads it."""
    with DevBroker(topics={"orders": 1}) as broker:
        assert [] == faults_of_example(KafkaSink, {}, broker.bootstrap_servers)
