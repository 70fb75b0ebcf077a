"""Write a million rows from Spark to Kafka, and read them back with Spark and another client.

    python examples/demo.py [--rows 1000000] [--partitions 4] [--bootstrap-servers HOST:PORT]

The second act is `stream_exactly_once.py`: a streaming query copies a topic, is killed and
restarted, and the rows of the copy are counted.

The embedded broker runs in a separate process, unless `--bootstrap-servers` is given. The exit code
is 0 if all rows were read back exactly once, and 1 otherwise.
"""

# ruff: noqa: PLC0415 - heavy imports wait until the first line of progress is out

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

SAMPLE_SIZE = 5
TIMEOUT_SECONDS = 60.0

_STARTED = time.monotonic()


def say(message: str) -> None:
    """Print a line of progress with the time since the start."""
    print(f"[{time.monotonic() - _STARTED:5.1f} s] {message}", flush=True)


@contextlib.contextmanager
def embedded_broker() -> Iterator[str]:
    """Run the broker in a separate process; yield its address."""
    command = [sys.executable, "-m", "spark_kafka_sink.devbroker", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ours
    try:
        if process.stdout is None:
            raise RuntimeError("the broker's output was not piped")
        line = process.stdout.readline()
        if not line.startswith("listening on "):
            raise RuntimeError(f"the broker did not start: exit code {process.wait()}")
        yield line.removeprefix("listening on ").strip()
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def create_topics(bootstrap_servers: str, topics: list[str], partitions: int) -> None:
    """Create topics."""
    from spark_kafka_sink import AdminClient, NewTopic

    with AdminClient({"bootstrap.servers": bootstrap_servers}) as admin:
        admin.create_topics([NewTopic(name, partitions) for name in topics])


def spark_session() -> SparkSession:
    """Start a local Spark session whose workers use this interpreter."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session: SparkSession = (
        SparkSession.builder.master("local[*]")
        .appName("spark-kafka-sink demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        # For minutes on two cores, less compiling and collecting beside the work.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def orders(spark: SparkSession, rows: int) -> DataFrame:
    """Create rows of about 90 bytes: a customer as the key, an order as the value."""
    from pyspark.sql import functions as f

    customer = f.concat(f.lit("customer-"), f.lpad((f.col("id") % 10_007).cast("string"), 5, "0"))
    order = f.concat(
        f.lit('{"order":'),
        f.col("id").cast("string"),
        f.lit(',"article":"article-'),
        f.lpad((f.col("id") * 7 % 1000).cast("string"), 4, "0"),
        f.lit('","quantity":'),
        (f.col("id") % 9 + 1).cast("string"),
        f.lit(',"city":"Lisbon","paid":true}'),
    )
    return spark.range(rows).select(customer.alias("key"), order.alias("value"))


def write(rows: DataFrame, bootstrap_servers: str, topic: str) -> tuple[float, dict[str, Any]]:
    """Write a DataFrame to a topic; return the duration in seconds and the report."""
    with tempfile.TemporaryDirectory() as directory:
        report_path = Path(directory) / "report.json"
        started = time.monotonic()
        (
            rows.write.format("pykafka")
            .mode("append")
            .option("kafka.bootstrap.servers", bootstrap_servers)
            .option("topic", topic)
            .option("keyOrder", "off")  # here it does not matter which order of a customer is first
            .option("reportPath", str(report_path))
            .save()
        )
        return time.monotonic() - started, json.loads(report_path.read_text())


def differing_rows(spark: SparkSession, rows: int, bootstrap_servers: str, topic: str) -> int:
    """Read the topic with Spark; return how many rows are missing, changed or too many."""
    read = (
        spark.read.format("pykafka")
        .schema("key binary, value binary")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .load()
        .selectExpr("cast(key as string) as key", "cast(value as string) as value")
    )
    # Each row read counts 1, each row written -1: where they are equal, the sum is 0.
    both = read.selectExpr("*", "1 as times").union(
        orders(spark, rows).selectExpr("*", "-1 as times")
    )
    differences = both.groupBy("key", "value").sum("times").where("`sum(times)` != 0")
    [total] = differences.selectExpr("coalesce(sum(abs(`sum(times)`)), 0)").collect()
    return int(total[0])


def read_back(
    bootstrap_servers: str, topic: str
) -> tuple[dict[int, int], list[dict[str, str]], int]:
    """Read the whole topic with confluent-kafka, without a consumer group.

    Returns the number of records per partition, a few records, and the sum of the order numbers.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "demo", "enable.auto.commit": False}
    )
    try:
        known = consumer.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic].partitions
        assigned = [TopicPartition(topic, index, OFFSET_BEGINNING) for index in known]
        left = {}
        for place in assigned:
            low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_SECONDS)
            left[place.partition] = high - low
        consumer.assign(assigned)
        counts = dict.fromkeys(left, 0)
        sample: list[dict[str, str]] = []
        numbers = 0
        while missing := sum(left.values()) - sum(counts.values()):
            # With a larger number it would wait for records that do not exist.
            messages = consumer.consume(min(missing, 10_000), timeout=TIMEOUT_SECONDS)
            if not messages:
                raise RuntimeError(f"no more records arrived after {sum(counts.values())}")
            for message in messages:
                partition, key, value = message.partition(), message.key(), message.value()
                if partition is None or key is None or value is None:
                    raise RuntimeError(f"unexpected record: {message.error()}")
                counts[partition] += 1
                numbers += int(value[len('{"order":') : value.index(b",")])
                if len(sample) < SAMPLE_SIZE:
                    sample.append(
                        {
                            "place": f"{partition}@{message.offset()}",
                            "key": key.decode(),
                            "value": value.decode(),
                        }
                    )
    finally:
        consumer.close()
    return counts, sample, numbers


