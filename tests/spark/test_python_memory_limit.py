"""Writes under spark.executor.pyspark.memory, which limits the address space of each worker."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="Spark sets the limit on Linux only"),
]

ROOT = Path(__file__).parents[2]
ROWS = 300_000
WORKER_BYTES = 1 << 30
#: Runs in its own session, since the limit applies to the application; two tasks share the limit.
PROGRAM = """
    import resource, sys
    from pyspark.sql import SparkSession

    servers, topic, rows, *codecs = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.executor.pyspark.memory", "2g")
        .config("spark.executor.cores", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    limits = spark.sparkContext.parallelize(range(2), 2).mapPartitions(
        lambda _: [resource.getrlimit(resource.RLIMIT_AS)[0]]
    )
    print("limits:", *limits.collect())
    for codec in codecs:
        (
            spark.range(int(rows), numPartitions=2)
            .selectExpr("cast(id as string) key", "concat(repeat('x', 100), id) value")
            .write.format("pykafka").mode("append")
            .option("kafka.bootstrap.servers", servers)
            .option("kafka.compression.type", codec)
            .option("topic", topic)
            .save()
        )
"""


@pytest.mark.parametrize(
    "codecs", [("zstd",), pytest.param(("none", "lz4"), marks=pytest.mark.soak)]
)
def test_a_write_needs_at_most_a_gibibyte_per_worker(topics, codecs, monkeypatch):
    """Each codec works in workers limited to 1 GiB, including their libraries and threads."""
    # As users start it: the workers compile Spark's zip of PySpark, which takes memory, too.
    monkeypatch.delenv("SPARK_HOME", raising=False)
    topic = topics.create(4)
    done = subprocess.run(  # noqa: S603  # our own program
        [
            *(sys.executable, "-c", textwrap.dedent(PROGRAM)),
            *(topics.broker.bootstrap_servers, topic, str(ROWS), *codecs),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert 0 == done.returncode, done.stdout[-2000:] + done.stderr[-4000:]
    assert f"limits: {WORKER_BYTES} {WORKER_BYTES}" in done.stdout
    written = topics.broker.call(
        lambda broker: sum(
            partition.log.log_end_offset for partition in broker.cluster.topic(topic).partitions
        )
    )
    assert len(codecs) * ROWS == written
