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

import logging
import uuid
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import DataFrame, SparkSession, datasource
from pyspark.sql.datasource import DataSource

from spark_kafka_sink.errors import ConfigError, KafkaError
from spark_kafka_sink.spark.report_store import (
    ANSWER,
    FORMAT,
    KEPT,
    REQUEST_OPTION,
    ReportStore,
    ask,
    request,
)
from spark_kafka_sink.spark.sink.driver_checks import (
    CheckedWrite,
    check_lineage,
    check_write,
    stream_options,
    warn_about_ignored_options,
)
from spark_kafka_sink.spark.sink.dry_run import (
    DRY_RUN_OPTION,
    TASK_COLUMN,
    check_destination,
    check_sample,
    parse_request,
    result_schema,
    try_rows,
)
from spark_kafka_sink.spark.sink.write_schema import write_schema
from spark_kafka_sink.spark.sink.writers import KafkaBatchWriter
from spark_kafka_sink.spark.user_errors import for_user
from spark_kafka_sink.spark.worker import freeze_imported_objects
from spark_kafka_sink.spark.worker_python import REQUEST_OPTION as PYTHON_REQUEST
from spark_kafka_sink.spark.worker_python import compare_python, python_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from spark_kafka_sink.config.format_options import Side
    from spark_kafka_sink.config.source_options import SourceOptions
    from spark_kafka_sink.formats.payload_schemas import PayloadSchema
    from spark_kafka_sink.spark.sink.write_report import WriteReport

logger = logging.getLogger(__name__)


