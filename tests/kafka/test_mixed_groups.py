"""Groups with members of three clients, disturbed at random; `make soak` runs longer."""

from __future__ import annotations

import os

import pytest

from tests.support.consumer.mixed_groups.mixed_group import (
    ASSIGNORS,
    CONSUMER,
    EITHER,
    Kind,
    run_mixed_groups,
)
from tests.support.kafka.kafka_files import KAFKA_3, KAFKA_4
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail

SEED = 20_261_126
#: Seconds of each group.
SECONDS = 8


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "assignors"),
    [(KAFKA_4, (*ASSIGNORS, CONSUMER, EITHER)), (KAFKA_3, ASSIGNORS)],
    ids=[KAFKA_4, KAFKA_3],
)
def test_a_mixed_group_misses_no_record_despite_kills_and_freezes(version, assignors):
    """With each assignor, every record is returned, and each partition has one owner at a time."""
    seconds = SECONDS * len(assignors)
    try:
        reports = run_mixed_groups(seed=SEED, seconds=seconds, version=version)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    assert [] == [problem for report in reports for problem in report.problems]
    assert list(assignors) == [report.assignor for report in reports]
    for report in reports:
        assert report.generations > 0
        assert report.records > SECONDS
        assert all(report.events[f"{kind} joins"] for kind in Kind)
