"""A minute of random faults; `make soak` has the long one."""

from __future__ import annotations

import os

import pytest

from tests.support.kafka_files import KAFKA_4
from tests.support.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.soak import run_soak

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SEED = 20_260_401
SECONDS = 60


def test_a_minute_of_random_faults_costs_no_row_and_doubles_none():
    """Whatever the plan of this seed holds, every row is there once and in order, and no error."""
    try:
        report = run_soak(seed=SEED, seconds=SECONDS, version=KAFKA_4)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    assert [] == report.problems, str(report)
    assert sum(report.strikes.values()) > 50
    assert sum(report.rows.values()) > 50_000
