"""The files and the groups of the slow half."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.slow_half import (
    GROUPED,
    GROUPS,
    ORDER,
    SPARK_GROUPS,
    SPREAD,
    TESTS,
    group,
    rank,
    slow_files,
)

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


def test_tests_that_share_the_spark_session_are_grouped_and_begin_first() -> None:
    """Files that share the Spark session, or clusters, form groups, every other file its own."""
    files = {
        "tests/spark/test_reads.py": "spark",
        "tests/kafka/test_spark_write.py": "spark with kafka",
        "tests/kafka/test_acks.py": "tests/kafka/test_acks.py",
        "tests/kafka/test_lost_markers.py": "three nodes",
        "tests/kafka/test_admin_client.py": "access control",
        "tests/unit/test_locks.py": "tests/unit/test_locks.py",
        "tests/spark/test_demo.py": "tests/spark/test_demo.py::test_it[a::b]",
    }
    assert files == {file: group(f"{file}::test_it[a::b]") for file in files}
    assert rank("tests/spark/test_reads.py::test_it") < rank("tests/kafka/test_acks.py::test_it")


def test_the_files_that_are_named_exist() -> None:
    """A file that was renamed does not lose its place in the order unnoticed."""
    named = {*ORDER, *SPREAD, *GROUPED} - {*SPARK_GROUPS, *GROUPS}
    assert [] == sorted(name for name in named if not (TESTS.parent / name).is_file())
