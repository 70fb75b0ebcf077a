"""The jars of Spark's own Kafka source, which PySpark does not include, from Maven repositories.

Not every mirror of Maven has every version. If PySpark's own version is not available in full,
there is a fallback that is known to work with PySpark 4.3: the source of Spark 4.2.0, with the jar
for Kafka's settings and tokens of Spark 4.0.0. The Kafka clients are those that this source
requires.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pyspark

from tests.support.kafka.kafka_files import cache_directory, copy_with_maven
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, SparkSourceUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

_SOURCE = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_NEAREST = [
    f"{_SOURCE}:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
]


@cache
def kafka_source_jars() -> list[Path]:
    """Return the jars of the format `kafka`; raises SparkSourceUnavailableError."""
    directory = cache_directory() / f"source-of-spark-{pyspark.__version__}"
    if not directory.is_dir():
        try:
            copy_with_maven([f"{_SOURCE}:{pyspark.__version__}"], directory)
        except KafkaUnavailableError:
            try:
                copy_with_maven(_NEAREST, directory, alone=True)
            except KafkaUnavailableError as error:
                raise SparkSourceUnavailableError(str(error)) from error
    return sorted(directory.glob("*.jar"))
