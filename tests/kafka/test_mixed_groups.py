"""Groups with members of three clients, disturbed by a script; `make soak` disturbs at random."""

from __future__ import annotations

import os

import pytest

from tests.support.consumer.mixed_groups.mixed_group import EITHER, Action, Kind, run_scripts
from tests.support.kafka.kafka_files import KAFKA_3, KAFKA_4
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail

#: It decides how each member commits, and which of the protocols it has if it may have either.
SEED = 20_261_126
RANGE = (
    (Action.STALL, Kind.OURS),
    (Action.LEAVE, Kind.CONFLUENT),
    (Action.KILL, Kind.JAVA),
)
SCRIPTS = {
    KAFKA_4: {
        "cooperative-sticky": (
            (Action.KILL, Kind.CONFLUENT),
            (Action.FREEZE, Kind.OURS),
            (Action.JOIN, Kind.OURS),
        ),
        EITHER: (
            (Action.JOIN, Kind.OURS),
            (Action.KILL, Kind.OURS),
            (Action.LEAVE, Kind.JAVA),
        ),
        "range": RANGE,
    },
    KAFKA_3: {"range": RANGE},
}


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("version", [KAFKA_4, pytest.param(KAFKA_3, marks=pytest.mark.soak)])
def test_a_mixed_group_misses_no_record_despite_kills_and_freezes(version):
    """In a disturbed group, every record is returned, and a partition has one owner at a time."""
    scripts = SCRIPTS[version]
    try:
        reports = run_scripts(seed=SEED, version=version, scripts=scripts)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    assert [] == [problem for report in reports for problem in report.problems]
    assert list(scripts) == [report.assignor for report in reports]
    for report in reports:
        assert report.generations > len(scripts[report.assignor]), str(report)
