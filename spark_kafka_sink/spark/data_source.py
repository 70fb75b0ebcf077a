"""`format("pykafka")`: what Spark finds, and asks for a writer.

Everything that can be known before a task runs is found out here, cheapest first: the save mode,
the options, the columns, the place of the report, and at last the cluster (does it answer, is the
topic there, may we write to it). Nothing is created or written on the way, but for a topic that
brokers create when it is asked for (auto.create.topics.enable), as they do for Java's producer.

Spark imports this module in every worker that looks for data sources: it loads neither numba nor
pyarrow, and the network only when the cluster is asked.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import BrokerError, ConfigError, KafkaError
from spark_kafka_sink.spark.write_report import resolve_report_path
from spark_kafka_sink.spark.write_schema import WriteSchema, write_schema
from spark_kafka_sink.spark.writers import KafkaBatchWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

#: Kafka's code for a topic that one may see but not write to.
_TOPIC_AUTHORIZATION_FAILED = 29


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedWrite:
    """A write that nothing on the driver speaks against."""

    options: SinkOptions
    schema: WriteSchema
    #: Absolute; None where no report is wanted.
    report_path: str | None
    #: How many partitions the topic has; None where a column names the topics.
    partitions: int | None


class KafkaSink(DataSource):
    """Writes DataFrames to Kafka; found by Spark as `format("pykafka")`."""

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
            checked = _check(schema, self.options)
        except KafkaError as error:
            # Spark shows the user a whole traceback; the sentence is what they need of it.
            raise error.with_traceback(None) from None
        if checked.options.ignored:
            logger.warning(
                "these options are for reading from Kafka and change nothing here: %s",
                ", ".join(checked.options.ignored),
            )
        return KafkaBatchWriter(
            checked.options.producer, topic=checked.schema.topic, report_path=checked.report_path
        )

    def streamWriter(  # noqa: N802 -- Spark's name
        self,
        schema: StructType,  # noqa: ARG002 -- Spark's signature
        overwrite: bool,  # noqa: ARG002, FBT001 -- likewise
    ) -> NoReturn:
        """Refuse to write a stream, in words."""
        raise ConfigError(
            "pykafka does not write streams yet; write each micro-batch in foreachBatch by "
            "df.write.format('pykafka').mode('append')"
        )

    def schema(self) -> NoReturn:
        """Refuse to read, in words."""
        raise ConfigError("pykafka only writes; read from Kafka by Spark's own format('kafka')")

    @classmethod
    def check(
        cls, df: DataFrame, options: Mapping[str, object] | None = None, **more_options: object
    ) -> CheckedWrite:
        """Check a write as `df.write.format("pykafka").options(...).save()` would, and run no job.

        Options go by their names, `topic="events"`; those with dots in a mapping,
        `{"kafka.bootstrap.servers": "localhost:9092"}` or `**` of it. Raises what `writer` raises.

        The cluster is asked, and `reportPath` looked at, from where this is called: under Spark
        Connect that is the client, not the driver.
        """
        return _check(df.schema, {**(options or {}), **more_options})


def _check(schema: StructType, given: Mapping[str, object]) -> CheckedWrite:
    options = SinkOptions.from_mapping(given)
    columns = write_schema(schema, options.topic)
    report_path = None if options.report_path is None else resolve_report_path(options.report_path)
    return CheckedWrite(
        options=options,
        schema=columns,
        report_path=report_path,
        partitions=_check_cluster(options, columns.topic),
    )


def _check_cluster(options: SinkOptions, topic: str | None) -> int | None:
    """Ask for the topic, or just for an answer when the topics stand in a column."""
    from spark_kafka_sink.admin.cluster_check import describe_topics

    described = describe_topics(options.producer, [] if topic is None else [topic])
    if topic is None:
        return None
    if described[topic].can_write is False:
        raise BrokerError(
            f"topic {topic!r}: this client has no right to write to it; ask for the operation "
            "WRITE on the topic",
            code=_TOPIC_AUTHORIZATION_FAILED,
            name="TOPIC_AUTHORIZATION_FAILED",
        )
    return described[topic].partitions
