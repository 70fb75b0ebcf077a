"""What Java's Avro writes, and Spark's serializer and schema converter."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tests.support.java.quick_java import QUICK_OPTIONS
from tests.support.kafka.kafka_files import java_command

if TYPE_CHECKING:
    from collections.abc import Iterable

_SECONDS = 600
_JARS = Path(pyspark.__file__).parent / "jars"
_SOURCE = Path(__file__).with_name("AvroWriterOracle.java")


def rewritten_by_java(cases: Iterable[tuple[str, list[bytes]]]) -> list[list[bytes]]:
    """Return for each schema and its payloads what Java writes for the same values."""
    lines = []
    for schema, payloads in cases:
        lines += [schema, " ".join(data.hex() for data in payloads)]
    answers = _ask("rewrite", lines)
    return [[bytes.fromhex(data) for data in answer.split(" ")] for answer in answers]


def schemas_of_spark(types: Iterable[str]) -> list[str]:
    """Return the schema that Spark derives from the JSON of each type."""
    return _ask("derive", types)


def payloads_of_spark(lines: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the hex of what Spark's serializer makes of values, or "!" and a class.

    Each has the JSON of a type, a schema and the text of a value.
    """
    return _ask("serialize", ["\t".join(line) for line in lines])


def _ask(question: str, lines: Iterable[str]) -> list[str]:
    # Outside of a Spark application, Java closes what Spark opens: JDK internals.
    opened = ["--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"]
    command = [java_command(), *QUICK_OPTIONS, *opened, "-cp", f"{_JARS}/*", str(_SOURCE), question]
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
