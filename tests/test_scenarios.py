"""The table of Kafka's test scenarios in SCENARIOS.md names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent
TABLE = (TESTS / "SCENARIOS.md").read_text()
#: The number of scenarios of each Java class in Kafka 4.3.1.
CLASSES = {
    "RecordAccumulatorTest": 35,
    "SenderTest": 76,
    "TransactionManagerTest": 140,
    "BuiltInPartitionerTest": 4,
    "SubscriptionStateTest": 58,
    "AutoOffsetResetStrategyTest": 4,
    "HeartbeatTest": 7,
    "FetchSessionHandlerTest": 14,
    "FetchBufferTest": 5,
    "FetchCollectorTest": 21,
    "CompletedFetchTest": 6,
    "FetcherTest": 81,
    "ConsumerMembershipManagerTest": 88,
    "ConsumerHeartbeatRequestManagerTest": 34,
    "AbstractCoordinatorTest": 48,
    "ConsumerCoordinatorTest": 151,
}
ROW = re.compile(r"\| (?P<scenario>\w+) \| (?P<here>.*) \|")
ID = re.compile(r"`([^`]+)`")
#: The minimum length of the reason why a scenario does not apply.
SHORTEST_REASON = 20


class Scenario(NamedTuple):
    """A row of the table."""

    java_class: str
    name: str
    here: str


def scenarios_in(table: str) -> list[Scenario]:
    """Parse the rows; a line that looks like a row must be one."""
    java_class, rows = "", []
    for line in table.splitlines():
        if line.startswith("## "):
            java_class = line.removeprefix("## ")
        elif line.startswith("|") and line not in {"| scenario | here |", "|---|---|"}:
            row = ROW.fullmatch(line)
            assert row is not None, line
            rows.append(Scenario(java_class, row["scenario"], row["here"].strip()))
    return rows


@cache
def functions_of(path: str) -> frozenset[str]:
    """Return the test functions of a module below tests/; none if there is no such module."""
    module = TESTS / path
    if module.suffix != ".py" or not module.is_file():
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, functions) and node.name.startswith("test_")
    )


def fault_of(here: str) -> str | None:
    """Return what is wrong with the right side of a row, or None."""
    ids = ID.findall(here)
    if not ids:
        return None if len(here) >= SHORTEST_REASON else "neither a test nor a reason"
    for test_id in ids:
        path, _, name = test_id.partition("::")
        if not functions_of(path):
            return f"no tests in {path}"
        if name and name not in functions_of(path):
            return f"no {name} in {path}"
    return None


SCENARIOS = scenarios_in(TABLE)


def test_a_scenario_is_covered_or_has_a_reason():
    """Each id in a row is a test or a module with tests; a row without ids states a reason."""
    assert [] == [
        f"{scenario.java_class}.{scenario.name}: {fault}"
        for scenario in SCENARIOS
        if (fault := fault_of(scenario.here))
    ]


def test_every_scenario_has_one_row():
    """No scenario is missing and none is listed twice."""
    names = [(scenario.java_class, scenario.name) for scenario in SCENARIOS]
    assert len(names) == len(set(names))
    counts = {name: sum(each.java_class == name for each in SCENARIOS) for name in CLASSES}
    assert CLASSES == counts
    assert len(SCENARIOS) == sum(CLASSES.values())


@pytest.mark.parametrize(
    ("here", "fault"),
    [
        ("", "neither a test nor a reason"),
        ("n/a", "neither a test nor a reason"),
        ("`unit/nowhere.py::test_x`", "no tests in unit/nowhere.py"),
        ("`test_scenarios.py::test_nothing`", "no test_nothing in test_scenarios.py"),
        ("`SCENARIOS.md`", "no tests in SCENARIOS.md"),
        ("`test_scenarios.py`", None),
        ("`test_scenarios.py::test_every_scenario_has_one_row`", None),
        ("does not apply: there is no such thing here", None),
    ],
)
def test_faults_of_a_row_are_found(here, fault):
    """Each kind of fault in a row is reported."""
    assert fault == fault_of(here)
