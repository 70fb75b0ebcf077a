"""Options with which the tests' Java processes start quickly.

The tests start dozens of brokers, tools and Spark drivers, and most of them live for seconds. So
they run with the quick compiler (C1) and the serial garbage collector, and read their classes from
a shared archive (JEP 350): brokers and Kafka's tools from one that is written once for each release
and each Java, Spark's drivers from that of `quick_spark`. A Java that cannot use an archive
ignores it. Benchmarks use none of this.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

#: `-Xlog:disable` silences warnings about an unusable archive, which Java would print to stdout.
QUICK_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable")


def reading_archive(archive: Path) -> list[str]:
    """Return the options of a Java that starts quickly, with the classes of an archive."""
    return [*QUICK_OPTIONS, f"-XX:SharedArchiveFile={archive}"]


def writing_archive(archive: Path) -> list[str]:
    """Return the options of a Java that writes its classes to an archive when it ends."""
    return [*QUICK_OPTIONS, f"-XX:ArchiveClassesAtExit={archive}"]


@cache
def java_identity(command: str) -> str:
    """Return eight letters that differ between two installations of Java, from the `java` to run.

    An archive can be read only by the Java that wrote it.
    """
    home = Path(command).resolve().parent.parent
    release = home / "release"
    described = release.read_bytes() if release.is_file() else b""
    return hashlib.sha256(bytes(home) + described).hexdigest()[:8]
