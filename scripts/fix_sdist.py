"""Rewrite a source distribution without anything that depends on when and by whom it was built.

    SOURCE_DATE_EPOCH=1700000000 python scripts/fix_sdist.py dist/spark_kafka_sink-1.0.0.tar.gz

setuptools observes SOURCE_DATE_EPOCH in wheels, but not in source distributions.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
from pathlib import Path


def fix_sdist(path: Path, seconds: int) -> None:
    """Replace the archive by one with the same files, sorted, of user 0 and of one time."""
    with tarfile.open(path) as archive:
        members = sorted(
            (
                (member, file.read() if (file := archive.extractfile(member)) else None)
                for member in archive.getmembers()
            ),
            key=lambda found: found[0].name,
        )
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=seconds) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member, content in members:
            plain = tarfile.TarInfo(member.name)
            plain.type = member.type
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            plain.mtime = seconds
            if content is None:
                archive.addfile(plain)
            else:
                plain.size = len(content)
                archive.addfile(plain, io.BytesIO(content))


if __name__ == "__main__":
    fix_sdist(Path(sys.argv[1]), int(os.environ["SOURCE_DATE_EPOCH"]))
