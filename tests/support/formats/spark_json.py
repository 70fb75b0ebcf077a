"""JSON as Spark itself reads and writes it, beside what the compiled kernels make of it."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink.formats.json.decoder import Decoder
from spark_kafka_sink.formats.json.encode_plan import make_encode_plan
from spark_kafka_sink.formats.json.encoder import Encoder
from spark_kafka_sink.formats.json.plan import make_plan
from tests.support.formats.arrow_rows import rows_of
from tests.support.formats.compared_avro import problems_of
from tests.support.formats.json_cases import damage, make_text, make_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CORRUPT = "_corrupt"


class ReadCase(NamedTuple):
    """One payload: what both made of it."""

    payload: bytes
    row: Any
    #: Why it was refused; None if it was not.
    problem: str | None
    spark_row: Any
    is_refused_by_spark: bool


def read_cases(spark: SparkSession, seed: int, texts: int) -> list[ReadCase]:
    """Return what both make of random payloads for a random type, some of them damaged."""
    rng = random.Random(seed)
    kind = make_type(rng)
    if not pa.types.is_struct(kind):
        kind = pa.struct([("r", kind)])
    right = [make_text(rng, kind, strict=rng.random() < 0.5).encode() for _ in range(texts)]
    payloads = [text if rng.random() < 0.7 else damage(rng, text) for text in right]
    plan = make_plan(kind)
    rows, problems = [], {}
    for output in Decoder(plan).decode(pa.array(payloads, pa.binary())):
        rows += rows_of(plan.column, output.values)
        problems |= problems_of(output)
    schema = from_arrow_type(kind, prefer_timestamp_ntz=True)
    wanted = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    column = sql.from_json(sql.col("v").cast("string"), wanted, options)
    frame = spark.createDataFrame([(payload,) for payload in payloads], "v binary")
    bad = sql.col(f"r.{_CORRUPT}").isNotNull().alias("bad")
    answer = frame.coalesce(1).select(column.alias("r")).select("r", bad).toArrow()
    read, corrupt = answer["r"].combine_chunks(), answer["bad"].to_pylist()
    parts = [
        rows_of(child, read.field(number)) for number, child in enumerate(plan.column.children)
    ]
    names = [field.name for field in kind]
    present = read.is_valid().to_pylist()
    spark_rows = [
        {name: values[row] for name, values in zip(names, parts, strict=True)}
        for row in range(len(payloads))
    ]
    return [
        ReadCase(
            payload,
            rows[row],
            problems.get(row),
            spark_rows[row],
            corrupt[row] or not present[row],
        )
        for row, payload in enumerate(payloads)
    ]


def plain(value: Any) -> str:
    """Return a value with each key of a map once, as text, in which NaN is equal to itself.

    And so is zero, as Spark reads the integer -0 without its sign.
    """
    return re.sub(r"-0\.0(?![0-9])", "0.0", repr(_plain(value)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) for item in value):
            return [(key, _plain(part)) for key, part in dict(value).items()]
        return [_plain(item) for item in value]
    return value


def written_texts(spark: SparkSession, seed: int, rows: int) -> list[tuple[str, str]]:
    """Return our text and that of `to_json` for random rows of a random type."""
    rng = random.Random(seed)
    kind = make_type(rng)
    payloads = [make_text(rng, kind, strict=True).encode() for _ in range(rows)]
    [output] = Decoder(make_plan(kind)).decode(pa.array(payloads, pa.binary()))
    assert {} == problems_of(output)
    ours = Encoder(make_encode_plan(kind)).encode(output.values).to_pylist()
    schema = StructType([StructField("v", from_arrow_type(kind, prefer_timestamp_ntz=True))])
    frame = spark.createDataFrame(pa.table({"v": output.values}), schema)
    theirs = [row.j for row in frame.coalesce(1).select(sql.to_json("v").alias("j")).collect()]
    return list(zip((text.decode() for text in ours), theirs, strict=True))


def in_milliseconds(text: str) -> str:
    """Return a text with the fractions of seconds cut, as `to_json` does."""
    return re.sub(r"(T[0-9:]{8}\.[0-9]{3})[0-9]{3}", r"\1", text)
