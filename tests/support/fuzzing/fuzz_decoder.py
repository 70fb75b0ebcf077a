"""The fuzz target for the compiled decoder: it must see what the slow decoder sees."""

from __future__ import annotations

import random

from tests.support.record.reading.compared_decoders import compare_decoders
from tests.support.record.reading.random_answers import random_answer, random_reading

_SEED_BYTES = 4


class DecoderTarget:
    """Answers with record batches; the first bytes choose columns, range and limits."""

    name = "decoder"

    def make(self, random_: random.Random) -> bytes:
        """Return an answer, in many cases a damaged one."""
        return random_.randbytes(_SEED_BYTES) + random_answer(random_)

    def take(self, data: bytes) -> None:
        """Decode the answer twice, first into new memory and then into the same memory."""
        reading = random_reading(random.Random(data[:_SEED_BYTES]))
        answer = data[_SEED_BYTES:]
        compare_decoders([answer, answer], reading)
