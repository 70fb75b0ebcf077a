"""The files of the slow half: those with a test that needs Java or Kafka, or that is slow.

`python -m tests.support.slow_files` prints their paths, so that the processes of the slow half
import no others: collecting all tests takes each process ten seconds.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
#: Folders in which every test is of the slow half.
FOLDERS = ("kafka", "model", "platforms", "spark")
_MARKER = re.compile(r"\bmark\.(kafka|slow|spark)\b")


def slow_files(tests: Path = TESTS) -> list[Path]:
    """Return the files and folders below `tests` with all tests of the slow half.

    A conftest.py that marks tests stands for its folder.
    """
    found = [tests / folder for folder in FOLDERS]
    found += [
        path.parent if path.name == "conftest.py" else path
        for path in sorted((tests / "unit").rglob("*.py"))
        if _MARKER.search(path.read_text(encoding="utf-8"))
    ]
    return [path for path in found if not set(path.parents) & set(found)]


if __name__ == "__main__":
    print(*(path.relative_to(Path.cwd()) for path in slow_files()))  # noqa: T201
