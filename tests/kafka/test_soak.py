"""A minute of random faults, and some random kills; `make soak` runs longer."""

from __future__ import annotations

import os

import pytest

from tests.support.exactly_once.exactly_once_soak import run_kill_soak
from tests.support.kafka.kafka_files import KAFKA_4
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.reading.pipeline_soak import Victim, run_pipeline_soak
from tests.support.soaking.soak import run_soak

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SEED = 20_260_401
SECONDS = 60
KILL_SECONDS = 10


def test_a_minute_of_random_faults_loses_and_duplicates_no_row():
    """Under this seed's faults, every row is there once and in order, and nothing fails."""
    try:
        report = run_soak(seed=SEED, seconds=SECONDS, version=KAFKA_4)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    assert [] == report.problems, str(report)
    # A busy machine manages a fraction of the usual 150 faults and 500,000 rows.
    assert sum(report.strikes.values()) > 10
    assert sum(report.rows.values()) > 5_000


def test_every_row_is_written_once_despite_random_kills():
    """Under this seed's kills of drivers and workers, no batch is lost or duplicated."""
    try:
        report = run_kill_soak(seed=SEED, seconds=KILL_SECONDS, version=KAFKA_4)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    assert [] == report.problems, str(report)
    assert report.kills.total() > 0


def test_a_pipeline_copies_every_row_once_and_in_order_despite_random_kills():
    """From Kafka to Kafka, with each kind of process killed once, no row is lost or duplicated."""
    try:
        report = run_pipeline_soak(seed=SEED, kills=len(Victim), version=KAFKA_4)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    assert [] == report.problems, str(report)
    assert len(Victim) == report.kills.total()
