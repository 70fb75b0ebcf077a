"""Copy a topic by a stream, serve its metrics for Prometheus, and log its events as JSON.

    python examples/stream_metrics.py [--bootstrap-servers HOST:PORT]

The metrics are at port 9108, or at that in the environment variable METRICS_PORT. At the end it
reads its own metrics, as Prometheus would.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path
from urllib.request import urlopen

from cluster import kafka_for
from prometheus_client import start_http_server
from pyspark.sql import SparkSession

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.observability import (
    JsonLogExporter,
    KafkaStreamListener,
    PrometheusExporter,
    ReportFile,
)

ROWS = 1_000
#: Where Prometheus finds the metrics of this driver.
ADDRESS, PORT = "127.0.0.1", int(os.environ.get("METRICS_PORT", "9108"))


def main() -> None:
    """Send rows to one topic, copy them to another one, and print the metrics of the copy."""
    lines = logging.getLogger("spark_kafka_sink.stream_events")
    lines.addHandler(logging.StreamHandler(sys.stdout))
    lines.setLevel(logging.INFO)
    with (
        kafka_for("clicks", partitions=3) as bootstrap_servers,
        tempfile.TemporaryDirectory() as directory,
    ):
        with KafkaProducer({"bootstrap.servers": bootstrap_servers}) as producer:
            for number in range(ROWS):
                producer.send("clicks", b"click %d" % number)
        copy_topic(bootstrap_servers, Path(directory))


def copy_topic(bootstrap_servers: str, directory: Path) -> None:
    """Copy the topic in micro-batches, observed by a listener."""
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    report_path = str(directory / "report.jsonl")
    observe(spark, report_path)
    servers = {"kafka.bootstrap.servers": bootstrap_servers}
    query = (
        spark.readStream.format("pykafka")
        .options(**servers, subscribe="clicks", startingOffsets="earliest")
        .load()
        .selectExpr("value")
        .writeStream.format("pykafka")
        .queryName("copy")
        .options(**servers, topic="copies", autoCreateTopics="true", reportPath=report_path)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    # The session delivers all events to its listeners before it stops.
    spark.stop()
    with urlopen(f"http://{ADDRESS}:{PORT}/metrics", timeout=30) as response:
        for line in response.read().decode().splitlines():
            if line.startswith("spark_kafka_") and "_bucket" not in line and "_created" not in line:
                print(line)


def observe(spark: SparkSession, report_path: str) -> None:
    """Record what the queries of a session do, and serve it for Prometheus."""
    listener = KafkaStreamListener(
        PrometheusExporter(), JsonLogExporter(), reports=ReportFile(report_path)
    )
    spark.streams.addListener(listener)
    start_http_server(PORT, addr=ADDRESS)


if __name__ == "__main__":
    main()
