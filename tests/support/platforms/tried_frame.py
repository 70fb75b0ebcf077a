"""A DataFrame whose sample is written by the data source in this process."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import IntegerType, StructField, StructType

from spark_kafka_sink import KafkaSink
from spark_kafka_sink.spark.sink.dry_run import TASK_COLUMN
from tests.support.platforms.fake_frame import FakeSession
from tests.support.spark.micro_batches import task_context

if TYPE_CHECKING:
    from collections.abc import Sequence


def _travel(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 -- our own bytes


@dataclass
class TriedFrame:
    """What `KafkaSink.check` uses of a DataFrame whose tasks have these tables."""

    schema: StructType
    tables: Sequence[pa.Table]
    sparkSession: FakeSession = field(default_factory=FakeSession)  # noqa: N815 -- Spark's name
    isStreaming: bool = False  # noqa: N815 -- Spark's name
    #: The rows that each batch has at most.
    rows: int = 1_000

    def selectExpr(self, everything: str, task: str) -> TriedFrame:  # noqa: N802 -- Spark's name
        """Add the number of the task, as Spark does before the sample is taken."""
        assert ("*", f"spark_partition_id() AS {TASK_COLUMN}") == (everything, task)
        numbered = [
            table.append_column(TASK_COLUMN, pa.array([number] * table.num_rows, pa.int32()))
            for number, table in enumerate(self.tables)
        ]
        schema = StructType([*self.schema.fields, StructField(TASK_COLUMN, IntegerType())])
        return TriedFrame(schema, numbered, self.sparkSession, rows=self.rows)

    def limit(self, count: int) -> TriedFrame:
        """Put the first rows into one task, as Spark does."""
        whole = pa.concat_tables(self.tables).slice(0, count)
        return TriedFrame(self.schema, [whole], self.sparkSession, rows=self.rows)

    @property
    def write(self) -> _Writer:
        """Return a writer of this process."""
        return _Writer(self)


class _Writer:
    def __init__(self, frame: TriedFrame) -> None:
        self._frame = frame
        self._options: dict[str, str] = CaseInsensitiveDict()

    def format(self, name: str) -> _Writer:
        assert KafkaSink.name() == name
        return self

    def options(self, **given: object) -> _Writer:
        self._options.update({name: str(value) for name, value in given.items()})
        return self

    def mode(self, name: str) -> _Writer:
        assert name == "append"
        return self

    def save(self) -> None:
        sink = KafkaSink(self._options)
        planned = pickle.dumps(sink.writer(self._frame.schema, overwrite=False))
        messages = []
        for task, table in enumerate(self._frame.tables):
            with task_context(task, {}):
                writer = pickle.loads(planned)  # noqa: S301 -- our own bytes
                batches = iter(table.to_batches(self._frame.rows))
                messages.append(_travel(writer.write(batches)))
        pickle.loads(planned).commit(messages)  # noqa: S301 -- our own bytes
