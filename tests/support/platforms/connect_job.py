"""A client of Spark Connect that writes to Kafka, reads, and prints each step's answer as JSON.

It is a program of its own: a process with a classic session cannot have one of Connect.
"""

from __future__ import annotations

import json
import sys
import tempfile
from threading import Event
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from spark_kafka_sink.observability import StreamEvent

ROWS = 20
#: Of the values in Avro and in JSON.
TYPE = "struct<id:bigint,name:string>"
_SECONDS = 120
#: How often a query may be started for which Spark starts a Python process.
_STARTS = 10


def main(url: str, bootstrap_servers: str, registry_url: str, names: list[str]) -> None:
    """Run the named steps in a session of the server at a URL, and print their answers."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    spark = SparkSession.builder.remote(url).getOrCreate()
    try:
        servers = {"kafka.bootstrap.servers": bootstrap_servers}
        job = ConnectJob(spark, url, servers, registry_url)
        for name in names:
            step: Callable[[], Any] = getattr(job, name)
            try:
                answer = step()
            except PySparkException as error:
                answer = {"error": type(error).__name__, "message": str(error)}
            sys.stdout.write(json.dumps([name, answer]) + "\n")
            sys.stdout.flush()
    finally:
        spark.stop()


class ConnectJob:
    """The steps; each writes to a topic of its name, and returns what JSON can hold."""

    def __init__(
        self, spark: SparkSession, url: str, servers: dict[str, str], registry_url: str
    ) -> None:
        """Use a session of Connect, to the server at a URL."""
        self._registry = {"valueFormat": "avro", "schema.registry.url": registry_url}
        self._spark = spark
        self._url = url
        self._servers = servers
        self._df = spark.range(ROWS).selectExpr("cast(id as string) as value")

    def session(self) -> str:
        """Return the module of the session's class."""
        return type(self._spark).__module__

    def imported(self) -> bool:
        """Return whether the client has imported the package so far."""
        return "spark_kafka_sink" in sys.modules

    def check(self) -> tuple[int | None, str | None]:
        """Check a write; return the number of partitions, and the warning."""
        from spark_kafka_sink import KafkaSink  # noqa: PLC0415

        checked = KafkaSink.check(self._df, self._servers, topic="batch")
        return checked.partitions, checked.warning

    def dry_run(self) -> tuple[int, int, list[int]]:
        """Try rows; return how many there were, from how many tasks, and for which partitions."""
        from spark_kafka_sink import KafkaSink  # noqa: PLC0415

        df = self._spark.range(ROWS, numPartitions=2).selectExpr("cast(id as string) as value")
        checked = KafkaSink.check(df, self._servers, topic="batch", sample=1_000)
        if checked.dry_run is None:
            raise ValueError("there is no dry run")
        found = checked.dry_run
        return found.rows, found.tasks, sorted(place.partition for place in found.rows_by_partition)

    def batch(self) -> None:
        """Write a batch by the format's name, without registration."""
        self._write(self._df, "batch")

    def registered(self) -> None:
        """Write a batch after the class was registered."""
        from spark_kafka_sink import KafkaSink  # noqa: PLC0415

        self._spark.dataSource.register(KafkaSink)
        self._write(self._df, "registered")

    def exactly_once(self) -> None:
        """Write a batch in transactions."""
        self._write(self._df, "exactly_once", **_exactly_once("batches"))

    def bad_rows(self) -> None:
        """Write a batch with a bad row, whose dead letter is in the same transaction, at a pace."""
        df = self._df.selectExpr("value as key", "value", "if(value = '7', 99, 0) as partition")
        options = {"onError": "dlq", "dlqTopic": "letters", "maxRecordsPerSecond": "1000"}
        self._write(df, "bad_rows", **_exactly_once("bad rows"), **options)

    def spread_keys(self) -> None:
        """Write rows with one key from several tasks, which `keyOrder=fail` refuses."""
        df = self._df.selectExpr("'k' as key", "value").repartition(2)
        self._write(df, "spread_keys", **_exactly_once("spread keys"), keyOrder="fail")

    def read(self) -> list[str]:
        """Return the values of a topic that an earlier step wrote."""
        rows = self._reader("batch").collect()
        return sorted(row.value.decode() for row in rows)

    def stream(self) -> None:
        """Copy a topic to another one by a stream."""
        self._run(self._to_kafka("stream"))

    def exactly_once_stream(self) -> None:
        """Copy a topic to another one by a stream, in transactions."""
        self._run(self._to_kafka("exactly_once_stream", **_exactly_once("streams")))

    def foreach_batch(self) -> None:
        """Copy a topic by a function that writes each micro-batch as a batch."""
        options = {**self._servers, "topic": "foreach_batch"}

        # The function runs in a process of the server, where only its options are known.
        def write(batch: DataFrame, _batch_id: int) -> None:
            batch.write.format("pykafka").mode("append").options(**options).save()

        self._run(self._stream().select("value").writeStream.foreachBatch(write))

    def reports(self) -> list[Any]:
        """Return the rows of the last report before and after writes of a session of its own.

        The last ones are that of a stream, whether it is the stream's, and what a listener was
        told of the stream.
        """
        from pyspark.sql import SparkSession  # noqa: PLC0415

        from spark_kafka_sink import KafkaSink  # noqa: PLC0415
        from spark_kafka_sink.observability import (  # noqa: PLC0415
            KafkaStreamListener,
            SessionReports,
        )

        spark = SparkSession.builder.remote(self._url).create()
        options = {**self._servers, "topic": "reports", "report": "none"}
        df = spark.range(100, numPartitions=2).selectExpr("cast(id as string) value")
        found = [KafkaSink.last_report(spark)]
        for count in (100, 7):
            df.limit(count).write.format("pykafka").mode("append").options(**options).save()
            found.append(KafkaSink.last_report(spark))
        events = Events()
        listener = KafkaStreamListener(events, reports=SessionReports(spark))
        spark.streams.addListener(listener)
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        writer = rows.selectExpr("cast(value as string) value").limit(10).writeStream
        with tempfile.TemporaryDirectory() as checkpoint:
            query = (
                writer.format("pykafka")
                .options(**options, checkpointLocation=checkpoint)
                .trigger(once=True)
                .start()
            )
            query.awaitTermination()
        found.append(KafkaSink.last_report(spark, query=query))
        last = found[-1]
        counts = [None if each is None else each.rows for each in found]
        assert events.ended.wait(_SECONDS), "the listener is not told that the query has ended"
        spark.streams.removeListener(listener)
        # A session that is only closed when the interpreter ends may wait for gRPC forever.
        spark.stop()
        return [*counts, last is not None and last.query_id == query.id, *events.told]

    def avro(self) -> list[Any]:
        """Write structs in Avro, and copy them by a stream; return the copy's type and values."""
        return self._typed("avro", self._registry | {"autoRegisterSchemas": "true"}, self._registry)

    def json(self) -> list[Any]:
        """Do the same in JSON."""
        options = {"valueFormat": "json"}
        return self._typed("json", options, options | {"valueSchema": TYPE})

    def _typed(self, name: str, to_write: dict[str, str], to_read: dict[str, str]) -> list[Any]:
        from spark_kafka_sink import KafkaSink  # noqa: PLC0415

        df = self._spark.range(ROWS).selectExpr("struct(id, concat('n', id) as name) as value")
        checked = KafkaSink.check(df, {**self._servers, **to_write}, topic=name)
        self._write(df, name, **to_write)
        reader = self._spark.readStream.format("pykafka").options(**self._servers, **to_read)
        stream = reader.options(subscribe=name, startingOffsets="earliest").load()
        writer = stream.select("value").writeStream.format("pykafka")
        self._run(writer.options(**self._servers, **to_write, topic=f"{name}_copy"))
        copied = self._reader(f"{name}_copy", **to_read)
        values = copied.select("value.*").orderBy("id").collect()
        return [checked.partitions, dict(copied.dtypes)["value"], list(map(tuple, values))]

    def unsupported_type(self) -> None:
        """Write a type that the format does not have."""
        df = self._spark.range(1).selectExpr("struct(interval '1' month as months) as value")
        self._write(df, "avro", **self._registry, autoRegisterSchemas="true")

    def missing_topic(self) -> None:
        """Write to a topic that does not exist."""
        self._write(self._df, "missing_topic")

    def _write(self, df: DataFrame, topic: str, **options: str) -> None:
        writer = df.write.format("pykafka").mode("append")
        writer.options(**self._servers, topic=topic, **options).save()

    def _reader(self, topic: str, **options: str) -> DataFrame:
        reader = self._spark.read.format("pykafka")
        return reader.options(**self._servers, subscribe=topic, **options).load()

    def _stream(self) -> DataFrame:
        reader = self._spark.readStream.format("pykafka").options(**self._servers)
        return reader.options(subscribe="batch", startingOffsets="earliest").load()

    def _to_kafka(self, topic: str, **options: str) -> Any:
        writer = self._stream().select("value").writeStream.format("pykafka")
        return writer.options(**self._servers, topic=topic, **options)

    def _run(self, writer: Any) -> None:
        for start in range(1, _STARTS + 1):
            try:
                return self._run_once(writer)
            except PySparkException as error:
                # Spark gives a query's Python process ten seconds to start, and has called nothing
                # if it fails.
                if "connect back" not in str(error) or start == _STARTS:
                    raise
        return None

    def _run_once(self, writer: Any) -> None:
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = writer.option("checkpointLocation", checkpoint)
            query = writer.trigger(availableNow=True).start()
            try:
                assert query.awaitTermination(_SECONDS), "the stream does not end"
            finally:
                query.stop()


class Events:
    """An exporter that keeps what it is told of a query with one micro-batch."""

    def __init__(self) -> None:
        """Start without events."""
        self.told: list[Any] = []
        self.ended = Event()

    def export(self, event: StreamEvent) -> None:
        """Keep the kind of an event, and the rows of its report."""
        if event.kind.value != "idle":
            self.told.append([event.kind.value, (event.report or {}).get("rows")])
        if event.kind.value == "terminated":
            self.ended.set()


def _exactly_once(prefix: str) -> dict[str, str]:
    return {"deliveryGuarantee": "exactly_once", "transactionalIdPrefix": prefix}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
