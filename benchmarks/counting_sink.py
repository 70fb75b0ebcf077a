"""The upper bound for a sink in Python: an Arrow data source like ours that only counts rows.

For streams, its time is that of a micro-batch with a Python sink that does nothing.
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
    """The number of rows that a task received."""

    rows: int


class CountingWriter(DataSourceArrowWriter):
    """A writer that counts rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Count the rows of all batches of a task."""
        return Counted(sum(batch.num_rows for batch in iterator))


class CountingStreamWriter(DataSourceStreamArrowWriter):
    """A writer that counts the rows of micro-batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Count the rows of all batches of a task."""
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing."""


class CountingSink(DataSource):
    """The data source of `format("counting")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "counting"

    def writer(
        self,
        schema: StructType,  # noqa: ARG002  # Spark's signature
        overwrite: bool,  # noqa: ARG002, FBT001  # likewise
    ) -> CountingWriter:
        """Return a writer for rows of any schema."""
        return CountingWriter()

    def streamWriter(  # noqa: N802  # Spark's name
        self,
        schema: StructType,  # noqa: ARG002  # Spark's signature
        overwrite: bool,  # noqa: ARG002, FBT001  # likewise
    ) -> CountingStreamWriter:
        """Return a writer for micro-batches of any schema."""
        return CountingStreamWriter()
