"""The slow half: the tests that need Java or Kafka, or that are slow; its files and its groups.

`python -m tests.support.slow_half` prints its files, so that its processes import no others:
collecting all tests takes each process ten seconds. A group runs in one process, which has the
Spark session of its tests, and the brokers that they may stop. The files that use the shared Spark
session are in two groups, since one would take longer than all others together. Every other file is
a group, except those that share clusters, and those whose tests can be spread.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).resolve().parents[1]
#: Folders in which every test is of the slow half.
FOLDERS = ("kafka", "model", "platforms", "spark")
#: The groups of files in `tests/kafka`: with the shared Spark session, with clusters of three
#: nodes, and with the brokers that enforce ACLs. A process starts those of the tests that it runs.
GROUPS = {
    "spark with kafka": (
        "authorization",
        "broker_restart",
        "million_rows",
        "reading_cases",
        "reading_plans",
        "reading_streams",
        "security",
        "source_groups",
        "spark_write",
    ),
    "three nodes": (
        "devbroker_brokers",
        "devbroker_racks",
        "faults_three_nodes",
        "lost_markers",
        "reading_followers",
        "three_nodes",
    ),
    "access control": ("admin_client", "exactly_once_rights", "kafka_consumer"),
}
#: The group of each of these files.
GROUPED = {f"tests/kafka/test_{name}.py": of for of, names in GROUPS.items() for name in names}
#: The groups that use the shared Spark session: with the embedded broker, and with real Kafka.
SPARK_GROUPS = ("spark", "spark with kafka")
#: Files whose tests share nothing and take minutes: each test is a group.
SPREAD = frozenset(
    {
        "tests/kafka/test_spark_streams.py",
        "tests/spark/test_demo.py",
        "tests/spark/test_python_memory_limit.py",
    }
)
#: The groups or files that begin first: those with the shared Spark session, which use all of two
#: cores; beside them those that mostly wait, for brokers that end and for time-outs; then the
#: longest of the others, so that none of them begins when the other processes end.
ORDER = (
    *SPARK_GROUPS,
    "tests/kafka/test_soak.py",
    "three nodes",
    "tests/kafka/test_devbroker_reading.py",
    "tests/kafka/test_faults.py",
    "tests/kafka/test_mixed_groups.py",
    "tests/kafka/test_exactly_once_kills.py",
    "tests/unit/exactly_once/test_refused_decisions.py",
    "tests/kafka/test_spark_streams.py",
    "tests/unit/record/kernel/test_kernel_cache.py",
    "tests/platforms/test_connect.py",
    "tests/model/test_exactly_once_model.py",
    "tests/unit/producer/batch/test_process_memory.py",
    "tests/kafka/test_spark_cluster.py",
    "tests/unit/devbroker/log/test_full_disk.py",
    "tests/spark/test_demo.py",
    "tests/kafka/test_consume_transform_produce.py",
    "access control",
    "tests/unit/record/kernel/test_warm_cache.py",
    "tests/unit/test_coverage_fuzz.py",
    "tests/spark/test_python_memory_limit.py",
)
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


def group(node_id: str) -> str:
    """Return the group of a test."""
    file = node_id.partition("::")[0]
    if file in SPREAD:
        return node_id
    if PurePosixPath(file).is_relative_to("tests/spark"):
        return SPARK_GROUPS[0]
    return GROUPED.get(file, file)


def rank(node_id: str) -> int:
    """Return when a test's group begins: the smaller, the earlier."""
    names = {group(node_id), node_id.partition("::")[0]}
    return min((ORDER.index(name) for name in names if name in ORDER), default=len(ORDER))


class GroupScheduling(LoadScopeScheduling):
    """Distributes whole groups."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


if __name__ == "__main__":
    print(*(path.relative_to(Path.cwd()) for path in slow_files()))  # noqa: T201
