"""Typed values in Avro: the kernels alone, `spark.read` to a struct, and `df.write` of a struct.

A read is compared with a Python source that yields the same structs ready-made, and with Spark's
JVM source and `from_avro`, after both have read the same rows. A write is compared with one of the
same bytes, which were encoded before. All take turns, and the ratios are those within a round.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import format_kernels
from benchmarks.format_payloads import ORDER, SPARK_ORDER, spark_orders, text
from benchmarks.measuring import Trial, alternate, heading, progress, table, trial, verdict
from benchmarks.reading import summary
from benchmarks.spark_write import write_topic
from spark_kafka_sink.config.registry_settings import RegistrySettings
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.registry.client import registry_client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from benchmarks.setting import Setting

PARTITIONS = 6
OURS = "pykafka, avro"
CEILING = "ready-made structs"
JVM = "JVM source, from_avro"
READY = "pykafka, ready-made bytes"
#: Targets of a read, as a multiple of the rates of others; and that of a write.
READ_TARGETS = {CEILING: 0.8, JVM: 3.0}
WRITE_TARGETS = {READY: 0.75}
CODEC = {"kafka.compression.type": "lz4"}
_SUBJECT = "orders"


def run(setting: Setting) -> None:
    """Measure the kernels, and then reads and writes in Spark."""
    format_kernels.run(setting)
    with DevBroker(schema_registry=True) as broker:
        url = broker.schema_registry_url
        registry = registry_client(RegistrySettings.from_mapping({"url": url}))
        schema_id = registry.register(_SUBJECT, text(ORDER)).id
        options = {
            "valueFormat": "avro",
            "valueSchema": f"id:{schema_id}",
            "schema.registry.url": url,
        }
        _run_read(setting, options)
        _run_write(setting, options)


def _run_read(setting: Setting, options: dict[str, str]) -> None:
    progress(f"writing {setting.rows:,} orders")
    topic = _fill(setting, spark_orders(setting.spark, setting.rows, PARTITIONS), options)
    frames = {OURS: _orders(setting, options, topic), CEILING: _ready_made(setting)}
    if setting.has_jvm_avro:
        frames[JVM] = _orders_by_jvm(setting, topic)
        progress("comparing the rows")
        found = {name: summary(frames[name]) for name in (OURS, JVM)}
        if found[OURS] != found[JVM] or found[OURS][0] != setting.rows:
            raise RuntimeError(f"{topic} is read as {found}")
    trials = alternate(
        {name: partial(_read, setting, df) for name, df in frames.items()}, rounds=setting.rounds
    )
    setting.kafka.delete_topics([topic])
    heading(
        f"spark.read, {setting.rows:,} orders in {PARTITIONS} partitions to a struct, lz4, medians "
        f"of {setting.rounds} rounds, million rows/s"
    )
    _compare(trials, READ_TARGETS)


def _run_write(setting: Setting, options: dict[str, str]) -> None:
    orders = spark_orders(setting.spark, setting.rows, PARTITIONS).persist()
    progress(f"preparing {setting.rows:,} orders")
    orders.count()
    topic = _fill(setting, orders, options)
    raw = setting.spark.read.format("pykafka").options(**_servers(setting), subscribe=topic)
    payloads = raw.schema("value binary").load().persist()
    if payloads.count() != setting.rows:
        raise RuntimeError(f"{topic} has {payloads.count()} of {setting.rows} rows")
    rows = setting.rows
    trials = alternate(
        {
            OURS: partial(write_topic, setting, orders, rows, "pykafka", options | CODEC),
            READY: partial(write_topic, setting, payloads, rows, "pykafka", CODEC),
        },
        rounds=setting.rounds,
    )
    payloads.unpersist()
    orders.unpersist()
    setting.kafka.delete_topics([topic])
    heading(
        f"df.write, {setting.rows:,} orders in {PARTITIONS} partitions, lz4, medians of "
        f"{setting.rounds} rounds, million rows/s"
    )
    _compare(trials, WRITE_TARGETS)


def _compare(trials: Mapping[str, Sequence[Trial]], targets: Mapping[str, float]) -> None:
    """Print the rate of each, and the ratio of the first to it."""
    lines = []
    for name, those in trials.items():
        line = [
            name,
            f"{median(each.rate for each in those):.2f}",
            f"{median(each.cpu_per_million for each in those):.2f}",
        ]
        if name in targets:
            ratio = median_ratio(trials[OURS], those)
            line += [f"{ratio:.2f}x", verdict(ratio, at_least=targets[name])]
        lines.append([*line, "", ""][:5])
    table(["", "rate", "CPU s per million rows", "avro / this", "target"], lines)


def median_ratio(ours: Sequence[Trial], others: Sequence[Trial]) -> float:
    """Return the median of the ratios of two rates within a round."""
    return median(one.rate / other.rate for one, other in zip(ours, others, strict=True))


def _fill(setting: Setting, df: DataFrame, options: Mapping[str, str]) -> str:
    """Write all rows to a new topic, and return its name."""
    topic = setting.kafka.create_topic(PARTITIONS)
    writer = df.write.format("pykafka").mode("append").options(**options, topic=topic)
    writer.options(**_servers(setting), **CODEC).save()
    setting.check_count(topic, setting.rows)
    return topic


def _servers(setting: Setting) -> dict[str, str]:
    return {"kafka.bootstrap.servers": setting.kafka.bootstrap_servers}


def _orders(setting: Setting, options: Mapping[str, str], topic: str) -> DataFrame:
    reader = setting.spark.read.format("pykafka").options(**options, **_servers(setting))
    reader = reader.option("subscribe", topic)
    return reader.schema(f"value {SPARK_ORDER}").load()


def _ready_made(setting: Setting) -> DataFrame:
    reader = setting.spark.read.format("generated").schema(f"value {SPARK_ORDER}")
    return reader.options(rows=setting.rows, partitions=PARTITIONS, orders=True).load()


def _orders_by_jvm(setting: Setting, topic: str) -> DataFrame:
    from pyspark.sql.avro.functions import from_avro  # noqa: PLC0415  # with Spark
    from pyspark.sql.functions import expr  # noqa: PLC0415

    reader = setting.spark.read.format("kafka").options(**_servers(setting), subscribe=topic)
    rows = reader.load()
    # Behind the five bytes of the framing, which from_avro does not know.
    return rows.select(from_avro(expr("substring(value, 6)"), text(ORDER)).alias("value"))


def _read(setting: Setting, df: DataFrame) -> Trial:
    with trial(setting.rows, exclude=setting.broker_processes) as result:
        df.write.format("noop").mode("overwrite").save()
    return result
