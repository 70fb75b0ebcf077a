"""The compiled encoders and decoders of Avro and JSON alone, on one core, beside others."""

from __future__ import annotations

import io
import json
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.json as arrow_json

from benchmarks.format_payloads import (
    BATCH_ROWS,
    EVOLVED,
    NESTED,
    OLD_ORDER,
    ORDER,
    WIDE,
    nested,
    old_orders,
    orders,
    text,
    version_of_order,
    versioned_orders,
    wide,
)
from benchmarks.measuring import MILLION, alternate, heading, table, verdict
from spark_kafka_sink.formats.avro.decoder import Decoder
from spark_kafka_sink.formats.avro.encode_plan import make_encode_plan
from spark_kafka_sink.formats.avro.encoder import Encoder
from spark_kafka_sink.formats.avro.plan import make_plan
from spark_kafka_sink.formats.avro.schema import parse_schema
from spark_kafka_sink.formats.json import encode_plan as json_encode_plan
from spark_kafka_sink.formats.json import encoder as json_encoder
from spark_kafka_sink.formats.payload_decoder import JsonPayloadDecoder, PayloadDecoder
from spark_kafka_sink.registry.framing import PREFIX_BYTES, prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.setting import Setting

#: What is measured: the decoder alone; with the schema that each payload names, as in a read; and
#: the encoder. With targets for orders, in million rows per second of processor time.
TARGETS: dict[str, float | None] = {"decode": 12.0, "by id": None, "encode": 20.0}
MANY_IDS = 10
#: How often a batch is decoded or encoded in one measurement.
_BATCHES = 20
#: Of a batch, since fastavro is slow.
_FASTAVRO_ROWS = 2_000
_FIVE = "five fields"


class Shape(NamedTuple):
    """Values to encode, and what reads them; each is by the schema whose id is its position."""

    writers: list[dict[str, Any]]
    values: list[pa.StructArray]
    reader: dict[str, Any]


def shapes() -> dict[str, Shape]:
    """Return the shapes of records by their names; the first has targets."""
    versions = range(MANY_IDS)
    return {
        _FIVE: Shape([ORDER], [orders()], ORDER),
        "nested": Shape([NESTED], [nested()], NESTED),
        f"{len(WIDE['fields'])} fields": Shape([WIDE], [wide()], WIDE),
        "evolved": Shape([OLD_ORDER], [old_orders()], EVOLVED),
        f"{MANY_IDS} ids": Shape(
            list(map(version_of_order, versions)), list(map(versioned_orders, versions)), ORDER
        ),
    }


def run(setting: Setting) -> None:
    """Measure both directions of each shape, in turns."""
    runs = {}
    for name, shape in shapes().items():
        runs |= checked_runs(name, shape)
    runs |= checked_json_runs(orders())
    rounds = 3 * setting.rounds
    rates = {key: median(found) for key, found in alternate(runs, rounds=rounds).items()}
    heading(
        f"Avro and JSON, batches of {BATCH_ROWS:,} rows, medians of {rounds} rounds, "
        "million rows per second of processor time"
    )
    lines = []
    for name in dict.fromkeys(name for name, _ in runs):
        line = [name]
        for direction, target in TARGETS.items():
            rate = rates.get((name, direction))
            line.append("" if rate is None else f"{rate:.2f}")
            if target is not None:
                has_target = rate is not None and name == _FIVE
                line.append(verdict(rate or 0.0, at_least=target) if has_target else "")
        lines.append(line)
    table(["records", "decode", "target", "by id", "encode", "target"], lines)


def checked_runs(name: str, shape: Shape) -> dict[tuple[str, str], Callable[[], float]]:
    """Return what measures a shape by its name and direction, once its results were checked."""
    encoders = [_encoder(*pair) for pair in zip(shape.writers, shape.values, strict=True)]
    encoded = [
        encoder.encode(values, prefix(schema_id))
        for schema_id, (encoder, values) in enumerate(zip(encoders, shape.values, strict=True))
    ]
    payloads = _mixed(encoded)
    decoder = _decoder(shape)
    _check(shape, encoded, payloads, decoder)
    runs = {(name, "by id"): partial(_rate, partial(_decode, decoder, payloads))}
    if len(encoded) == 1:
        plan = make_plan(parse_schema(text(shape.writers[0])), parse_schema(text(shape.reader)))
        alone = partial(Decoder(plan).decode, payloads, PREFIX_BYTES)
        runs[name, "decode"] = partial(_rate, lambda: list(alone()))
    if shape.writers == [shape.reader]:
        runs[name, "encode"] = partial(
            _rate, partial(encoders[0].encode, shape.values[0], prefix(0))
        )
    if name == _FIVE:
        few = [payload.as_py() for payload in payloads[:_FASTAVRO_ROWS]]
        runs["fastavro", "decode"] = partial(_fastavro_decode_rate, few)
        rows = shape.values[0][:_FASTAVRO_ROWS].to_pylist()
        runs["fastavro", "encode"] = partial(_fastavro_encode_rate, rows)
    return runs


