"""The least that a sink in Python costs: our compiled kernel and codecs, and a blocking socket.

See `lean_write` for what it leaves out. That is a module of its own because Spark imports this one
on the driver too, which does not need the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from spark_kafka_sink.spark.worker import preparing_writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Sent(WriterCommitMessage):
    """The number of rows that a task has sent, all of them acknowledged."""

    rows: int


@dataclass(frozen=True)
class LeanWriter(DataSourceArrowWriter):
    """A writer of rows with keys to a topic whose partitions are all led by one broker."""

    #: The address of that broker, host:port.
    server: str
    topic: str
    #: The number of the topic's partitions.
    partitions: int
    #: One of `lean_write.BLOCK_BYTES`.
    codec: str

    def write(  # type: ignore[override]  # as PySpark's own DataSourceArrowWriter.write
        self, iterator: Iterator[pa.RecordBatch]
    ) -> Sent:
        """Send the rows of all batches of a task; raises RuntimeError if the broker refuses any."""
        with preparing_writer():  # as in our sink
            from benchmarks.lean_write import write_rows  # noqa: PLC0415  # loads the kernels
        rows = write_rows(
            iterator,
            server=self.server,
            topic=self.topic,
            partitions=self.partitions,
            codec=self.codec,
        )
        return Sent(rows)


class LeanSink(DataSource):
    """The data source of `format("lean")`; its options are our sink's, and `partitions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "lean"

    def writer(
        self,
        schema: StructType,  # noqa: ARG002  # Spark's signature
        overwrite: bool,  # noqa: ARG002, FBT001  # likewise
    ) -> LeanWriter:
        """Return a writer to the topic in the options, by the first of the servers."""
        return LeanWriter(
            server=self.options["kafka.bootstrap.servers"].partition(",")[0],
            topic=self.options["topic"],
            partitions=int(self.options["partitions"]),
            codec=self.options["kafka.compression.type"],
        )
