"""The setting that sections share: options, and a broker and Spark session started on demand."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from benchmarks.counting_sink import CountingSink
from benchmarks.generated_source import GeneratedSource
from benchmarks.lean_sink import LeanSink
from benchmarks.measuring import progress
from tests.support.kafka.kafka_docker import DockerNodes
from tests.support.kafka.kafka_files import KAFKA_4
from tests.support.kafka.kafka_source_jars import avro_jars, kafka_source_jars
from tests.support.kafka.kafka_unavailable import SparkSourceUnavailableError
from tests.support.kafka.process_nodes import ProcessNodes
from tests.support.kafka.real_kafka import given_kafka, start_kafka

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from tests.support.kafka.real_kafka import KafkaCluster

ROOT = Path(__file__).parent.parent
#: For the logs of the largest section with its default number of rows, and of the one before.
_LEAST_MEMORY = 4 << 30


@dataclass
class Setting:
    """The options of one run, and the broker and Spark session that it stops on exit."""

    rows: int
    rounds: int
    long: bool
    jvm_jars: Path | None

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
    def has_jvm_connector(self) -> bool:
        """Whether Spark's own Kafka sink and source can be measured."""
        return bool(self._jars)

    @property
    def has_jvm_avro(self) -> bool:
        """Whether Spark's own Kafka source can be measured with Spark's own functions for Avro."""
        return any(jar.name.startswith("spark-avro") for jar in self._jars)

    @cached_property
    def _jars(self) -> list[Path]:
        """The jars of Spark's own sink, source and functions: given ones, or those of the tests."""
        if self.jvm_jars is not None:
            return sorted(self.jvm_jars.glob("*.jar"))
        try:
            return [*kafka_source_jars(), *avro_jars()]
        except SparkSourceUnavailableError as error:
            progress(f"without Spark's own sink, source and Avro: {error}")
            return []

    @cached_property
    def kafka(self) -> KafkaCluster:
        """The broker of KAFKA_BOOTSTRAP_SERVERS, or a new one with Kafka's default heap.

        Its log is in memory if possible: new pages of a disk's cache cost more on virtual machines
        than all that is measured.
        """
        progress("starting Kafka")
        return given_kafka() or start_kafka(
            KAFKA_4,
            java_options=["-Xms1g", "-Xmx1g"],
            ways=(DockerNodes, partial(ProcessNodes, parent=memory_directory(), is_measured=True)),
        )

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
        return start_spark(self._jars)

    def restart_spark(self, settings: Mapping[str, str]) -> None:
        """Start a new session with these settings in place of the present one, if there is one."""
        started = vars(self)
        if "spark" in started:
            started.pop("spark").stop()
        progress(f"starting Spark with {settings}")
        started["spark"] = start_spark(self._jars, settings)


def memory_directory() -> Path | None:
    """Return a directory in memory with room for the logs of the broker, or None."""
    memory = Path("/dev/shm")  # noqa: S108  # directories of our own are made in it
    has_room = memory.is_dir() and shutil.disk_usage(memory).free >= _LEAST_MEMORY
    return memory if has_room else None


def processes_of(kafka: KafkaCluster) -> list[int]:
    """Return the process ids of brokers that were started here."""
    return [b.process_id for b in kafka.brokers if b.process_id is not None]


def check_count(kafka: KafkaCluster, topic: str, rows: int, *, most_markers: int = 0) -> None:
    """Raise RuntimeError unless all rows are in a topic; transaction markers take offsets too."""
    written = sum(kafka.end_offsets(topic).values())
    if not rows <= written <= rows + most_markers:
        raise RuntimeError(f"{topic} has {written} of {rows} rows")


def start_spark(
    jars: Sequence[Path] = (), settings: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """Start a local session with the given jars, and the sinks and the source of benchmarks."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # The workers import the sinks and the source of benchmarks.
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
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(CountingSink)
    session.dataSource.register(LeanSink)
    session.dataSource.register(GeneratedSource)
    return session
