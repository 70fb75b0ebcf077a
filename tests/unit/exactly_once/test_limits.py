"""The limits of exactly-once writes that cannot be configured."""

from __future__ import annotations

import pytest

from spark_kafka_sink.exactly_once import markers, plan, recovery, transactional_ids
from spark_kafka_sink.exactly_once import two_phase_commit as protocol


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        # Attempts of a step, and checks for a marker.
        (recovery, "MAX_STARTS", 8),
        (markers, "MAX_CHECKS", 20),
        # Seconds.
        (recovery, "MARKER_TIMEOUT", 15.0),
        (markers, "PATIENCE", 0.1),
        (plan, "MAX_SPARE_SECONDS", 60.0),
        (plan, "SPARE_SHARE", 0.1),
        # Jobs that one plan drops, and characters of a prefix.
        (protocol, "MAX_FORGOTTEN", 500),
        (transactional_ids, "MAX_PREFIX_LENGTH", 200),
    ],
)
def test_each_limit_has_its_expected_value(module, name, expected):
    """Each limit has its expected value, so that a change of one is deliberate."""
    assert expected == getattr(module, name)
