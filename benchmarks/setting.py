"""The setting that sections share: options, and a broker and Spark session started on demand."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from benchmarks.counting_sink import CountingSink
from benchmarks.measuring import progress
from tests.support.kafka.kafka_files import KAFKA_4
from tests.support.kafka.real_kafka import given_kafka, start_kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.kafka.real_kafka import KafkaCluster

ROOT = Path(__file__).parent.parent


@dataclass
class Setting:
    """The options of one run, and the broker and Spark session that it stops on exit."""

    rows: int
    rounds: int
    long: bool
    jvm_sink_jars: Path | None

    def __enter__(self) -> Self:
        """Return the setting; nothing is started yet."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop what was started."""
        started = vars(self)
        if "spark" in started:
            started["spark"].stop()
        if "kafka" in started:
            started["kafka"].close()

    @property
    def has_jvm_sink(self) -> bool:
        """Whether Spark's own Kafka sink can be measured."""
        return self.jvm_sink_jars is not None

    @cached_property
    def kafka(self) -> KafkaCluster:
        """The broker of KAFKA_BOOTSTRAP_SERVERS, or a new one with Kafka's default heap."""
        progress("starting Kafka")
        return given_kafka() or start_kafka(KAFKA_4, java_options=["-Xms1g", "-Xmx1g"])

    @property
    def broker_processes(self) -> list[int]:
        """The process ids of brokers that were started here."""
        return processes_of(self.kafka)

    def check_count(self, topic: str, rows: int) -> None:
        """Raise RuntimeError unless all measured rows are in the topic."""
        check_count(self.kafka, topic, rows)

    @cached_property
    def spark(self) -> SparkSession:
        """A local session that uses all cores."""
        progress("starting Spark")
        return start_spark(self.jvm_sink_jars)


def processes_of(kafka: KafkaCluster) -> list[int]:
    """Return the process ids of brokers that were started here."""
    return [b.process_id for b in kafka.brokers if b.process_id is not None]


def check_count(kafka: KafkaCluster, topic: str, rows: int, *, most_markers: int = 0) -> None:
    """Raise RuntimeError unless all rows are in a topic; transaction markers take offsets too."""
    written = sum(kafka.end_offsets(topic).values())
    if not rows <= written <= rows + most_markers:
        raise RuntimeError(f"{topic} has {written} of {rows} rows")


def start_spark(jars: Path | None = None) -> SparkSession:
    """Start a local session with the counting sink and the jars of a directory."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # The workers import the counting sink.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    from pyspark.sql import SparkSession  # noqa: PLC0415  # reads the environment

    builder = (
        SparkSession.builder.master("local[*]")
        .appName("bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "3g")
        .config("spark.ui.showConsoleProgress", "false")
    )
    if jars is not None:
        builder = builder.config("spark.jars", ",".join(map(str, sorted(jars.glob("*.jar")))))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(CountingSink)
    return session
