"""The files that the processes of the slow half collect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.slow_files import slow_files

if TYPE_CHECKING:
    from pathlib import Path


def test_files_that_mark_tests_are_found_and_a_conftest_stands_for_its_folder(
    tmp_path: Path,
) -> None:
    """Each file with a marker is listed once, and a marking conftest.py covers its whole folder."""
    contents = {
        "room/test_fast.py": "def test(): ...",
        "room/test_slow.py": "@pytest.mark.slow",
        "both/conftest.py": "marks=pytest.mark.kafka",
        "both/test_slow.py": "pytestmark = pytest.mark.spark",
        "test_other.py": "@pytest.mark.slowest",
    }
    for name, text in contents.items():
        path = tmp_path / "unit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    found = [str(path.relative_to(tmp_path)) for path in slow_files(tmp_path)]

    assert ["kafka", "model", "platforms", "spark", "unit/both", "unit/room/test_slow.py"] == found
