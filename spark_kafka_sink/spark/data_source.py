"""`format("pykafka")`: the data source that Spark looks up and asks for a writer or a reader.

Everything that can be checked before a task runs is checked on the driver (`driver_checks`): for a
batch, when Spark requests its writer. Spark also requests a stream's writer before every commit and
abort, so that request only parses options and columns; the rest is checked when Spark pickles the
writer for the tasks. Readers are requested often, too: they check the cluster when Spark asks them
what to read.

Spark imports this module in every worker that looks up data sources, so it imports neither numba
nor pyarrow, the network code only when the cluster is queried, and what reads only for a read.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource

from spark_kafka_sink.errors import ConfigError, KafkaError
from spark_kafka_sink.spark.sink.driver_checks import (
    CheckedWrite,
    check_write,
    stream_options,
    warn_about_ignored_options,
)
from spark_kafka_sink.spark.sink.stream_writer import KafkaStreamWriter
from spark_kafka_sink.spark.sink.write_schema import write_schema
from spark_kafka_sink.spark.sink.writers import KafkaBatchWriter
from spark_kafka_sink.spark.worker_memory import freeze_imported_objects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from spark_kafka_sink.config.source_options import SourceOptions


class KafkaSink(DataSource):
    """The data source for Kafka, in both directions; Spark knows it as `format("pykafka")`.

    `schema` is that of the DataFrame that is written, or of the one that is read. A batch with
    `overwrite` is rejected, since rows can only be appended. `check` takes a DataFrame, `df`, and
    the options of the write, as a mapping, `options`, or as keywords, `more_options`.

    >>> options = {"kafka.bootstrap.servers": "localhost:9092", "autoCreateTopics": "true"}
    >>> KafkaSink.name()
    'pykafka'
    >>> KafkaSink.check(df, options, topic="orders").report_path is None
    True
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pykafka"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 -- Spark's signature
        """Check the whole write and return its writer.

        Raises ConfigError, SchemaError, NetworkError, KafkaTimeoutError or BrokerError.
        """
        if overwrite:
            raise ConfigError(
                "Kafka topics cannot be overwritten, only appended to: use mode('append')"
            )
        try:
            checked = check_write(schema, self.options, is_dry_run=False)
        except KafkaError as error:
            # Spark shows users the whole traceback; the message is the part they need.
            raise error.with_traceback(None) from None
        warn_about_ignored_options(checked.options)
        # This worker of the driver, too, serves later writes.
        freeze_imported_objects()
        return KafkaBatchWriter(
            checked.options, topic=checked.schema.topic, report_path=checked.report_path
        )

    def streamWriter(  # noqa: N802 -- Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002, FBT001 -- Spark's signature
    ) -> DataSourceStreamWriter:
        """Return a stream's writer, without side effects; `overwrite` means complete mode.

        In complete mode each micro-batch contains all rows of the result, and all are written: a
        consumer of the topic takes the last record of each key, as with Spark's own sink. Raises
        ConfigError or SchemaError.
        """
        try:
            options = stream_options(self.options)
            columns = write_schema(schema, options.topic)
        except KafkaError as error:
            raise error.with_traceback(None) from None
        return KafkaStreamWriter(options, topic=columns.topic)

    def schema(self) -> StructType:
        """Return the columns of a read whose user has not selected any.

        Raises ConfigError for an invalid `includeHeaders`; the reader checks the other options.
        """
        from spark_kafka_sink.config.source.source_table import SOURCE_OPTIONS_DEF
        from spark_kafka_sink.spark.source.columns import default_columns

        try:
            given = {"includeHeaders": self.options.get("includeHeaders", "false")}
            return default_columns(
                include_headers=SOURCE_OPTIONS_DEF.parse(given)["includeHeaders"]
            )
        except KafkaError as error:
            raise error.with_traceback(None) from None

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch's reader, which checks the cluster when Spark asks for its partitions.

        Raises ConfigError or SchemaError.
        """
        from spark_kafka_sink.config.source_options import SourceOptions
        from spark_kafka_sink.spark.source.columns import check_columns
        from spark_kafka_sink.spark.source.reader import KafkaBatchReader

        try:
            check_columns(schema)
            return KafkaBatchReader(
                SourceOptions.from_mapping(self.options, is_stream=False), schema
            )
        except KafkaError as error:
            raise error.with_traceback(None) from None

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 -- Spark's name
        """Return a stream's reader, which checks the cluster when Spark asks where it starts.

        With invalid options or columns, that question is where it raises ConfigError or
        SchemaError.
        """
        from spark_kafka_sink.config.source_options import SourceOptions
        from spark_kafka_sink.spark.source.columns import check_columns
        from spark_kafka_sink.spark.source.refused_stream import RefusedStreamReader

        try:
            check_columns(schema)
            options = SourceOptions.from_mapping(self.options, is_stream=True)
            return _stream_reader(options, schema)
        except KafkaError as error:
            return RefusedStreamReader(error)

    @classmethod
    def check(
        cls, df: DataFrame, options: Mapping[str, object] | None = None, **more_options: object
    ) -> CheckedWrite:
        """Check a write as `df.write.format("pykafka").options(...).save()` would.

        This runs no job and changes nothing in the cluster: with autoCreateTopics=true a missing
        topic passes the check and is not created.

        Pass options as keyword arguments, `topic="events"`; pass those with dots in a mapping,
        `{"kafka.bootstrap.servers": "localhost:9092"}`, or unpack it with `**`. Raises ConfigError,
        SchemaError, NetworkError, KafkaTimeoutError or BrokerError, like `writer`.

        The cluster is queried and `reportPath` is checked from the calling process: under Spark
        Connect that is the client, not the driver.
        """
        return check_write(df.schema, {**(options or {}), **more_options}, is_dry_run=True)


#: The same class, by the name for reading.
KafkaSource = KafkaSink


def _stream_reader(options: SourceOptions, schema: StructType) -> DataSourceStreamReader:
    """Return the reader that this PySpark can call; only 4.2 and later have limits."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        from spark_kafka_sink.spark.source.stream_reader import KafkaStreamReader41, check_no_limits

        check_no_limits(options, pyspark.__version__)
        return KafkaStreamReader41(options, schema)
    from spark_kafka_sink.spark.source.limited_stream_reader import KafkaLimitedStreamReader

    return KafkaLimitedStreamReader(options, schema)
