"""The upper bound for a source in Python: an Arrow data source that yields one batch repeatedly.

Its rows have the columns of Kafka's, or those that a schema selects; with the option `orders`,
their values are structs. As a stream it makes as many rows in each micro-batch, so the time of a
micro-batch is that of Spark with a Python source.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from benchmarks.format_payloads import BATCH_ROWS, orders
from benchmarks.payloads import SPARK_ROW_BYTES, documents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)


@dataclass
class Rows(InputPartition):
    """The number of rows of a task."""

    count: int


class _Batches:
    """Reads of one batch again and again, without the columns that are not wanted."""

    def __init__(self, columns: list[str], options: dict[str, str]) -> None:
        self._columns = columns
        self._has_orders = options.get("orders") == "true"
        self._rows = int(options["rows"])
        self._partitions = int(options["partitions"])

    def _split(self) -> list[InputPartition]:
        each = self._rows // self._partitions
        return [Rows(each)] * self._partitions

    def read(self, partition: Rows) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        batch = _batch(has_orders=self._has_orders).select(self._columns)
        left = partition.count
        while left > 0:
            yield batch if left >= BATCH_ROWS else batch.slice(0, left)
            left -= BATCH_ROWS


class GeneratedReader(_Batches, DataSourceReader):
    """A reader of `rows` rows in total."""

    def partitions(self) -> list[InputPartition]:
        """Split the rows into tasks."""
        return self._split()


class GeneratedStreamReader(_Batches, DataSourceStreamReader):
    """A reader of `rows` rows in each micro-batch."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Return the beginning."""
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802, ARG002
        """Return the end of the next batch: there are always rows."""
        return {"batch": start["batch"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Split the rows of a micro-batch into tasks."""
        return self._split() if start != end else []

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing."""


class GeneratedSource(DataSource):
    """The data source of `format("generated")`; its options are `rows`, `partitions`, `orders`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "generated"

    def schema(self) -> str:
        """Return Kafka's columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> GeneratedReader:
        """Return a reader of the columns of a schema."""
        return GeneratedReader(schema.names, dict(self.options))

    def streamReader(self, schema: StructType) -> GeneratedStreamReader:  # noqa: N802  # likewise
        """Return a stream's reader of the columns of a schema."""
        return GeneratedStreamReader(schema.names, dict(self.options))


@cache
def _batch(*, has_orders: bool) -> pa.RecordBatch:
    values = (
        orders() if has_orders else pa.array(documents(BATCH_ROWS, SPARK_ROW_BYTES), pa.binary())
    )
    return pa.record_batch(
        {
            "key": pa.array([b"%08d" % (i * 7919) for i in range(BATCH_ROWS)], pa.binary()),
            "value": values,
            "topic": pa.array(["topic"] * BATCH_ROWS, pa.string()),
            "partition": pa.array([0] * BATCH_ROWS, pa.int32()),
            "offset": pa.array(range(BATCH_ROWS), pa.int64()),
            "timestamp": pa.array(range(BATCH_ROWS), pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * BATCH_ROWS, pa.int32()),
        }
    )
