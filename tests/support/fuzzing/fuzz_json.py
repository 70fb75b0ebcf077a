"""Fuzz targets for the compiled decoder and encoder of JSON, compared with their oracles."""

from __future__ import annotations

import json
import random
import struct
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_kafka_sink.errors import PayloadError, SchemaError
from spark_kafka_sink.formats.json.encode_plan import make_encode_plan
from spark_kafka_sink.formats.json.encoder import Encoder
from spark_kafka_sink.formats.json.plan import make_plan
from tests.support.formats import json_writer
from tests.support.formats.compared_json import compare_decoders
from tests.support.formats.encode_cases import make_encode_case
from tests.support.formats.json_cases import damage, make_text, make_type
from tests.support.fuzzing.fuzz_avro import change_references, seed_and_changes, split_payloads

if TYPE_CHECKING:
    from spark_kafka_sink.formats.json.plan import Plan

#: The types are made from this many seeds, so that inputs which differ meet the same one.
_TYPES = 500
#: The payloads of one input.
_PAYLOADS = 6


class JsonTarget:
    """Payloads of JSON; the first bytes choose the type and the size of the outputs."""

    name = "json"

    def make(self, random_: random.Random) -> bytes:
        """Return several payloads, most of them damaged, each preceded by its size."""
        seed = random_.randrange(_TYPES)
        kind = make_type(random.Random(seed))
        payloads = [make_text(random_, kind).encode() for _ in range(_PAYLOADS)]
        payloads = [
            damage(random_, payload) if random_.random() < 0.8 else payload for payload in payloads
        ]
        return struct.pack(">HB", seed, random_.randrange(256)) + b"".join(
            struct.pack(">H", len(payload)) + payload for payload in payloads
        )

    def take(self, data: bytes) -> None:
        """Decode the payloads with the compiled decoder and the interpreter."""
        if len(data) < 3:
            return
        seed, few_bytes = struct.unpack_from(">HB", data)
        plan = _plan(seed % _TYPES)
        compare_decoders(plan, split_payloads(data[3:]), 32 << few_bytes % 16)


class JsonEncoderTarget:
    """Columns of Arrow in any layout; the inputs are those of the encoder of Avro."""

    name = "jsonencoder"

    def make(self, random_: random.Random) -> bytes:
        """Return a seed and, half of the time, some changes."""
        return seed_and_changes(random_)

    def take(self, data: bytes) -> None:
        """Encode the column, and compare the texts with the oracle's; changed ones are JSON."""
        case = make_encode_case(int.from_bytes(data[:4], "big"))
        array = pa.StructArray.from_arrays([case.array], names=["a"])
        try:
            encoder = Encoder(make_encode_plan(array.type))
        except SchemaError:
            return
        is_changed = change_references(case.array, data[4:])
        try:
            encoded = encoder.encode(array)
        except PayloadError:
            if not is_changed:
                raise
            return
        encoded.validate(full=True)
        texts = [text.decode() for text in encoded.to_pylist()]
        if is_changed:
            for text in texts:
                json.loads(text)
            return
        expected = [json_writer.encode(array.type, {"a": row}) for row in case.rows]
        if texts != expected:
            raise RuntimeError(f"{texts} instead of {expected}")


@lru_cache(maxsize=_TYPES)
def _plan(seed: int) -> Plan:
    return make_plan(make_type(random.Random(seed)))
