"""Write the answers of golden/java_fetches.json; golden/FetchGoldens.java adds what Java reads.

Run as a program, with the directory of the file.
"""

from __future__ import annotations

import json
import random
import sys
from contextlib import suppress
from pathlib import Path

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.arrow.schema import arrow_schema
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.record.reading.fetched_rows import complete_batches, fetched_rows
from tests.support.record.reading.random_answers import random_answer, random_reading

_CASES = 70
_MOST_BYTES = 700
_COLUMNS = arrow_schema(include_headers=True).names


def main(directory: Path) -> None:
    """Write small answers that are intact, and begin with the batch of the start, as brokers do."""
    cases = []
    random_ = random.Random(20261123)
    while len(cases) < _CASES:
        reading = random_reading(random_)
        answer = random_answer(random_)
        start = random_.randrange(4)
        if len(answer) > _MOST_BYTES:
            continue
        with suppress(CorruptRecordError):
            batches = complete_batches(answer)
            rows = list(
                fetched_rows(
                    answer, columns=_COLUMNS, start=start, end=2**62, aborted=reading.aborted
                )
            )
            if rows and decode_header(batches[0]).last_offset >= start:
                case = {"answer": answer.hex(), "start": start, "aborted": reading.aborted}
                cases.append(json.dumps(case))
    (directory / "java_fetches.json").write_text("[\n" + ",\n".join(cases) + "\n]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
