"""Compare what our source reads with what Spark's own source reads, in the same session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

OURS, THEIRS = "pykafka", "kafka"
FORMATS = (OURS, THEIRS)
#: How many different rows an error shows.
_SHOWN = 10


class Sources:
    """Both sources, with the options that each reading has in common."""

    def __init__(self, spark: SparkSession, bootstrap_servers: str) -> None:
        """Use a session that has both formats."""
        self._spark = spark
        self._servers = {"kafka.bootstrap.servers": bootstrap_servers}

    def reader(self, source: str, **options: Any) -> DataFrameReader:
        """Return a reader of one source; in `options`, underscores stand for dots."""
        return self._spark.read.format(source).options(**self._servers, **dotted(options))

    def read(self, source: str, **options: Any) -> DataFrame:
        """Return a DataFrame of one source, see `reader`."""
        return self.reader(source, **options).load()

    def read_stream(self, source: str, **options: Any) -> DataFrame:
        """Return a stream of one source, see `reader`."""
        reader = self._spark.readStream.format(source)
        return reader.options(**self._servers, **dotted(options)).load()

    def check(self, **options: Any) -> int:
        """Check that both sources have the same schema and rows; return the number of rows."""
        ours, theirs = (self.read(source, **options) for source in FORMATS)
        return check_equal(ours, theirs)


def dotted(options: dict[str, Any]) -> dict[str, str]:
    """Return options with dots for underscores in their names."""
    return {name.replace("_", "."): str(value) for name, value in options.items()}


def check_equal(ours: DataFrame, theirs: DataFrame) -> int:
    """Check that two DataFrames have the same schema and rows; return the number of rows.

    The rows are compared as by `exceptAll` in both directions, but each side is read only once.
    """
    assert theirs.schema == ours.schema
    tagged = ours.selectExpr("*", "1 balance").unionAll(theirs.selectExpr("*", "-1 balance"))
    groups = tagged.groupBy(*ours.columns).agg({"balance": "sum", "*": "count"})
    balance, count = (f"`{name}`" for name in groups.columns[-2:])
    summary = groups.selectExpr(f"count_if({balance} <> 0)", f"coalesce(sum({count}), 0)").first()
    assert summary is not None
    different, rows = summary
    if different:
        # Positive: how often ours has the row more often than theirs.
        rows = groups.where(f"{balance} <> 0").limit(_SHOWN).collect()
        raise AssertionError(f"{different} rows differ, for example {rows}")
    return rows // 2
