"""Java's Avro and Spark's schema converter, of the jars that PySpark brings."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tests.support.java.quick_java import QUICK_OPTIONS
from tests.support.kafka.kafka_files import java_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.formats.avro_cases import Case

_SECONDS = 600
_JARS = Path(pyspark.__file__).parent / "jars"
_SOURCE = Path(__file__).with_name("AvroOracle.java")


def rows_of_java(cases: Sequence[Case]) -> list[list[str]]:
    """Return for each case what Java reads of each payload; see `AvroOracle.java`."""
    lines = []
    for case in cases:
        lines += [case.writer, case.reader, " ".join(data.hex() for data in case.payloads)]
    return [answer.split("\t") for answer in _ask("rows", lines)]


def types_of_spark(schemas: Sequence[str]) -> list[str]:
    """Return the JSON of each schema's type in Spark, and whether it is nullable."""
    return _ask("types", schemas)


def _ask(question: str, lines: Sequence[str]) -> list[str]:
    command = [java_command(), *QUICK_OPTIONS, "-cp", f"{_JARS}/*", str(_SOURCE), question]
    done = subprocess.run(  # noqa: S603  # our own command
        command,
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        encoding="utf-8",
        timeout=_SECONDS,
        check=False,
    )
    assert 0 == done.returncode, done.stderr[-4000:]
    return done.stdout.splitlines()
