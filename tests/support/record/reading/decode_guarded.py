"""Decode random answers between guarded pages: an access outside of a buffer ends the process.

Run as a program, with a seed and a number of answers.
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from types import SimpleNamespace

import numpy as np

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.arrow import record_decoder
from tests.support.record.reading.fetched_rows import PARTITION, TOPIC
from tests.support.record.reading.guarded_memory import guarded_array
from tests.support.record.reading.random_answers import random_answer, random_reading


def guarded(data: bytes, *, at_end: bool):
    """Copy bytes to the end or the beginning of guarded memory."""
    array = guarded_array(len(data), at_end=at_end)
    array[:] = np.frombuffer(data, np.uint8)
    return array


def main(seed: int, answers: int) -> None:
    """Decode the answers, from guarded memory into guarded memory."""
    random_ = random.Random(seed)
    at_end = random_.random() < 0.5
    decompress = record_decoder.decompress
    # Arrays that are not copied from elsewhere end at a guarded page.
    record_decoder.np = SimpleNamespace(**{**vars(np), "empty": guarded_array})
    record_decoder.decompress = lambda *arguments: guarded(
        bytes(decompress(*arguments)), at_end=at_end
    )
    for _ in range(answers):
        reading = random_reading(random_)
        decoder = record_decoder.RecordDecoder(
            reading.schema,
            TOPIC,
            PARTITION,
            max_rows=reading.max_rows,
            max_bytes=reading.max_bytes,
            max_uncompressed_bytes=1 << 20,
        )
        at_end = random_.random() < 0.5
        data = guarded(random_answer(random_), at_end=at_end)
        with suppress(CorruptRecordError):
            index = decoder.index(data, 0)
            for _ in decoder.decode(
                data, index, start=reading.start, end=reading.end, aborted=reading.aborted
            ):
                pass
        decoder.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    print("done")  # noqa: T201  the last line that a crash would prevent
