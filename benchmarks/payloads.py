"""The rows that are written: small JSON documents, each partly incompressible."""

from __future__ import annotations

import random
from functools import cache
from itertools import cycle, islice
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 10_000
#: Size of the value, or of key and value, that encodes to a record of 119 bytes.
RECORD_BYTES = 110
KEY_BYTES = 10
SPARK_ROW_BYTES = 90
#: Of rows with a note.
NOTED_ROW_BYTES = 110


@cache
def documents(count: int, size: int) -> tuple[bytes, ...]:
    """Return documents of exactly `size` bytes, the same in every run; they are cached."""
    chance = random.Random(1)
    made = []
    for i in range(count):
        text = (
            f'{{"order":{i:08d},"article":"{chance.getrandbits(48):012x}",'
            f'"quantity":{i % 9 + 1},"paid":true,"eur":{i * 7 % 10_000:05d},"note":"'
        )
        made.append((text + "x" * (size - len(text) - 2) + '"}').encode())
    return tuple(made)


def repeated_documents(count: int) -> islice[bytes]:
    """Iterate over `count` values of `RECORD_BYTES`, repeating the same documents."""
    return islice(cycle(documents(BATCH_ROWS, RECORD_BYTES)), count)


@cache
def record_batch(*, key: bool, headers: int = 0) -> pa.RecordBatch:
    """Return a batch of records of 119 bytes each, plus `headers` headers."""
    value_bytes = RECORD_BYTES - (KEY_BYTES if key else 0)
    columns = {"value": pa.array(documents(BATCH_ROWS, value_bytes), pa.binary())}
    if key:
        keys = [b"key-%06d" % (i * 7919 % 1_000_000) for i in range(BATCH_ROWS)]
        columns["key"] = pa.array(keys, pa.binary())
    if headers:
        element = pa.struct([("key", pa.string()), ("value", pa.binary())])
        row = [{"key": f"name-{i}", "value": b"a value of 20 bytes."} for i in range(headers)]
        columns["headers"] = pa.array([row] * BATCH_ROWS, pa.list_(element))
    return pa.record_batch(columns)


def spark_rows(
    spark: SparkSession, rows: int, *, has_note: bool = False, partitions: int | None = None
) -> DataFrame:
    """Return a DataFrame of keys and values with 90 bytes per row, or 110 with a note."""
    note = ',"note":"xxxxxxxxxxxx"' if has_note else ""
    return spark.range(0, rows, numPartitions=partitions).selectExpr(
        "lpad(cast(id * 7919 % 100000000 as string), 8, '0') as key",
        f"""concat(
            '{{"order":', lpad(cast(id as string), 8, '0'),
            ',"article":"', substr(md5(cast(id as string)), 1, 12),
            '","quantity":', cast(id % 9 + 1 as string),
            ',"paid":true,"eur":', lpad(cast(id * 7 % 10000 as string), 5, '0'), '{note}}}'
        ) as value""",
    )
