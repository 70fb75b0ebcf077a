"""`spark.read` from a real broker, against Spark's JVM source and a Python source's upper bound.

All run in one session, in alternating rounds, into Spark's `noop`. Before that, both sources must
have read the same rows: their number, and the sum and the XOR of their hashes, are equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import confluent_kafka

from benchmarks import reading_batches, reading_memory, reading_outside_spark
from benchmarks.generated_source import SCHEMA
from benchmarks.measuring import Trial, contest, heading, progress, table, trial, verdict
from benchmarks.payloads import SPARK_ROW_BYTES, documents, spark_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from benchmarks.setting import Setting

PARTITIONS = 6
OURS = "pykafka"
JVM = "JVM source"
CEILING = "ceiling"
CODECS = ("none", "lz4", "zstd")
#: The schemas that select columns, by their names in the table.
COLUMNS = {"all": SCHEMA, "key, value": "key binary, value binary", "value": "value binary"}
#: What is measured: the codec and the columns, with the targets against the JVM source and as a
#: share of the ceiling.
TARGETS: dict[tuple[str, str], tuple[float | None, float | None]] = {
    ("none", "all"): (None, None),
    ("lz4", "all"): (2.2, 0.75),
    ("lz4", "key, value"): (None, None),
    ("lz4", "value"): (3.5, None),
    ("zstd", "all"): (None, None),
}
#: One-record batches are slow to write, so there are fewer rows in them.
ONE_RECORD_SHARE = 1 / 20
ONE_RECORD_TARGET = 1.5


class Topic(NamedTuple):
    """A filled topic."""

    name: str
    rows: int


def run(setting: Setting) -> None:
    """Measure reading in Spark and outside, its memory, and what a micro-batch costs."""
    topics = {codec: _fill(setting, codec) for codec in CODECS}
    _run_columns(setting, topics)
    _run_one_record_batches(setting)
    reading_outside_spark.run(setting, topics["lz4"].name)
    reading_memory.run(setting)
    reading_batches.run(setting, topics["lz4"].name)
    setting.kafka.delete_topics(topic.name for topic in topics.values())


def _run_columns(setting: Setting, topics: dict[str, Topic]) -> None:
    for codec, topic in topics.items():
        progress(f"comparing the rows: {codec}")
        check_equal(setting, topic)
    results = []
    for (codec, columns), (against_jvm, of_ceiling) in TARGETS.items():
        best = contest(
            {
                name: _reader(setting, name, topics[codec], columns)
                for name in _contestants(setting)
            },
            rounds=setting.rounds,
        )
        results.append([codec, columns, *_cells(best, against_jvm, of_ceiling)])
    heading(
        f"spark.read, {setting.rows:,} rows of {SPARK_ROW_BYTES} bytes in {PARTITIONS} partitions, "
        f"best of {setting.rounds} rounds, million rows/s"
    )
    table(["codec", "columns", *_header(setting)], results)


def _run_one_record_batches(setting: Setting) -> None:
    topic = _fill_with_single_records(setting)
    check_equal(setting, topic)
    best = contest(
        {name: _reader(setting, name, topic, "all") for name in _contestants(setting)},
        rounds=setting.rounds,
    )
    setting.kafka.delete_topics([topic.name])
    heading(f"spark.read, {topic.rows:,} batches of one record, lz4, million rows/s")
    table(_header(setting), [_cells(best, ONE_RECORD_TARGET, None)])


def _contestants(setting: Setting) -> list[str]:
    return [OURS, *([JVM] if setting.has_jvm_connector else []), CEILING]


def _header(setting: Setting) -> list[str]:
    jvm = [JVM, "ours / theirs", "target"] if setting.has_jvm_connector else []
    return [OURS, *jvm, CEILING, "ratio to ceiling", "target", "CPU s per million rows"]


def _cells(
    best: dict[str, Trial], against_jvm: float | None, of_ceiling: float | None
) -> list[str]:
    ours = best[OURS].rate
    cells = [f"{ours:.2f}"]
    for name, target, unit in ((JVM, against_jvm, "x"), (CEILING, of_ceiling, "")):
        if name in best:
            ratio = ours / best[name].rate
            reached = "" if target is None else verdict(ratio, at_least=target)
            cells += [f"{best[name].rate:.2f}", f"{ratio:.2f}{unit}", reached]
    return [*cells, " / ".join(f"{result.cpu_per_million:.2f}" for result in best.values())]


def read(setting: Setting, source: str, topic: Topic, columns: str = "all") -> DataFrame:
    """Return a DataFrame of some columns of a topic, or of as many generated rows."""
    schema = COLUMNS[columns]
    if source == CEILING:
        reader = setting.spark.read.format("generated").schema(schema)
        return reader.options(rows=topic.rows, partitions=PARTITIONS).load()
    reader = setting.spark.read.format("kafka" if source == JVM else "pykafka")
    reader = reader.option("kafka.bootstrap.servers", setting.kafka.bootstrap_servers)
    reader = reader.option("subscribe", topic.name)
    if source == JVM:
        return reader.load().select(*(column.split()[0] for column in schema.split(", ")))
    return reader.load() if columns == "all" else reader.schema(schema).load()


def check_equal(setting: Setting, topic: Topic) -> None:
    """Raise RuntimeError unless both sources read the same rows, or ours reads all of them."""
    found = {name: summary(read(setting, name, topic)) for name in _contestants(setting)[:-1]}
    if len(set(found.values())) > 1 or found[OURS][0] != topic.rows:
        raise RuntimeError(f"{topic} is read as {found}")


def summary(df: DataFrame) -> tuple[Any, ...]:
    """Return the number of rows, and the sum and the XOR of their hashes."""
    hashes = df.selectExpr(f"xxhash64({', '.join(df.columns)}) hash").selectExpr(
        "count(*)", "cast(sum(cast(hash as decimal(38, 0))) as string)", "bit_xor(hash)"
    )
    return tuple(hashes.collect()[0])


def _reader(setting: Setting, source: str, topic: Topic, columns: str) -> Callable[[], Trial]:
    def read_all() -> Trial:
        df = read(setting, source, topic, columns)
        with trial(topic.rows, exclude=setting.broker_processes) as result:
            df.write.format("noop").mode("overwrite").save()
        return result

    return read_all


def _fill(setting: Setting, codec: str) -> Topic:
    progress(f"writing {setting.rows:,} rows: {codec}")
    return fill(setting, setting.rows, codec)


def fill(setting: Setting, rows: int, codec: str = "lz4") -> Topic:
    """Write rows with our sink to a new topic."""
    topic = setting.kafka.create_topic(PARTITIONS)
    spark_rows(setting.spark, rows).write.format("pykafka").mode("append").options(
        **{
            "kafka.bootstrap.servers": setting.kafka.bootstrap_servers,
            "kafka.compression.type": codec,
            "topic": topic,
        }
    ).save()
    setting.check_count(topic, rows)
    return Topic(topic, rows)


def _fill_with_single_records(setting: Setting) -> Topic:
    rows = int(setting.rows * ONE_RECORD_SHARE)
    progress(f"writing {rows:,} batches of one record")
    topic = setting.kafka.create_topic(PARTITIONS)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": setting.kafka.bootstrap_servers,
            "compression.type": "lz4",
            "batch.num.messages": 1,
            "queue.buffering.max.messages": 0,
        }
    )
    values = documents(1000, SPARK_ROW_BYTES)
    for i in range(rows):
        producer.produce(topic, values[i % len(values)], b"%08d" % i, partition=i % PARTITIONS)
        if i % 1000 == 0:
            producer.poll(0)
    producer.flush()
    setting.check_count(topic, rows)
    return Topic(topic, rows)
