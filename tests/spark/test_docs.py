"""The code blocks of README and the documentation that use Spark run as they stand."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from spark_kafka_sink.devbroker import DevBroker
from tests.support.documentation import ADDRESS, BLOCKS
from tests.support.kafka.readers import read_with_confluent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

#: The addresses and paths in the blocks, which readers replace by their own.
CHECKPOINT = "/path/of/the/checkpoint"
#: A block with these needs a cluster of the reader's own; tests/kafka has the same options.
FOREIGN = "broker.example"
PYTHON = [
    block
    for block in BLOCKS
    if block.language == "python" and block.needs_spark and not block.is_excerpt
]
RUNNABLE = [block for block in PYTHON if FOREIGN not in block.code]
ROWS = 100


@contextmanager
def names_for(spark: SparkSession, directory: Path) -> Iterator[dict[str, Any]]:
    """Provide the names that blocks use without defining them, and stop the queries they start."""
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


@pytest.mark.slow
@pytest.mark.parametrize("block", RUNNABLE, ids=lambda block: block.place)
def test_a_block_with_spark_runs_as_it_stands(block, spark, tmp_path):
    """The block runs with a session and a broker, and writes its rows if it writes any."""
    with DevBroker(topics={"events": 3}) as broker, names_for(spark, tmp_path) as names:
        code = block.code.replace(ADDRESS, broker.bootstrap_servers)
        code = code.replace(CHECKPOINT, str(tmp_path / "checkpoint")).replace(
            "1_000_000", f"{ROWS}"
        )

        exec(compile(code, block.place, "exec"), names)  # noqa: S102 - our own text
        if "query" in names:
            names["query"].processAllAvailable()

        writes = re.search(r"\.(save|start)\(\)", code) is not None
        assert (ROWS if writes else 0) == len(
            read_with_confluent(broker.bootstrap_servers, "events")
        )


@pytest.mark.parametrize(
    "block", [block for block in PYTHON if FOREIGN in block.code], ids=lambda block: block.place
)
def test_a_block_with_a_foreign_broker_is_valid_python(block):
    """The block cannot run here; it compiles."""
    compile(block.code, block.place, "exec")
