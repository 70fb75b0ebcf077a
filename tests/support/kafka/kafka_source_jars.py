"""Spark's own Kafka source, which is no part of PySpark: its jars, from Maven's repositories.

Not every mirror of Maven's has every version of it. Where PySpark's own cannot be had whole, there
is a set that was seen to work with PySpark 4.3: the source of Spark 4.2.0, and of Spark 4.0.0 the
jar that it takes Kafka's settings and tokens from. The clients are those that this source asks for.
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
    """Give the jars that the format `kafka` needs; raises SparkSourceUnavailableError."""
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
