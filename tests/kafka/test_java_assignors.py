"""Java's assignors and ours, with more groups than the golden files have."""

from __future__ import annotations

import os

import pytest

from tests.support.consumer.assignor_cases import random_cases
from tests.support.consumer.assignor_results import differences, run_java
from tests.support.kafka.kafka_files import KAFKA_4, java_command, kafka_jars
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail

SEED = 20_261_126

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def _java():
    try:
        java_command()
        kafka_jars(KAFKA_4)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)


def test_random_groups_are_assigned_as_in_java():
    """All assignors give the members of new random groups what Java's classes give them."""
    cases = [case for some in random_cases(SEED, 200, 100).values() for case in some]
    results = run_java(cases)
    assert len(cases) == len(results)
    different = {
        index: found
        for index, (case, result) in enumerate(zip(cases, results, strict=True))
        if (found := differences(case, result))
    }
    assert {} == different
