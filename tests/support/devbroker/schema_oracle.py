"""What Java's Avro, of the jars that PySpark brings, says of schemas; see `SchemaOracle.java`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tests.support.java.quick_java import QUICK_OPTIONS
from tests.support.kafka.kafka_files import java_command

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECONDS = 600
_JARS = Path(pyspark.__file__).parent / "jars"
_SOURCE = Path(__file__).with_name("SchemaOracle.java")


def incompatibilities_of_java(cases: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Return why each reader's schema cannot read the data of its writer's."""
    answers = _ask("compatibility", [schema for case in cases for schema in case])
    return [answer.split("\t") if answer else [] for answer in answers]


def texts_of_java(schemas: Sequence[str]) -> list[str]:
    """Return the text of each schema, or "!" and a class if it is invalid."""
    return _ask("texts", schemas)


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
    # Not splitlines(), which also splits at letters that a schema may have.
    return done.stdout.removesuffix("\n").split("\n")
