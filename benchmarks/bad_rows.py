"""What bad rows cost: `onError` on clean rows, and 1 % bad rows, skipped or as dead letters.

The rows have keys, values of a hundred bytes and partitions, or are orders that are encoded as
Avro. First Spark writes them: the time of whole jobs, which is what a user waits for. Then they are
written as a task writes them, but without Spark, to see small differences: the processor time of
the writing thread, which does all that bad rows add. All cases take turns, and the ratios are those
to the writes without the option in the same round.

A dead letter is several times as large as its row, so there is one case more, for comparison: the
good rows, and records that are equal to the dead letters, but come as good rows. `onError` can
hardly take less.
"""

from __future__ import annotations

import json
import logging
import time
from enum import Enum
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from benchmarks.format_payloads import ORDER, orders, spark_orders, text
from benchmarks.measuring import Trial, alternate, heading, progress, table, trial, verdict
from spark_kafka_sink.config.format_arguments import FormatArguments
from spark_kafka_sink.config.sink_options import ErrorLimit, OnErrorOptions, SinkOptions
from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_sink.formats.payload_encoder import encoded
from spark_kafka_sink.formats.payload_schemas import schemas_to_write
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.sink.dead_letters import BadRowWriter, RowOrigin
from spark_kafka_sink.spark.sink.partition_writer import start_producer, write_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from benchmarks.setting import Setting
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.producer.kafka_producer import KafkaProducer
    from spark_kafka_sink.record.refused_rows import RefusedRows

PARTITIONS = 4
#: As many rows as Spark hands over at once, and as many of those as a task gets here.
BATCH_ROWS = 10_000
BATCHES = 40
BAD_EVERY = 100
#: Of the time that clean rows take without the option.
CLEAN_TARGET = 1.01
BAD_TARGET = 1.1
BASE = "clean rows, without onError"
_ROUNDS = 3
#: As many as in the other writes of Spark.
SPARK_PARTITIONS = 6
_IS_BAD = f"id % {BAD_EVERY} = {BAD_EVERY // 2}"
AVRO = {"valueFormat": "avro", "valueSchema": text(ORDER)}
CODEC = {"kafka.compression.type": "lz4"}


class Rows(Enum):
    """What is written."""

    CLEAN = 1
    #: 1 % of the rows are bad.
    BAD = 2
    #: Those without the bad ones, and as many good ones that are equal to their dead letters.
    LETTERS = 3


class Case(NamedTuple):
    """A way to write."""

    rows: Rows
    #: None without the option; else whether there are dead letters.
    letters: bool | None
    #: The most time that whole jobs, and tasks alone, may take, compared with the first. Clean jobs
    #: differ by less than a job from the next; None where nothing is demanded.
    job_target: float | None
    task_target: float | None


DLQ = "1 % bad rows, onError=dlq"
EQUAL = "99 % of the rows, and records equal to the letters"
CASES = {
    BASE: Case(Rows.CLEAN, None, None, None),
    "clean rows, onError=dlq": Case(Rows.CLEAN, True, None, CLEAN_TARGET),
    "1 % bad rows, onError=skip": Case(Rows.BAD, False, BAD_TARGET, BAD_TARGET),
    DLQ: Case(Rows.BAD, True, BAD_TARGET, None),
    EQUAL: Case(Rows.LETTERS, None, None, None),
}
#: Dead letters are written so many at a time; so are the records that are equal to them.
_LETTERS_AT_ONCE = 1_000
_BATCHES_PER_LETTERS = _LETTERS_AT_ONCE * BAD_EVERY // BATCH_ROWS


class _OneProducer:
    """The producer of all tasks; implements `Producers`."""

    def __init__(self, config: ProducerConfig) -> None:
        self.producer = start_producer(config)

    def take(self) -> KafkaProducer:
        return self.producer

    def finished(self, producer: KafkaProducer) -> None:
        """Keep it."""

    def failed(self, producer: KafkaProducer) -> None:
        """Keep it: the benchmark ends with the error."""


def run(setting: Setting) -> None:
    """Measure plain columns, and values that are encoded: whole jobs, and a task alone."""
    _compare_jobs(setting, "plain columns", _spark_plain, {})
    _compare_jobs(setting, "values in Avro", _spark_orders, AVRO)
    # Each task with bad rows logs a line.
    logging.getLogger("spark_kafka_sink.spark.sink.dead_letters").setLevel(logging.ERROR)
    _compare(setting, "plain columns", plain_batch, _unchanged)
    _compare(setting, "values in Avro", order_batch, _encoded_orders)


