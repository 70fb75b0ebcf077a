"""What bad rows cost a task: `onError` on clean rows, and 1 % bad rows, skipped or as dead letters.

The rows are written as a task of Spark writes them, but without Spark: keys, values of a hundred
bytes and partitions, and orders that are encoded as Avro. Measured is the processor time of the
writing thread, which does all that bad rows add. All cases take turns, and the ratios are those to
the writes without the option in the same round.
"""

from __future__ import annotations

import json
import logging
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from benchmarks.format_payloads import ORDER, orders
from benchmarks.measuring import alternate, heading, table, verdict
from spark_kafka_sink.config.format_arguments import FormatArguments
from spark_kafka_sink.config.sink_options import ErrorLimit, OnErrorOptions, SinkOptions
from spark_kafka_sink.formats.payload_encoder import encoded
from spark_kafka_sink.formats.payload_schemas import schemas_to_write
from spark_kafka_sink.spark.sink.dead_letters import BadRowWriter, RowOrigin
from spark_kafka_sink.spark.sink.partition_writer import start_producer, write_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


class Case(NamedTuple):
    """A way to write."""

    has_bad_rows: bool
    #: None without the option; else whether there are dead letters.
    letters: bool | None


CASES = {
    BASE: Case(has_bad_rows=False, letters=None),
    "clean rows, onError=dlq": Case(has_bad_rows=False, letters=True),
    "1 % bad rows, onError=skip": Case(has_bad_rows=True, letters=False),
    "1 % bad rows, onError=dlq": Case(has_bad_rows=True, letters=True),
}


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
    """Measure plain columns, and values that are encoded."""
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
    batches = {bad: batch_of(has_bad_rows=bad) for bad in (False, True)}

    def write(case: Case) -> float:
        bad_rows = None
        if case.letters is not None:
            options = OnErrorOptions(ErrorLimit(None, 1.0), letters if case.letters else None)
            bad_rows = BadRowWriter(options, RowOrigin(0), config, topic)
        refused = None if bad_rows is None else bad_rows.refused
        rows = encode([batches[case.has_bad_rows]] * BATCHES, refused)
        began = time.thread_time()
        write_rows(rows, producers=producers, topic=topic, config=config, bad_rows=bad_rows)
        return (time.thread_time() - began) / (BATCHES * BATCH_ROWS) * 1e9

    rounds = _ROUNDS * setting.rounds
    times = alternate({name: partial(write, case) for name, case in CASES.items()}, rounds=rounds)
    producers.producer.close()
    written = BATCHES * BATCH_ROWS * (rounds + 1)
    bad = written // BAD_EVERY
    setting.check_count(topic, len(CASES) * written - 2 * bad)
    setting.check_count(letters, bad)
    setting.kafka.delete_topics([topic, letters])
    heading(f"a task's rows, {what}, medians of {rounds} rounds of {BATCHES * BATCH_ROWS:,} rows")
    lines = []
    for name, case in CASES.items():
        ratios = [one / base for one, base in zip(times[name], times[BASE], strict=True)]
        target = BAD_TARGET if case.has_bad_rows else CLEAN_TARGET
        ratio = median(ratios)
        judged = ["", ""] if name == BASE else [f"{ratio:.3f}x", verdict(ratio, at_most=target)]
        lines.append([name, f"{median(times[name]):.1f}", *judged])
    table(["", "ns per row", "to the first", "target"], lines)