def run(bootstrap_servers: str, suffix: str, rows: int, partitions: int) -> bool:
    """Write, read back and compare; return whether all rows are there once."""
    topic, warm_up_topic = f"orders{suffix}", f"warm-up{suffix}"
    create_topics(bootstrap_servers, [topic, warm_up_topic], partitions)
    say("starting Spark ...")
    spark = spark_session()
    try:
        say("warming up: starting Spark's workers, compiling the encoder if necessary ...")
        seconds, _ = write(orders(spark, rows // 4), bootstrap_servers, warm_up_topic)
        say(f"warmed up in {seconds:.1f} s")
        say(f"writing {rows:,} rows to topic {topic!r} ...")
        seconds, report = write(orders(spark, rows), bootstrap_servers, topic)
        say(f"{rows:,} rows in {seconds:.2f} s: {rows / seconds / 1e6:.2f} million rows/s")
        say("reading them back with Spark ...")
        started = time.monotonic()
        differing = differing_rows(spark, rows, bootstrap_servers, topic)
        say(f"compared in {time.monotonic() - started:.2f} s: {differing:,} rows differ")
    finally:
        spark.stop()
    say("reading back with confluent-kafka ...")
    counts, sample, numbers = read_back(bootstrap_servers, topic)
    for record in sample:
        print(f"    {record['place']}  {record['key']}  {record['value']}")
    for partition, count in sorted(counts.items()):
        print(f"    partition {partition}: {count:,} records")
    found = sum(counts.values())
    say(f"found {found:,} of {rows:,} rows; the report says {report['rows']:,}")
    reported = {it["partition"]: it["records"] for it in report["topics"].get(topic, [])}
    return (
        (rows, rows, 0) == (found, report["rows"], differing)
        and rows * (rows - 1) // 2 == numbers
        and {index: count for index, count in counts.items() if count} == reported
    )


def run_stream(bootstrap_servers: str, suffix: str) -> bool:
    """Kill an exactly-once copy and restart it; return whether each number is there once."""
    import stream_exactly_once

    topic = f"numbers{suffix}"
    create_topics(bootstrap_servers, [topic, topic + stream_exactly_once.COPY], partitions=3)
    say("copying a topic exactly once in a separate Spark, and killing it midway ...")
    return stream_exactly_once.run(bootstrap_servers, topic)


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Write rows from Spark to Kafka, read them back, and copy a topic exactly once."
    )
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="rows to write (default: %(default)s)"
    )
    parser.add_argument(
        "--partitions", type=int, default=4, help="partitions of the topic (default: %(default)s)"
    )
    parser.add_argument(
        "--acts",
        type=int,
        default=2,
        choices=(1, 2),
        help="1 omits the stream (default: %(default)s)",
    )
    parser.add_argument("--bootstrap-servers", help="Kafka cluster (default: the embedded broker)")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        address = arguments.bootstrap_servers
        # In a cluster that outlives the demo, each run uses new topics.
        suffix = "" if address is None else f"-{uuid.uuid4().hex[:8]}"
        if address is None:
            say("starting the embedded broker ...")
            address = stack.enter_context(embedded_broker())
        say(f"Kafka is at {address}")
        is_well = run(address, suffix, arguments.rows, arguments.partitions)
        told = f"{arguments.rows:,} rows were written and read back"
        if is_well and arguments.acts > 1:
            told += ", and a stream that was killed was completed"
            is_well = run_stream(address, suffix)
    say(f"{told}: none is missing, none is duplicated" if is_well else "ROWS ARE WRONG: SEE ABOVE")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