def checked_json_runs(values: pa.StructArray) -> dict[tuple[str, str], Callable[[], float]]:
    """Return what measures JSON, pyarrow's reader and Python's module, once rows are checked."""
    encoder = json_encoder.Encoder(json_encode_plan.make_encode_plan(values.type))
    payloads = encoder.encode(values)
    kind = pa.struct([field.with_nullable(True) for field in values.type])
    decoder = JsonPayloadDecoder(kind)
    [decoded] = decoder.decode(payloads)
    if len(decoded.malformed.rows) or decoded.values.to_pylist() != values.to_pylist():
        raise RuntimeError("rows are other ones after they were JSON")
    texts = payloads.to_pylist()
    lines = b"\n".join(texts)
    options = {
        "read_options": arrow_json.ReadOptions(use_threads=False, block_size=1 << 26),
        "parse_options": arrow_json.ParseOptions(explicit_schema=pa.schema(list(kind))),
    }
    rows = values.to_pylist()
    return {
        ("JSON", "decode"): partial(_rate, partial(_decode, decoder, payloads)),
        ("JSON", "encode"): partial(_rate, partial(encoder.encode, values)),
        ("pyarrow.json", "decode"): partial(
            _rate, lambda: arrow_json.read_json(io.BytesIO(lines), **options)
        ),
        ("json of Python", "decode"): partial(
            _few_rate, partial(map, json.loads), texts[:_FASTAVRO_ROWS]
        ),
        ("json of Python", "encode"): partial(
            _few_rate, partial(map, json.dumps), rows[:_FASTAVRO_ROWS]
        ),
    }


def _few_rate(convert: Callable[[list[Any]], Iterable[object]], items: list[Any]) -> float:
    started = time.process_time()
    for _ in convert(items):
        pass
    return len(items) / (time.process_time() - started) / MILLION


def _mixed(encoded: list[pa.Array]) -> pa.Array:
    """Return the payloads of one batch, taken by turns from several."""
    if len(encoded) == 1:
        return encoded[0]
    together = pa.concat_arrays(encoded)
    chosen = [row % len(encoded) * BATCH_ROWS + row for row in range(BATCH_ROWS)]
    return together.take(pa.array(chosen))


def _check(
    shape: Shape, encoded: list[pa.Array], payloads: pa.Array, decoder: PayloadDecoder
) -> None:
    """Raise RuntimeError unless payloads and rows are those of fastavro."""
    reader = fastavro.parse_schema(shape.reader)
    writers = [fastavro.parse_schema(writer) for writer in shape.writers]
    for writer, values, those in zip(writers, shape.values, encoded, strict=True):
        for row in range(10):
            written = io.BytesIO()
            fastavro.schemaless_writer(written, writer, _as_dicts(values[row].as_py()))
            if written.getvalue() != those[row].as_py()[PREFIX_BYTES:]:
                raise RuntimeError(f"row {row} of {writer['name']} is encoded otherwise")
    [decoded] = decoder.decode(payloads)
    if len(decoded.malformed.rows) or len(decoded.values) != BATCH_ROWS:
        raise RuntimeError(f"malformed: {decoded.malformed.reasons}")
    for row in range(0, BATCH_ROWS, BATCH_ROWS // 100):
        data = io.BytesIO(payloads[row].as_py()[PREFIX_BYTES:])
        expected = fastavro.schemaless_reader(data, writers[row % len(writers)], reader)
        if _as_dicts(decoded.values[row].as_py()) != expected:
            raise RuntimeError(f"row {row} of {reader['name']} is decoded otherwise")


def _as_dicts(value: Any) -> Any:
    """Return a value of Arrow with maps as fastavro has them."""
    if isinstance(value, dict):
        return {name: _as_dicts(item) for name, item in value.items()}
    if isinstance(value, list):
        pairs = all(isinstance(item, tuple) for item in value)
        return dict(value) if pairs else [_as_dicts(item) for item in value]
    return value


def _encoder(schema: dict[str, Any], values: pa.StructArray) -> Encoder:
    return Encoder(make_encode_plan(parse_schema(text(schema)), values.type))


def _decoder(shape: Shape) -> PayloadDecoder:
    writers = [parse_schema(text(writer)) for writer in shape.writers]
    return PayloadDecoder(parse_schema(text(shape.reader)), writers.__getitem__)


def _decode(decoder: PayloadDecoder | JsonPayloadDecoder, payloads: pa.Array) -> None:
    for _ in decoder.decode(payloads):
        pass


def _rate(run_once: Callable[[], object]) -> float:
    """Return million rows per second of the time that this process used its cores."""
    started = time.process_time()
    for _ in range(_BATCHES):
        run_once()
    return _BATCHES * BATCH_ROWS / (time.process_time() - started) / MILLION


def _fastavro_decode_rate(payloads: list[bytes]) -> float:
    schema = fastavro.parse_schema(ORDER)
    started = time.process_time()
    for payload in payloads:
        fastavro.schemaless_reader(io.BytesIO(payload[PREFIX_BYTES:]), schema, None)
    return len(payloads) / (time.process_time() - started) / MILLION


def _fastavro_encode_rate(rows: list[dict[str, Any]]) -> float:
    schema = fastavro.parse_schema(ORDER)
    started = time.process_time()
    for row in rows:
        fastavro.schemaless_writer(io.BytesIO(), schema, row)
    return len(rows) / (time.process_time() - started) / MILLION
