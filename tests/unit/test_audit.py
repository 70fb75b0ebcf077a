"""What the step of CI says that asks for known vulnerabilities."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "audit.py"


@pytest.fixture(scope="module")
def audit():
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(*packages):
    return json.dumps({"dependencies": list(packages), "fixes": []})


SOUND = {"name": "sound", "version": "1.0", "vulns": []}
UNKNOWN = {"name": "unknown", "skip_reason": "not found"}


def test_a_known_vulnerability_fails_the_step_and_is_named(audit):
    """Package, version, the vulnerability's id, and where it is mended."""
    weak = {
        "name": "weak",
        "version": "2.1",
        "vulns": [
            {"id": "PYSEC-1", "fix_versions": ["2.2"]},
            {"id": "PYSEC-2", "fix_versions": []},
        ],
    }
    expected = (
        "weak 2.1: PYSEC-1, mended in 2.2\n"
        "weak 2.1: PYSEC-2, mended in no version yet\n"
        "audit: 2 packages audited, 1 of them vulnerable; 1 could not be audited"
    )
    assert (expected, 1) == audit.judge(answer(SOUND, weak, UNKNOWN), "")


def test_what_could_not_be_asked_about_is_counted(audit):
    """A database that knows none of the packages has audited none."""
    expected = "audit: 0 packages audited, 0 of them vulnerable; 2 could not be audited"
    assert (expected, 0) == audit.judge(answer(UNKNOWN, UNKNOWN), "")


@pytest.mark.parametrize(
    ("errors", "cause"),
    [("Traceback\nConnectionError: no route\n\n", "ConnectionError: no route"), ("", "no answer")],
)
def test_an_auditor_that_fails_has_audited_nothing(audit, errors, cause):
    """Its last words say why."""
    assert (f"audit: nothing was audited: {cause}", 0) == audit.judge("", errors)
