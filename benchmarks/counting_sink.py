"""The hand-off ceiling: an Arrow data source that takes batches as ours does, and only counts.

Streams, too: what it takes is what a micro-batch costs with a sink in Python that does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Counted(WriterCommitMessage):
    """How many rows a task was handed."""

    rows: int


class CountingWriter(DataSourceArrowWriter):
    """Counts rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Take all batches of a task."""
        return Counted(sum(batch.num_rows for batch in iterator))


class CountingStreamWriter(DataSourceStreamArrowWriter):
    """Counts the rows of micro-batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Take all batches of a task."""
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing."""


class CountingSink(DataSource):
    """`format("counting")`."""

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return "counting"

    def writer(
        self,
        schema: StructType,  # noqa: ARG002  # Spark's signature
        overwrite: bool,  # noqa: ARG002, FBT001  # likewise
    ) -> CountingWriter:
        """Give a writer for any rows."""
        return CountingWriter()

    def streamWriter(  # noqa: N802  # Spark's name
        self,
        schema: StructType,  # noqa: ARG002  # Spark's signature
        overwrite: bool,  # noqa: ARG002, FBT001  # likewise
    ) -> CountingStreamWriter:
        """Give a writer for the micro-batches of any rows."""
        return CountingStreamWriter()
