"""The sink's reports of micro-batches, from the session: the driver keeps the last of each query.

Each question is a look-up of the data source on the driver's machine, which runs no job. It is
asked in the thread that calls the listener, so no micro-batch waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.spark.report_store import ask, request
from spark_kafka_sink.spark.sink.write_report import WriteReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession


class SessionReports:
    """The reports that `spark`, the session of the queries, keeps for `KafkaSink.last_reports`.

    It has those of all queries of the session, in classic Spark and under Spark Connect, and needs
    no file. A session that has stopped has none, so the reports of the last micro-batches are lost
    if it stops before the listener has asked for them.

    >>> listener = KafkaStreamListener(JsonLogExporter(), reports=SessionReports(spark))
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __call__(self, query_id: str, batch_id: int) -> Mapping[str, Any] | None:
        """Return the report of the micro-batch `batch_id` of the query `query_id`, or None.

        It is None for a query that does not write by this sink. Raises PySparkException if the
        session cannot be asked.
        """
        request_json = request(query_id, limit=1, report_id=None, batch_id=batch_id)
        for record in ask(self._spark, request_json):
            # A driver with an older version of this package returns its newest report.
            if record["batch_id"] == batch_id:
                report = WriteReport.from_record(record)
                replayed = {"replayed": True} if report.replayed else {}
                return {"query_id": query_id, "batch_id": batch_id, **report.as_dict(), **replayed}
        return None
