"""The reader of a stream that cannot run, because of its options or columns.

PySpark hides an error that is raised while it creates a stream's reader behind one of its own
(`UnboundLocalError`), so this reader raises the error when Spark asks it where to read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader

from spark_kafka_sink.spark.user_errors import for_user

if TYPE_CHECKING:
    from spark_kafka_sink.errors import KafkaError


class RefusedStreamReader(DataSourceStreamReader):
    """A reader whose methods raise one error."""

    def __init__(self, error: KafkaError) -> None:
        self.error = error

    def initialOffset(self) -> NoReturn:  # noqa: N802 -- Spark's name
        """Raise the error."""
        raise for_user(self.error) from self.error.__cause__

    def latestOffset(self, *_: object) -> NoReturn:  # noqa: N802
        """Raise the error, with whatever arguments this PySpark calls it."""
        raise for_user(self.error) from self.error.__cause__

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> NoReturn:  # noqa: ARG002
        """Raise the error: a restarted query may have a batch to replay."""
        raise for_user(self.error) from self.error.__cause__

    def read(self, partition: object) -> NoReturn:  # noqa: ARG002
        """Raise the error."""
        raise for_user(self.error) from self.error.__cause__
