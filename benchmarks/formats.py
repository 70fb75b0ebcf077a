"""Typed values in Avro: the kernels alone, `spark.read` to a struct, and `df.write` of a struct.

A read is compared with a Python source that yields the same structs ready-made, and with Spark's
JVM source and `from_avro`, after both have read the same rows. A write is compared with a Python
sink that only counts the same structs, since their conversion to Arrow is Spark's own; beside them
are writes of the same bytes, which were encoded before, and what counts those. All take turns, and
the ratios are those within a round.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import format_kernels
from benchmarks.format_payloads import ORDER, SPARK_ORDER, spark_orders, text
from benchmarks.measuring import Trial, alternate, heading, progress, table, trial, verdict
from benchmarks.reading import summary
from benchmarks.spark_write import NOWHERE, TARGETS, write_topic
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
JSON = "pykafka, json"
READY = "pykafka, ready-made bytes"
COUNTED = "structs, only counted"
READY_COUNTED = "bytes, only counted"
#: Targets as multiples of the rates of others.
READ_TARGETS = {CEILING: 0.8, JVM: 3.0}
#: That of writes of bytes.
WRITE_TARGETS = {COUNTED: TARGETS["lz4"]}
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
    contestants = {
        OURS: (orders, "pykafka", options | CODEC),
        COUNTED: (orders, NOWHERE, {}),
        READY: (payloads, "pykafka", CODEC),
        READY_COUNTED: (payloads, NOWHERE, {}),
        JSON: (orders, "pykafka", {"valueFormat": "json"} | CODEC),
    }
    trials = alternate(
        {
            name: partial(write_topic, setting, df, setting.rows, sink, its_options)
            for name, (df, sink, its_options) in contestants.items()
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
    """Print the rate of each, and the ratios of the first to it."""
    lines = []
    for name, those in trials.items():
        ratio = median_ratio(trials[OURS], those)
        line = [
            name,
            f"{median(each.rate for each in those):.2f}",
            f"{median(each.cpu_per_million for each in those):.2f}",
        ]
        if name != OURS:
            line += [f"{ratio:.2f}x", f"{median_cpu_ratio(trials[OURS], those):.2f}"]
        if name in targets:
            line.append(verdict(ratio, at_least=targets[name]))
        lines.append([*line, "", "", ""][:6])
    table(
        ["", "rate", "CPU s per million rows", "avro / this", "CPU, avro / this", "target"], lines
    )


def median_ratio(ours: Sequence[Trial], others: Sequence[Trial]) -> float:
    """Return the median of the ratios of two rates within a round."""
    return median(one.rate / other.rate for one, other in zip(ours, others, strict=True))


def median_cpu_ratio(ours: Sequence[Trial], others: Sequence[Trial]) -> float:
    """Return the median of the ratios of two processor times within a round."""
    pairs = zip(ours, others, strict=True)
    return median(one.cpu_per_million / other.cpu_per_million for one, other in pairs)


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
