"""Skipped tests under CI, where a check that was not made must not look like one that was.

A pytest plug-in: if `CI` is set, a test that is skipped fails, unless it raises `ToleratedSkip`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping


class ToleratedSkip(pytest.skip.Exception):
    """A skip for a reason that the machines of CI may have; pytest prints it at the end."""


def is_ci(environment: Mapping[str, str]) -> bool:
    """Return whether the tests run under CI."""
    return environment.get("CI", "").lower() not in {"", "0", "false"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skip as a failure."""
    report = yield
    why = None if call.excinfo is None else call.excinfo.value
    is_skip = isinstance(why, pytest.skip.Exception) and not isinstance(why, ToleratedSkip)
    if is_skip and is_ci(os.environ):
        report.outcome = "failed"
        report.longrepr = f"CI needs this test, but it was skipped: {why}"
    return report
