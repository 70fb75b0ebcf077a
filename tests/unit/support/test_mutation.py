"""The mutation runner: the tests chosen for a mutant, and its verdict."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests import mutants
from tests.support.mutation import (
    PACKAGE,
    Mutant,
    TestsByLine,
    failed_test,
    mutable_modules,
    read_mutants,
)

MODULE = "spark_kafka_sink/record/record_batch.py"


def _mutant(line: int = 3, source: str = "") -> Mutant:
    return Mutant(
        path=MODULE, line=line, operator="AddNot", before="if a:", after="if not a:", source=source
    )


def test_the_most_specific_tests_of_a_line_come_first():
    """A test that runs two lines in total comes before one that runs three."""
    ran = {
        MODULE: {3: ["broad", "narrow", "third"], 4: ["broad", "third"]},
        "other.py": {1: ["broad", "narrow"], 2: ["broad"]},
    }
    assert TestsByLine(ran).for_mutant(_mutant(3)) == ["narrow", "third", "broad"]


def test_a_line_with_few_tests_gets_those_of_its_folder_too():
    """It may have been run at the first import, which happened to be in these tests."""
    ran = {MODULE: {3: ["one", "two"]}}
    assert TestsByLine(ran).for_mutant(_mutant(3)) == ["one", "two", "tests/unit/record"]


def test_a_line_that_runs_once_gets_the_tests_of_its_folder_too(tmp_path):
    """A codec is built when it is first used: coverage sees no other test that depends on it."""
    (tmp_path / "tests/unit/protocol").mkdir(parents=True)
    path = f"{PACKAGE}/protocol/codec.py"
    tests = ["a", "b", "c"]
    mutant = dataclasses.replace(_mutant(3), path=path)
    chosen = TestsByLine({path: {3: tests}}, tmp_path).for_mutant(mutant)
    assert [*tests, "tests/unit/protocol"] == chosen


def test_a_line_without_tests_gets_those_of_its_module_and_then_its_folder():
    """Code that runs at import or compiled may be tested by tests that run other lines."""
    ran = {MODULE: {8: ["one"], 9: ["one", "two"]}, "other.py": {1: ["three"]}}
    assert TestsByLine(ran).for_mutant(_mutant(3)) == ["two", "one", "tests/unit/record"]


def test_a_module_that_only_defines_values_gets_the_tests_of_its_folder():
    """No test runs one of its lines, so all tests in the folder are candidates."""
    ran = {"other.py": {1: ["tests/unit/record/a.py::b"]}}
    assert TestsByLine(ran).for_mutant(_mutant(3)) == ["tests/unit/record"]


def test_a_nested_folder_gets_the_test_modules_above_it_too(tmp_path):
    """Constants of several rooms may be tested together, one folder higher."""
    layer = tmp_path / "tests/unit/producer"
    (layer / "batch").mkdir(parents=True)
    for name in ("test_limits.py", "conftest.py", "batch/test_row_history.py"):
        (layer / name).touch()
    mutant = dataclasses.replace(
        _mutant(), path="spark_kafka_sink/producer/batch/producer_batch.py"
    )
    assert TestsByLine({}, tmp_path).for_mutant(mutant) == [
        "tests/unit/producer/batch",
        "tests/unit/producer/test_limits.py",
    ]


def test_compiled_code_gets_the_tests_of_its_whole_layer():
    """Decoding is tested in the room of readers, and runs in that of kernels."""
    mutant = dataclasses.replace(_mutant(), path=f"{PACKAGE}/record/kernel/decode_records.py")
    assert ["tests/unit/record"] == TestsByLine({}).for_mutant(mutant)


@pytest.mark.parametrize(
    ("module", "expected"),
    [("protocol/messages/fetch.py", "tests/unit/protocol"), ("model.py", "tests/unit/test_a.py")],
)
def test_a_folder_without_tests_of_its_own_gets_those_above_it(tmp_path, module, expected):
    """A missing folder would end pytest with an error, which is not a killed mutant."""
    (tmp_path / "tests/unit/protocol").mkdir(parents=True)
    (tmp_path / "tests/unit/test_a.py").touch()
    mutant = dataclasses.replace(_mutant(), path=f"{PACKAGE}/{module}")
    assert [expected] == TestsByLine({}, tmp_path).for_mutant(mutant)


def test_the_tests_of_a_folder_run_in_the_first_stages():
    """They are not left out if very many tests run other lines of the module."""
    ran = {MODULE: {8: [f"{number:03}" for number in range(700)]}}
    assert TestsByLine(ran).for_mutant(_mutant(3)).index("tests/unit/record") < mutants.STAGES[1]


def test_mutants_are_parsed_as_they_were_printed():
    """Each line is one mutant, and empty lines are ignored."""
    mutant = _mutant()
    line = json.dumps({name: getattr(mutant, name) for name in Mutant.__slots__})
    assert read_mutants([line, "", line]) == [mutant, mutant]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("FAILED tests/a.py::test_b[x - y] - assert 1 == 2\n1 failed", "tests/a.py::test_b"),
        ("...\nERROR tests/a.py - SyntaxError\n1 error", "tests/a.py"),
        ("no tests ran", None),
    ],
)
def test_the_first_failed_test_is_named(output, expected):
    """Both failures and errors count, and parameters are omitted."""
    assert failed_test(output) == expected


def test_every_module_is_mutated():
    """No room is left out, so that a new one cannot be forgotten."""
    root = Path(mutants.ROOT)
    package = {path.relative_to(root) for path in (root / PACKAGE).rglob("*.py")}
    assert package == set(mutable_modules(root))


def test_each_mutant_without_a_difference_is_of_the_code_as_it_is():
    """The list of those that no test can notice has no entries of code that has changed."""
    entries = [line for line in mutants.EQUIVALENT.read_text().splitlines() if line[:1] not in "# "]
    assert entries
    assert [] == [
        entry
        for entry in entries
        for path, _, change in [entry.partition(": ")]
        if change.partition(" => ")[0] not in (mutants.ROOT / path).read_text()
    ]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["record/record_batch"], [MODULE]),
        (["record/record_batch", "/model.py"], [f"{PACKAGE}/model.py", MODULE]),
    ],
)
def test_modules_are_chosen_by_parts_of_their_paths(parts, expected):
    """A sample can be drawn from one module, or from several rooms."""
    assert [*map(Path, expected)] == mutable_modules(Path(mutants.ROOT), *parts)


def test_a_part_of_the_tests_has_coverage_of_its_own(tmp_path, monkeypatch):
    """What all tests cover is not taken for what some do, nor that of some for that of others."""
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    chosen = [[], ["tests/unit/record"], ["tests/unit/record", "tests/unit/formats"]]
    assert len(chosen) == len({mutants._fingerprint(tests) for tests in chosen})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "expected"),
    [(("crc32c", "crc32c"), None), (("import", "impart"), "tests/unit/record/test_crc32c.py")],
)
def test_mutants_are_tested_in_a_copy_that_is_restored(tmp_path, change, expected):
    """A module that still works passes its tests, and a broken one is detected."""
    copy = mutants._copy(tmp_path / "copy")
    source = (copy / MODULE).read_text(encoding="utf-8")
    copies: SimpleQueue[Path] = SimpleQueue()
    copies.put(copy)
    tests = ["tests/unit/record/test_crc32c.py"]
    verdict = mutants._try(_mutant(source=source.replace(*change)), tests, copies)
    assert (verdict.killed_by, (copy / MODULE).read_text(encoding="utf-8")) == (expected, source)


@pytest.mark.slow
def test_a_test_that_does_not_end_detects_the_mutant(tmp_path, monkeypatch):
    """The runner does not wait for tests beside the one that hangs."""
    copy = mutants._copy(tmp_path / "copy")
    test = copy / "tests" / "unit" / "record" / "test_endless.py"
    test.write_text("import time\n\ndef test():\n    time.sleep(3600)\n", encoding="utf-8")
    monkeypatch.setattr(mutants, "TEST_TIMEOUT_S", 1)
    assert mutants._killer([str(test.relative_to(copy))], copy) == "time-out"
