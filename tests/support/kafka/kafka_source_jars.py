"""The jars of Spark's own Kafka source and sink, which PySpark does not include, from Maven.

They are those of Spark 4.2.0, which also run in PySpark 4.3: Maven's mirrors do not have them for
every version. Their contents are pinned, since they are what our source is compared with.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING

from tests.support.kafka.kafka_files import cache_directory, copy_with_maven
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, SparkSourceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SPARK_VERSION = "4.2.0"
#: The artifacts with the SHA-256 of their jars: the source, and what it needs besides Spark.
_ARTIFACTS = {
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}": (
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705"
    ),
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{SPARK_VERSION}": (
        "641c7947afc8aa1189e433b7c2d305293993c8691bc1c2062d6d4f513b12518c"
    ),
    "org.apache.kafka:kafka-clients:3.9.2": (
        "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8"
    ),
    "org.apache.commons:commons-pool2:2.13.1": (
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f"
    ),
}


@cache
def kafka_source_jars() -> list[Path]:
    """Return the jars of the format `kafka`; raises SparkSourceUnavailableError."""
    directory = cache_directory() / f"kafka-source-of-spark-{SPARK_VERSION}"
    if not directory.is_dir():
        try:
            copy_with_maven(list(_ARTIFACTS), directory, alone=True)
        except KafkaUnavailableError as error:
            raise SparkSourceUnavailableError(str(error)) from error
    return pinned_jars(directory, _ARTIFACTS)


def pinned_jars(directory: Path, artifacts: Mapping[str, str]) -> list[Path]:
    """Return the jars of artifacts in a directory; raises ValueError if one has other contents."""
    jars = []
    for artifact, expected in artifacts.items():
        _, name, version = artifact.split(":")
        jar = directory / f"{name}-{version}.jar"
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        if found != expected:
            raise ValueError(f"{jar} has the SHA-256 {found}, expected {expected}")
        jars.append(jar)
    return jars