class KafkaSink(DataSource):
    """Spark's `format("pykafka")`, which writes DataFrames to Kafka and reads topics.

    >>> from pyspark.sql import SparkSession
    >>> spark = SparkSession.builder.getOrCreate()
    >>> servers = {"kafka.bootstrap.servers": "localhost:9092"}
    >>> df = spark.createDataFrame([("alice", "a book")], "key string, value string")
    >>> writer = df.write.format("pykafka").mode("append")
    >>> writer.options(**servers, topic="orders", report="none").save()
    >>> rows = spark.read.format("pykafka").options(**servers, subscribe="orders").load()
    >>> rows.selectExpr("cast(value as string)", "offset").collect()
    [Row(value='a book', offset=0)]

    Streams use `df.writeStream` and `spark.readStream` with the same options. This class is only
    needed to check a write before it runs, to get reports, or for `spark.dataSource.register`.

    Columns of a write; others are ignored:

    - `value` (string or binary) and `key` (optional)
    - `topic` (string), unless the option names one for all rows
    - `partition` (int), `headers` (array of structs of `key` and `value`), `timestamp` (all
      optional)

    Columns of a read: `key` and `value` (both binary), `topic`, `partition`, `offset`, `timestamp`,
    `timestampType`, and `headers` with includeHeaders=true.

    The main options, with their defaults:

    - `kafka.bootstrap.servers` (required): the brokers' addresses, host:port, separated by commas
    - `topic`: where to write
    - `subscribe`: the topics to read, separated by commas; or `subscribePattern` or `assign`
    - `startingOffsets`, `endingOffsets`: which offsets to read
    - `deliveryGuarantee` (`at_least_once`): or `exactly_once`, with `transactionalIdPrefix`, and
      for a batch `writeId`
    - `autoCreateTopics` (`false`): whether brokers may create a missing topic
    - `kafka.compression.type` (`lz4`): none, gzip, snappy, lz4 or zstd
    - `kafka.security.protocol` (`PLAINTEXT`), `kafka.sasl.mechanism`, `kafka.sasl.jaas.config`,
      `kafka.ssl.truststore.location`: encryption and login
    - `checkpointLocation`: for a stream, required by Spark

    `python -m spark_kafka_sink.config.options_table` prints all options.

    In the calls of Spark, `schema` is that of the DataFrame. `overwrite` is rejected in a batch, as
    rows can only be appended, and means complete mode in a stream.
    """

    #: The schemas of keys and values that have a format, once Spark has asked for the columns.
    _schemas: Mapping[Side, PayloadSchema] | None = None

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Spark creates this object once for each query, and copies it for each micro-batch.
        self._token = uuid.uuid4().hex

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 -- Spark's signature
        """Return the writer of a batch (Spark calls this).

        Raises ConfigError, SchemaError, NetworkError, KafkaTimeoutError or BrokerError.
        """
        if overwrite:
            refused = "Kafka topics cannot be overwritten, only appended to: use mode('append')"
            raise for_user(ConfigError(refused))
        if DRY_RUN_OPTION in self.options:
            return self._dry_run_writer(schema)
        try:
            checked = check_write(schema, self.options, is_dry_run=False)
        except KafkaError as error:
            raise for_user(error) from error.__cause__
        warn_about_ignored_options(checked.options)
        # This worker of the driver, too, serves later writes.
        freeze_imported_objects()
        return KafkaBatchWriter(
            # Tasks ask no registry, and need not know its secrets.
            replace(checked.options, registry=None),
            topic=checked.schema.topic,
            report_path=checked.report_path,
            schemas=checked.payload_schemas,
            columns=schema,
        )

    def _dry_run_writer(self, schema: StructType) -> DataSourceWriter:
        """Return the writer of a dry run; raises what that of the write does."""
        from pyspark.sql.types import StructType

        from spark_kafka_sink.spark.sink.dry_run_writer import DryRunWriter

        name, sample = parse_request(self.options[DRY_RUN_OPTION])
        given = {
            option: value
            for option, value in self.options.items()
            if option.lower() != DRY_RUN_OPTION.lower()
        }
        columns = StructType([field for field in schema.fields if field.name != TASK_COLUMN])
        try:
            checked = check_write(columns, given, is_dry_run=True)
        except KafkaError as error:
            raise for_user(error) from error.__cause__
        return DryRunWriter(
            replace(checked.options, registry=None),
            topic=checked.schema.topic,
            schemas=checked.payload_schemas,
            name=name,
            sample=sample,
        )

    def streamWriter(  # noqa: N802 -- Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002, FBT001 -- Spark's signature
    ) -> DataSourceStreamWriter:
        """Return the writer of a stream (Spark calls this); raises ConfigError or SchemaError."""
        # `overwrite` means complete mode: each micro-batch contains all rows of the result, and
        # all are written. A consumer of the topic takes the last record of each key, as with
        # Spark's own sink.
        try:
            _check_streams()
            from spark_kafka_sink.spark.sink.stream_writer import KafkaStreamWriter

            options = stream_options(self.options)
            columns = write_schema(schema, options.topic, options.formats)
        except KafkaError as error:
            raise for_user(error) from error.__cause__
        return KafkaStreamWriter(options, topic=columns.topic, columns=schema, token=self._token)

    def schema(self) -> StructType:
        """Return the columns of a read without a schema (Spark calls this); raises ConfigError."""
        from spark_kafka_sink.config.source_options import read_formats
        from spark_kafka_sink.spark.source.columns import default_columns

        request_json = self.options.get(REQUEST_OPTION)
        if request_json is not None:
            return _report_schema(request_json)
        if PYTHON_REQUEST in self.options:
            return python_schema()
        if DRY_RUN_OPTION in self.options:
            return result_schema(self.options[DRY_RUN_OPTION])

        try:
            read = read_formats(self.options)
            typed = {}
            if read.formats.sides:
                from spark_kafka_sink.spark.source.payload_reads import resolved, spark_types

                # Spark passes this object on to where it asks for the reader.
                self._schemas = resolved(self.options, read.formats, read.registry)
                typed = spark_types(self._schemas)
            return default_columns(
                include_headers=read.include_headers,
                typed=typed,
                with_errors=read.formats.has_error_columns,
            )
        except KafkaError as error:
            raise for_user(error) from error.__cause__

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch (Spark calls this).

        Raises ConfigError, SchemaError, or for a key or value with a format SchemaRegistryError.
        """
        from spark_kafka_sink.config.source_options import SourceOptions
        from spark_kafka_sink.spark.source.reader import KafkaBatchReader

        try:
            options = SourceOptions.from_mapping(self.options, is_stream=False)
            check_lineage(options.lineage)
            return KafkaBatchReader(options, schema, self._checked_schemas(options, schema))
        except KafkaError as error:
            raise for_user(error) from error.__cause__

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 -- Spark's name
        """Return the reader of a stream (Spark calls this).

        It raises ConfigError, SchemaError or SchemaRegistryError when Spark asks it where the
        stream starts.
        """
        from spark_kafka_sink.config.source_options import SourceOptions
        from spark_kafka_sink.spark.source.stream_reader import RefusedStreamReader

        try:
            _check_streams()
            options = SourceOptions.from_mapping(self.options, is_stream=True)
            check_lineage(options.lineage)
            return _stream_reader(options, schema, self._checked_schemas(options, schema))
        except KafkaError as error:
            return RefusedStreamReader(error)

    def _checked_schemas(
        self, options: SourceOptions, schema: StructType
    ) -> Mapping[Side, PayloadSchema]:
        """Check the columns of a read; return the schemas of keys and values with a format."""
        from spark_kafka_sink.spark.source.columns import check_columns

        formats = options.formats
        typed = [side.side for side in formats.sides]
        check_columns(schema, typed, with_errors=formats.has_error_columns)
        if not typed:
            return {}
        from spark_kafka_sink.spark.source.payload_reads import check_types, resolved_again

        # Spark has not asked for the schema if the user has given one.
        schemas = self._schemas or resolved_again(self.options, formats, options.registry, schema)
        check_types(schema, schemas)
        return schemas

    @classmethod
    def check(
        cls,
        df: DataFrame,
        options: Mapping[str, object] | None = None,
        *,
        sample: int | None = None,
        **more_options: object,
    ) -> CheckedWrite:
        """Check the options, columns and topic of a write of `df` without writing.

        Options are those of the write, as a mapping or as keywords (`more_options`). Nothing
        changes in the cluster: with autoCreateTopics=true a missing topic is accepted and not
        created. The calling process queries the cluster: under Spark Connect, the client.

        No job runs, unless `sample` is a number of rows: then a job encodes the rows of
        `df.limit(sample)` as the write would, and sends none. The result's `dry_run` has their
        sizes, how they spread over partitions, and which of them cannot be written.

        Spark is asked which Python it starts on the driver's machine: if that has another
        version, or another version of the package, the result and the log have a warning.

        Raises ConfigError, also if that Python cannot import the package, SchemaError,
        NetworkError, KafkaTimeoutError or BrokerError; with `sample` also what the job raises, and
        KafkaError if its result is gone.
        """
        given = {**(options or {}), **more_options}
        try:
            rows = None if sample is None else check_sample(df, sample)
            checked = check_write(df.schema, given, is_dry_run=True)
            if rows is not None:
                check_destination(checked.schema.topic, checked.partitions)
            warning = compare_python(df.sparkSession, cls.name())
        except KafkaError as error:
            raise for_user(error) from error.__cause__
        if warning is not None:
            logger.warning("Kafka: %s", warning)
        found = None if rows is None else try_rows(df, given, rows)
        return replace(checked, warning=warning, dry_run=found)

    @classmethod
    def last_report(
        cls,
        spark: SparkSession | None = None,
        *,
        query: StreamingQuery | str | None = None,
        report_id: str | None = None,
    ) -> WriteReport | None:
        """Return the report of the write that finished last, or None if there is none.

        Without `query`, that is the last batch write of this Spark application, in any thread or
        session; under Spark Connect, of this session. With `report_id`, only writes with that
        option `reportId` count. With `query`, a streaming query or its id, it is the last
        micro-batch of that query.

        `spark` is the active session by default. The driver keeps the last 50 reports of batches
        and of each query while the application runs.
        """
        reports = cls.last_reports(spark, limit=1, query=query, report_id=report_id)
        return reports[0] if reports else None

    @classmethod
    def last_reports(
        cls,
        spark: SparkSession | None = None,
        *,
        limit: int = KEPT,
        query: StreamingQuery | str | None = None,
        report_id: str | None = None,
    ) -> list[WriteReport]:
        """Return the last `limit` reports, oldest first.

        `spark`, `query` and `report_id` are those of `last_report`.
        """
        from pyspark.sql import SparkSession

        from spark_kafka_sink.spark.sink.write_report import WriteReport

        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        query_id = getattr(query, "id", query)
        if query_id is not None:
            query_id = _query_id(query_id)
        session = SparkSession.active() if spark is None else spark
        request_json = request(query_id, limit=limit, report_id=report_id)
        return [WriteReport.from_record(record) for record in ask(session, request_json)]


#: The same class, by the name for reading.
KafkaSource = KafkaSink


def _check_streams() -> None:
    """Raise ConfigError in PySpark 4.0, in which a stream's rows cannot be written as Arrow."""
    if not hasattr(datasource, "DataSourceStreamArrowWriter"):
        raise ConfigError(
            "streams need PySpark 4.1 or newer, and this is PySpark "
            f"{pyspark.__version__}: upgrade it, or use batches (spark.read and df.write)"
        )


def _query_id(query: object) -> str:
    try:
        return str(uuid.UUID(str(query)))
    except ValueError:
        raise ValueError(
            f"query must be a streaming query or its id, not {query!r}: a name is not enough"
        ) from None


def _report_schema(request_json: str) -> StructType:
    """Return the answer to a request for reports (on the driver)."""
    from pyspark.sql.types import StringType, StructField, StructType

    store = ReportStore.of_driver()
    answer = "[]" if store is None else store.answer(request_json)
    return StructType([StructField(ANSWER, StringType(), nullable=True, metadata={ANSWER: answer})])


def _stream_reader(
    options: SourceOptions, schema: StructType, schemas: Mapping[Side, PayloadSchema]
) -> DataSourceStreamReader:
    """Return the reader that this PySpark can call; only 4.2 and later have limits."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        from spark_kafka_sink.spark.source.stream_reader import KafkaStreamReader41, check_no_limits

        check_no_limits(options, pyspark.__version__)
        return KafkaStreamReader41(options, schema, schemas)
    from spark_kafka_sink.spark.source.limited_stream_reader import KafkaLimitedStreamReader

    return KafkaLimitedStreamReader(options, schema, schemas)
