"""Copy a topic with Spark exactly once: kill the query midway, restart it, and count the rows.

    python examples/stream_exactly_once.py [--bootstrap-servers HOST:PORT]

A streaming query reads numbers from one topic and writes them to another one. It runs in a separate
process, which is killed (SIGKILL, including Spark's JVM) in the middle of a micro-batch, after it
has written some others. The query is restarted, writes the other numbers and stops. Then a consumer
of another client (confluent-kafka) with isolation.level=read_committed counts the numbers.
"""

# ruff: noqa: PLC0415 - Spark is started by the query's process alone

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING

from cluster import kafka_for

from spark_kafka_sink import KafkaProducer

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

NUMBERS = 20_000
ROWS_PER_BATCH = 2_000
#: What is added to the name of the topic for that of the copy.
COPY = "-copy"
#: Number of micro-batches that the query finishes before it is killed.
BATCHES = 3
_QUERY = "--query"
_LAST_QUERY = "--last-query"
_SECONDS = 120.0


def start_query(
    bootstrap_servers: str, topic: str, directory: str, *, is_last: bool
) -> StreamingQuery:
    """Start the query, which copies `ROWS_PER_BATCH` numbers in each micro-batch.

    With `is_last`, the query copies the numbers that are available now, and stops by itself.
    """
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        # A process that lives for seconds starts faster with less compiling and collecting.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    numbers = (
        spark.readStream.format("pykafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        .load()
    )
    return (
        numbers.select("key", "value")
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", topic + COPY)
        .option("deliveryGuarantee", "exactly_once")
        .option("transactionalIdPrefix", f"{topic}-example")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(**({"availableNow": True} if is_last else {"processingTime": "0 seconds"}))
        .start()
    )


def produce(bootstrap_servers: str, topic: str) -> None:
    """Send the numbers, each with itself as the key."""
    with KafkaProducer({"bootstrap.servers": bootstrap_servers}) as producer:
        for number in range(NUMBERS):
            text = str(number).encode()
            producer.send(topic, text, key=text)
        producer.flush()


def run_query(bootstrap_servers: str, topic: str, directory: str, *, is_last: bool) -> None:
    """Run the query, and print each micro-batch that Spark reports as finished."""
    query = start_query(bootstrap_servers, topic, directory, is_last=is_last)
    told = -1
    parent = os.getppid()
    # Stop if the parent, which is to kill this process, has itself been killed.
    while query.isActive and os.getppid() == parent:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > told:
            told = progress["batchId"]
            print(f"finished batch {told}", flush=True)
        time.sleep(0.01)
    query.stop()
    if (error := query.exception()) is not None:
        raise error


def query_process(
    bootstrap_servers: str, topic: str, directory: str, *, is_last: bool = False
) -> subprocess.Popen[str]:
    """Start the query's process in a new session, so that its whole group can be killed."""
    return subprocess.Popen(  # noqa: S603 - this script
        [
            *(sys.executable, __file__, _LAST_QUERY if is_last else _QUERY),
            *(bootstrap_servers, topic, directory),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        start_new_session=True,
    )


def run_and_kill(bootstrap_servers: str, topic: str, directory: str) -> None:
    """Run the query, and kill it when it has finished some micro-batches."""
    process = query_process(bootstrap_servers, topic, directory)
    finished = 0
    try:
        for line in process.stdout or ():
            finished += line.startswith("finished batch ")
            if finished == BATCHES:
                break
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(_SECONDS)
    print(f"killed the query after {finished} micro-batches", flush=True)


def read_committed(bootstrap_servers: str, topic: str) -> list[int]:
    """Read all committed numbers, up to the end of each partition.

    A transaction that was left open would hide the numbers after it.
    """
    import confluent_kafka

    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "not-used",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(settings)
    numbers = []
    try:
        unread = set(consumer.list_topics(topic, timeout=_SECONDS).topics[topic].partitions)
        begin = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(topic, place, begin) for place in unread])
        while unread:
            message = consumer.poll(_SECONDS)
            if message is None:
                raise RuntimeError(f"no more records of {topic} arrived")
            if message.error() is None:
                numbers.append(int(message.value() or b""))
            else:
                unread.discard(message.partition() or 0)
    finally:
        consumer.close()
    return numbers


def run(bootstrap_servers: str, topic: str) -> bool:
    """Run, kill and restart the query; return whether the copy has each number exactly once."""
    produce(bootstrap_servers, topic)
    with tempfile.TemporaryDirectory() as directory:
        run_and_kill(bootstrap_servers, topic, directory)
        process = query_process(bootstrap_servers, topic, directory, is_last=True)
        process.communicate()
        print(f"restarted the query; it ended with exit code {process.returncode}", flush=True)
    times = Counter(read_committed(bootstrap_servers, topic + COPY))
    duplicated = sum(count > 1 for count in times.values())
    print(f"{NUMBERS} numbers were copied, {NUMBERS - len(times)} are missing, ", end="")
    print(f"{duplicated} are duplicated", flush=True)
    return times == Counter(range(NUMBERS))


def main() -> int:
    """Run the query, or the process that starts and kills it; return the exit code."""
    if sys.argv[1:2] in ([_QUERY], [_LAST_QUERY]):
        bootstrap_servers, topic, directory = sys.argv[2:]
        is_last = sys.argv[1] == _LAST_QUERY
        run_query(bootstrap_servers, topic, directory, is_last=is_last)
        return 0
    topic = f"numbers-{uuid.uuid4().hex[:8]}"
    with kafka_for(topic, topic + COPY, partitions=3) as bootstrap_servers:
        return 0 if run(bootstrap_servers, topic) else 1


if __name__ == "__main__":
    sys.exit(main())
