"""`format("pykafka")`: what Spark finds, and asks for a writer.

Everything that can be known before a task runs is found out on the driver (`driver_checks`): for a
batch when Spark asks for its writer. A stream's writer is asked for before every commit and abort,
too, so asking for one only reads options and columns; the rest is checked when Spark pickles it for
the tasks.

Spark imports this module in every worker that looks for data sources: it loads neither numba nor
pyarrow, and the network only when the cluster is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

from spark_kafka_sink.errors import ConfigError, KafkaError
from spark_kafka_sink.spark.driver_checks import (
    CheckedWrite,
    check_write,
    stream_options,
    warn_of_ignored,
)
from spark_kafka_sink.spark.stream_writer import KafkaStreamWriter
from spark_kafka_sink.spark.write_schema import write_schema
from spark_kafka_sink.spark.writers import KafkaBatchWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class KafkaSink(DataSource):
    """Writes DataFrames to Kafka; found by Spark as `format("pykafka")`.

    `schema` is the DataFrame's, and `overwrite` is true for modes that cannot be: rows are appended
    only. `check` takes a DataFrame, `df`, and `options` of the write by name; all others,
    `more_options`, as keywords.

    >>> options = {"kafka.bootstrap.servers": "localhost:9092", "autoCreateTopics": "true"}
    >>> KafkaSink.name()
    'pykafka'
    >>> KafkaSink.check(df, options, topic="orders").report_path is None
    True
    """

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return "pykafka"

    def writer(self, schema: StructType, overwrite: bool) -> KafkaBatchWriter:  # noqa: FBT001 -- Spark's signature
        """Check the whole write and make its writer.

        Raises ConfigError, SchemaError, NetworkError, KafkaTimeoutError or BrokerError.
        """
        if overwrite:
            raise ConfigError(
                "Kafka topics cannot be overwritten, only appended to: use mode('append')"
            )
        try:
            checked = check_write(schema, self.options, is_dry_run=False)
        except KafkaError as error:
            # Spark shows the user a whole traceback; the sentence is what they need of it.
            raise error.with_traceback(None) from None
        warn_of_ignored(checked.options)
        return KafkaBatchWriter(
            checked.options, topic=checked.schema.topic, report_path=checked.report_path
        )

    def streamWriter(  # noqa: N802 -- Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002, FBT001 -- Spark's signature
    ) -> KafkaStreamWriter:
        """Make a stream's writer, with no effect on anything; `overwrite` is complete mode.

        In complete mode each micro-batch has all rows of the result, and all are written: who reads
        the topic takes the last record of a key, as with Spark's own sink. Raises ConfigError or
        SchemaError.
        """
        try:
            options = stream_options(self.options)
            columns = write_schema(schema, options.topic)
        except KafkaError as error:
            raise error.with_traceback(None) from None
        return KafkaStreamWriter(options, topic=columns.topic)

    def schema(self) -> NoReturn:
        """Refuse to read, in words."""
        raise ConfigError("pykafka only writes; read from Kafka by Spark's own format('kafka')")

    @classmethod
    def check(
        cls, df: DataFrame, options: Mapping[str, object] | None = None, **more_options: object
    ) -> CheckedWrite:
        """Check a write as `df.write.format("pykafka").options(...).save()` would.

        Runs no job and changes nothing in the cluster: with autoCreateTopics=true a missing topic
        passes, and is not created.

        Options go by their names, `topic="events"`; those with dots in a mapping,
        `{"kafka.bootstrap.servers": "localhost:9092"}` or `**` of it. Raises what `writer` raises.

        The cluster is asked, and `reportPath` looked at, from where this is called: under Spark
        Connect that is the client, not the driver.
        """
        return check_write(df.schema, {**(options or {}), **more_options}, is_dry_run=True)
