"""The fuzz target for the compiled decoder: it must see what the slow decoder sees."""

from __future__ import annotations

import random
import struct

from tests.support.record.reading.compared_decoders import compare_decoders, compare_streams
from tests.support.record.reading.random_answers import random_answer, random_reading

_SEED_BYTES = 4
#: The answers of one input.
ANSWERS = 8


class DecoderTarget:
    """Answers with record batches; the first bytes choose columns, range and limits."""

    name = "decoder"

    def make(self, random_: random.Random) -> bytes:
        """Return several answers, some of them damaged, each preceded by its size."""
        answers = [random_answer(random_) for _ in range(ANSWERS)]
        return random_.randbytes(_SEED_BYTES) + b"".join(
            struct.pack(">H", len(answer)) + answer for answer in answers
        )

    def take(self, data: bytes) -> None:
        """Decode the answers as a stream, and the first one twice, into the same memory."""
        reading = random_reading(random.Random(data[:_SEED_BYTES]))
        answers = _split(data[_SEED_BYTES:])
        compare_streams(answers, reading)
        compare_decoders(answers[:1] * 2, reading)


def _split(data: bytes) -> list[bytes]:
    answers = []
    while len(data) >= 2 and len(answers) < ANSWERS:
        (size,) = struct.unpack_from(">H", data)
        answers.append(data[2 : 2 + size])
        data = data[2 + size :]
    return answers
