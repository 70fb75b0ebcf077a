"""A short run of the coverage-guided fuzzer, and proof that it finds more than chance would."""

from __future__ import annotations

import pytest

from tests.support.fuzzing.careless_target import CarelessTarget
from tests.support.fuzzing.coverage_fuzz import coverage_fuzz, is_available
from tests.support.fuzzing.greedy_target import GreedyTarget

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_available(), reason="no atheris for this Python and machine"),
]
#: Without instrumentation the fuzzer would see none of the code's edges.
FEW_EDGES = 300


def test_inputs_that_reach_new_code_cause_no_findings(tmp_path):
    """Inputs that reach new code are accepted or refused, and cause nothing else."""
    report = coverage_fuzz(seed=20261122, seconds=8, directory=tmp_path)
    assert [] == [str(finding) for finding in report.findings]
    assert report.edges > FEW_EDGES


def test_a_bug_behind_several_matching_bytes_is_found(tmp_path):
    """Coverage leads to a word that chance would need years for, and the finding has its bytes."""
    report = coverage_fuzz(
        seed=1, seconds=120, directory=tmp_path, module="tests.support.fuzzing.careless_target"
    )
    (finding,) = report.findings
    assert (CarelessTarget.name, "IndexError('out of range')") == (finding.target, finding.reason)
    assert finding.data.startswith(b"KAFKA")


@pytest.mark.soak
def test_an_input_that_exhausts_memory_is_found(tmp_path):
    """An input that exceeds the memory limit of the fuzzer's process is a finding."""
    report = coverage_fuzz(
        seed=1, seconds=120, directory=tmp_path, module="tests.support.fuzzing.greedy_target"
    )
    (finding,) = report.findings
    assert (GreedyTarget.name, 1) == (finding.target, len(finding.data))
