"""The jars of Spark's own Kafka source and sink, and of its functions for Avro, from Maven.

PySpark does not include them. They are those of Spark 4.2.0, which also run in PySpark 4.3: Maven's
mirrors do not have them for every version.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tests.support.kafka.kafka_files import cache_directory, copy_with_maven
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, SparkSourceUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

SPARK_VERSION = "4.2.0"
#: The source, and what it needs besides Spark.
_ARTIFACTS = [
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{SPARK_VERSION}",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
]


#: `from_avro` and `to_avro`.
_AVRO = f"org.apache.spark:spark-avro_2.13:{SPARK_VERSION}"


@cache
def kafka_source_jars() -> list[Path]:
    """Return the jars of the format `kafka`; raises SparkSourceUnavailableError."""
    return _jars(_ARTIFACTS, "kafka-source")


@cache
def avro_jars() -> list[Path]:
    """Return the jar of Spark's functions for Avro; raises SparkSourceUnavailableError."""
    return _jars([_AVRO], "avro")


def _jars(artifacts: list[str], name: str) -> list[Path]:
    directory = cache_directory() / f"{name}-of-spark-{SPARK_VERSION}"
    if not directory.is_dir():
        try:
            copy_with_maven(artifacts, directory, alone=True)
        except KafkaUnavailableError as error:
            raise SparkSourceUnavailableError(str(error)) from error
    return sorted(directory.iterdir())
