"""The results of the CI step that checks for known vulnerabilities."""

from __future__ import annotations

import json
from datetime import date

import pytest

from tests.support.scripts import load_script


@pytest.fixture(scope="module")
def audit():
    return load_script("audit")


def answer(*packages):
    return json.dumps({"dependencies": list(packages), "fixes": []})


SOUND = {"name": "sound", "version": "1.0", "vulns": []}
OURS = {"name": "ours", "skip_reason": "distribution marked as editable"}
UNKNOWN = {"name": "unknown", "skip_reason": "not found"}
WEAK = {
    "name": "weak",
    "version": "2.1",
    "vulns": [
        {"id": "PYSEC-1", "fix_versions": ["2.2"]},
        {"id": "PYSEC-2", "fix_versions": []},
    ],
}
TODAY = date(2026, 11, 30)


@pytest.fixture
def exceptions(audit):
    """Return a function that makes exceptions for ids, by default valid until today."""

    def make(*ids, expires=TODAY):
        text = "".join(
            f'[[exception]]\nid = "{name}"\nreason = "a reason"\nexpires = {expires}\n'
            for name in ids
        )
        return audit.Exceptions(text, TODAY)

    return make


def test_a_known_vulnerability_fails_the_step_and_is_named(audit, exceptions):
    """The output has the package, version, id and fixed version of each vulnerability."""
    expected = (
        "weak 2.1: PYSEC-1, fixed in 2.2: no exception is recorded\n"
        "weak 2.1: PYSEC-2, fixed in no version yet: no exception is recorded\n"
        "audit: 2 packages audited, 1 of them vulnerable; 0 could not be audited"
    )
    assert (expected, 1) == audit.judge(answer(SOUND, WEAK), "", exceptions())


def test_a_complete_audit_without_findings_passes(audit, exceptions):
    """The output is a single line with the counts."""
    expected = "audit: 1 packages audited, 0 of them vulnerable; 0 could not be audited"
    assert (expected, 0) == audit.judge(answer(SOUND, OURS), "", exceptions())


def test_a_recorded_exception_excuses_one_vulnerability_and_no_other(audit, exceptions):
    """The exception is printed with its reason and expiry; other vulnerabilities still fail."""
    said, exit_code = audit.judge(answer(WEAK), "", exceptions("PYSEC-1"))
    assert ("excused: a reason (until 2026-11-30)" in said, 1) == (True, exit_code)
    assert 0 == audit.judge(answer(WEAK), "", exceptions("PYSEC-1", "PYSEC-2"))[1]
    assert 1 == audit.judge(answer(WEAK), "", exceptions("not-audited"))[1]


def test_an_expired_exception_excuses_nothing(audit, exceptions):
    """From the day after its expiry the step fails and reports the expired exception."""
    expired = exceptions("PYSEC-1", "PYSEC-2", expires=date(2026, 11, 29))
    said, exit_code = audit.judge(answer(WEAK), "", expired)
    assert ("the exception has expired: a reason (until 2026-11-29)" in said, 1) == (
        True,
        exit_code,
    )


def test_a_package_that_could_not_be_audited_fails_the_step_unless_excused(audit, exceptions):
    """An unknown package counts as not audited."""
    counted = "audit: 0 packages audited, 0 of them vulnerable; 1 could not be audited\n"
    assert (f"{counted}not audited: unknown: no exception is recorded", 1) == audit.judge(
        answer(UNKNOWN), "", exceptions()
    )
    assert (
        f"{counted}not audited: unknown: excused: a reason (until 2026-11-30)",
        0,
    ) == audit.judge(answer(UNKNOWN), "", exceptions("not-audited"))


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        ("Traceback\nConnectionError: no route\n\n", "ConnectionError: no route"),
        ("", "pip-audit printed nothing"),
    ],
)
def test_a_failing_auditor_has_audited_nothing(audit, exceptions, errors, cause):
    """The last line of its errors is the cause; the step fails without a recorded exception."""
    said = f"audit: no package was audited: {cause}\n"
    assert (f"{said}no exception is recorded", 1) == audit.judge("", errors, exceptions())
    assert (f"{said}excused: a reason (until 2026-11-30)", 0) == audit.judge(
        "", errors, exceptions("not-audited")
    )
    expired = exceptions("not-audited", expires=date(2026, 11, 29))
    assert 1 == audit.judge("", errors, expired)[1]


def test_an_exception_without_a_reason_is_rejected(audit):
    """A blank reason counts as missing."""
    text = '[[exception]]\nid = "x"\nreason = " "\nexpires = 2027-01-01\n'
    with pytest.raises(ValueError, match="without a reason: x"):
        audit.Exceptions(text, TODAY)


def test_the_recorded_exceptions_can_be_read(audit):
    """Each recorded exception has an id, a reason and an expiry date."""
    said, _ = audit.Exceptions(audit.EXCEPTIONS.read_text(), TODAY).judge("not-audited")
    assert said.startswith("excused: ")
