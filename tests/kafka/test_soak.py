"""Every kind of fault once, and kills of processes; `make soak` has minutes of random ones."""

from __future__ import annotations

import os

import pytest

from tests.support.exactly_once.exactly_once_soak import VICTIMS, run_kill_soak
from tests.support.kafka.kafka_files import KAFKA_4
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.reading.pipeline_soak import Victim, run_pipeline_soak
from tests.support.soaking.soak import run_each_fault_once
from tests.support.soaking.soak_plan import Kind

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SEED = 20_260_401
KILL_SECONDS = 5
#: The process of the source, which no other test kills.
PIPELINE_KILLS = (Victim.SOURCE,)


def test_every_fault_while_brokers_fail_loses_and_duplicates_no_row():
    """With each kind of fault and of broker failure, every row is there once and in order."""
    try:
        report = run_each_fault_once(version=KAFKA_4)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    assert [] == report.problems, str(report)
    assert {kind.value for kind in Kind if kind is not Kind.FAULT} == set(report.events)
    assert all(report.rows.values()), str(report)


def test_every_row_is_written_once_despite_kills():
    """If workers, drivers and the broker are killed, no batch is lost or duplicated."""
    try:
        report = run_kill_soak(seed=SEED, seconds=KILL_SECONDS, version=KAFKA_4)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    assert [] == report.problems, str(report)
    assert set(VICTIMS) == set(report.kills)


def test_a_pipeline_copies_every_row_once_and_in_order_despite_kills():
    """From Kafka to Kafka, with the source's process killed, no row is lost."""
    try:
        report = run_pipeline_soak(seed=SEED, kills=PIPELINE_KILLS, version=KAFKA_4)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    assert [] == report.problems, str(report)
    assert {victim.name.lower(): 1 for victim in PIPELINE_KILLS} == report.kills
