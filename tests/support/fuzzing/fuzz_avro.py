"""The fuzz target for the compiled decoder of Avro: it must see what the interpreter sees."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.plan import make_plan
from spark_kafka_sink.formats.avro.schema import parse_schema
from tests.support.formats.avro_cases import make_case
from tests.support.formats.compared_avro import compare_decoders, damage

if TYPE_CHECKING:
    import random

    from spark_kafka_sink.formats.avro.plan import Plan

#: The schemas are made from this many seeds, so that inputs which differ meet the same one.
_SCHEMAS = 500
#: The payloads of one input.
_PAYLOADS = 6


class AvroTarget:
    """Payloads of Avro; the first bytes choose the schemas and the size of the outputs."""

    name = "avro"

    def make(self, random_: random.Random) -> bytes:
        """Return several payloads, most of them damaged, each preceded by its size."""
        seed = random_.randrange(_SCHEMAS)
        payloads = make_case(seed, payloads=_PAYLOADS).payloads
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
        plan = _plan(seed % _SCHEMAS)
        if plan is not None:
            compare_decoders(plan, _split(data[3:]), 32 << few_bytes % 16)


@lru_cache(_SCHEMAS)
def _plan(seed: int) -> Plan | None:
    case = make_case(seed, payloads=0)
    try:
        return make_plan(parse_schema(case.writer), parse_schema(case.reader))
    except SchemaError:
        return None


def _split(data: bytes) -> list[bytes | None]:
    payloads: list[bytes | None] = [None]
    while len(data) >= 2 and len(payloads) <= _PAYLOADS:
        (size,) = struct.unpack_from(">H", data)
        payloads.append(data[2 : 2 + size])
        data = data[2 + size :]
    return payloads