def plain_batch(*, has_bad_rows: bool) -> pa.RecordBatch:
    """Return rows; some have a partition that the topic lacks."""
    partitions = [row % PARTITIONS for row in range(BATCH_ROWS)]
    if has_bad_rows:
        partitions[BAD_EVERY // 2 :: BAD_EVERY] = [99] * (BATCH_ROWS // BAD_EVERY)
    return pa.record_batch(
        {
            "key": [f"{row:012}" for row in range(BATCH_ROWS)],
            "value": ["x" * 100] * BATCH_ROWS,
            "partition": pa.array(partitions, pa.int32()),
        }
    )


def order_batch(*, has_bad_rows: bool) -> pa.RecordBatch:
    """Return orders; some have no id, although the schema demands one."""
    values = orders().slice(0, BATCH_ROWS)
    columns = values.flatten()
    if has_bad_rows:
        is_bad = pa.array([row % BAD_EVERY == BAD_EVERY // 2 for row in range(BATCH_ROWS)])
        ids = [None if bad else row for row, bad in enumerate(is_bad.to_pylist())]
        columns[0] = pa.array(ids, pa.int64())
    names = [field.name for field in values.type]
    return pa.record_batch({"value": pa.StructArray.from_arrays(columns, names)})


def _unchanged(batches: list[pa.RecordBatch], _: RefusedRows | None) -> Iterator[pa.RecordBatch]:
    yield from batches


def _encoded_orders(
    batches: list[pa.RecordBatch], refused: RefusedRows | None
) -> Iterator[pa.RecordBatch]:
    call = FormatArguments(
        key_format=None,
        value_format="avro",
        key_schema=None,
        value_schema=json.dumps(ORDER),
        schema_registry=None,
        format_options=None,
    ).of_write()
    types = {"value": batches[0].column("value").type}
    schemas = schemas_to_write(types, call.formats, call.registry, "orders", is_dry_run=True)
    first_row = 0
    for batch in batches:
        yield from encoded(batch, schemas, call.formats, first_row, refused)
        first_row += batch.num_rows


def _spark_plain(setting: Setting, *, has_bad_rows: bool) -> DataFrame:
    """Return the rows of `plain_batch` for Spark."""
    partition = f"id % {PARTITIONS}"
    if has_bad_rows:
        partition = f"if({_IS_BAD}, 99, {partition})"
    rows = setting.spark.range(0, setting.rows, numPartitions=SPARK_PARTITIONS)
    return rows.selectExpr(
        "lpad(cast(id as string), 12, '0') as key",
        "repeat('x', 100) as value",
        f"cast({partition} as int) as partition",
    )


def _spark_orders(setting: Setting, *, has_bad_rows: bool) -> DataFrame:
    """Return the rows of `order_batch` for Spark."""
    df = spark_orders(setting.spark, setting.rows, SPARK_PARTITIONS)
    if not has_bad_rows:
        return df
    return df.selectExpr("value.id as id", "value").selectExpr(
        f"struct(if({_IS_BAD}, null, id) as id, value.customer as customer, "
        "value.amount as amount, value.paid as paid, value.note as note) as value"
    )


def _compare_jobs(
    setting: Setting,
    what: str,
    rows_of: Callable[..., DataFrame],
    options: Mapping[str, str],
) -> None:
    """Measure how long Spark takes to write clean rows, and rows with 1 % bad ones."""
    frames = {
        rows: rows_of(setting, has_bad_rows=rows is Rows.BAD).persist()
        for rows in (Rows.CLEAN, Rows.BAD)
    }
    for rows, df in frames.items():
        progress(f"preparing {setting.rows:,} {rows.name.lower()} rows")
        df.count()

    def write(case: Case) -> Trial:
        kafka = setting.kafka
        topics = [kafka.create_topic(PARTITIONS), kafka.create_topic(1)]
        on_error = {}
        if case.letters is not None:
            on_error = {"onError": "dlq" if case.letters else "skip", "maxErrors": "2%"}
        if case.letters:
            on_error["dlqTopic"] = topics[1]
        writer = frames[case.rows].write.format("pykafka").mode("append").options(**CODEC)
        writer = writer.options(**options, **on_error, topic=topics[0])
        servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
        with trial(setting.rows, exclude=setting.broker_processes) as result:
            writer.options(**servers).save()
        bad = setting.rows // BAD_EVERY if case.rows is Rows.BAD else 0
        setting.check_count(topics[0], setting.rows - bad)
        setting.check_count(topics[1], bad if case.letters else 0)
        kafka.delete_topics(topics)
        return result

    contestants = {name: partial(write, case) for name, case in CASES.items() if name != EQUAL}
    trials = alternate(contestants, rounds=setting.rounds)
    for df in frames.values():
        df.unpersist()
    heading(f"df.write, {what}, {setting.rows:,} rows, lz4, medians of {setting.rounds} rounds")
    lines = []
    for name, those in trials.items():
        seconds = median(one.seconds / base.seconds for one, base in _pairs(those, trials[BASE]))
        cpu = median(
            one.cpu_seconds / base.cpu_seconds for one, base in _pairs(those, trials[BASE])
        )
        target = CASES[name].job_target
        lines.append(
            [
                name,
                f"{median(one.seconds for one in those):.2f}",
                "" if name == BASE else f"{seconds:.3f}x",
                "" if target is None else verdict(seconds, at_most=target),
                "" if name == BASE else f"{cpu:.3f}x",
            ]
        )
    table(["", "seconds", "to the first", "target", "CPU, to the first"], lines)


def _pairs(those: list[Trial], others: list[Trial]) -> Iterator[tuple[Trial, Trial]]:
    return zip(those, others, strict=True)


def _compare(
    setting: Setting,
    what: str,
    batch_of: Callable[..., pa.RecordBatch],
    encode: Callable[[list[pa.RecordBatch], RefusedRows | None], Iterator[pa.RecordBatch]],
) -> None:
    topic = setting.kafka.create_topic(PARTITIONS)
    letters = setting.kafka.create_topic(1)
    given = {"kafka.bootstrap.servers": setting.kafka.bootstrap_servers, "topic": topic}
    config = SinkOptions.from_mapping(given).producer
    producers = _OneProducer(config)
    batches = {
        Rows.CLEAN: batch_of(has_bad_rows=False),
        Rows.BAD: batch_of(has_bad_rows=True),
    }
    places = pa.array([row for row in range(BATCH_ROWS) if row % BAD_EVERY != BAD_EVERY // 2])
    batches[Rows.LETTERS] = batches[Rows.CLEAN].take(places)

    def write(case: Case, equal: pa.RecordBatch | None = None) -> float:
        bad_rows = None
        if case.letters is not None:
            options = OnErrorOptions(ErrorLimit(None, 1.0), letters if case.letters else None)
            bad_rows = BadRowWriter(options, RowOrigin(0), config, topic)
        refused = None if bad_rows is None else bad_rows.refused
        rows = encode([batches[case.rows]] * BATCHES, refused)
        if equal is not None:
            rows = _with_letters(rows, equal)
        began = time.thread_time()
        write_rows(rows, producers=producers, topic=topic, config=config, bad_rows=bad_rows)
        return (time.thread_time() - began) / (BATCHES * BATCH_ROWS) * 1e9

    write(CASES[DLQ])
    equal = _letters_of(setting, letters)
    rounds = _ROUNDS * setting.rounds
    contestants = {name: partial(write, case) for name, case in CASES.items()}
    contestants[EQUAL] = partial(write, CASES[EQUAL], equal)
    times = alternate(contestants, rounds=rounds)
    producers.producer.close()
    written = BATCHES * BATCH_ROWS * (rounds + 1)
    bad = written // BAD_EVERY
    first_bad = BATCHES * BATCH_ROWS // BAD_EVERY
    first_good = BATCHES * BATCH_ROWS - first_bad
    setting.check_count(topic, first_good + len(CASES) * written - 2 * bad)
    setting.check_count(letters, first_bad + bad)
    setting.kafka.delete_topics([topic, letters])
    heading(f"a task's rows, {what}, medians of {rounds} rounds of {BATCHES * BATCH_ROWS:,} rows")
    lines = []
    for name, case in CASES.items():
        ratios = [one / base for one, base in zip(times[name], times[BASE], strict=True)]
        target = case.task_target
        judged = "" if target is None else verdict(median(ratios), at_most=target)
        ratio = "" if name == BASE else f"{median(ratios):.3f}x"
        lines.append([name, f"{median(times[name]):.1f}", ratio, judged])
    table(["", "ns per row", "to the first", "target"], lines)
    ratio = median(one / other for one, other in zip(times[DLQ], times[EQUAL], strict=True))
    print(f"onError=dlq takes {ratio:.3f} times as long as good rows equal to the letters.")


def _with_letters(
    rows: Iterator[pa.RecordBatch], letters: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    """Yield batches, and after as many as have that many bad rows the records of `letters`."""
    for number, batch in enumerate(rows, 1):
        yield batch
        if number % _BATCHES_PER_LETTERS == 0:
            yield letters


def _letters_of(setting: Setting, topic: str) -> pa.RecordBatch:
    """Return dead letters as rows."""
    servers = setting.kafka.bootstrap_servers
    with KafkaConsumer({"bootstrap.servers": servers, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[pa.Table] = []
        while sum(map(len, found)) < _LETTERS_AT_ONCE:
            found.append(
                consumer.poll_arrow(10, columns=["key", "value", "headers"], include_headers=True)
            )
    [letters] = pa.concat_tables(found)[:_LETTERS_AT_ONCE].combine_chunks().to_batches()
    return letters
