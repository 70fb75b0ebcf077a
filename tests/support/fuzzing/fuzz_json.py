"""A fuzz target for the compiled decoder of JSON, compared with its interpreter."""

from __future__ import annotations

import random
import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from spark_kafka_sink.formats.json.plan import make_plan
from tests.support.formats.compared_json import compare_decoders
from tests.support.formats.json_cases import damage, make_text, make_type
from tests.support.fuzzing.fuzz_avro import split_payloads

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


@lru_cache(maxsize=_TYPES)
def _plan(seed: int) -> Plan:
    return make_plan(make_type(random.Random(seed)))
