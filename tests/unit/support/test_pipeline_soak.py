"""The plan and the checks of a soak of a whole pipeline."""

from __future__ import annotations

import random
from itertools import islice

from tests.support.reading.pipeline_soak import PARTITIONS, Victim, order_problems, victims

NUMBERS = [str(number) for number in range(9)]
RIGHT = [(row % PARTITIONS, number) for row, number in enumerate(NUMBERS)]


def test_every_kind_of_process_is_killed_early_and_again():
    """The first kills are of all kinds, and the same seed gives the same kills."""
    killed = list(islice(victims(random.Random(1)), 200))
    assert set(Victim) == set(killed[: len(Victim)])
    assert set(Victim) == set(killed[len(Victim) :])
    assert killed == list(islice(victims(random.Random(1)), 200))


def test_rows_in_the_order_of_their_partition_are_right():
    """The order of rows in different partitions does not matter."""
    assert [] == order_problems(NUMBERS, sorted(RIGHT))


def test_lost_and_repeated_rows_are_problems():
    """A problem names the partition and the values."""
    assert ["partition 1: lost ['4'], too many []"] == order_problems(
        NUMBERS, [record for record in RIGHT if record != (1, "4")]
    )
    assert ["partition 2: lost [], too many ['5']"] == order_problems(NUMBERS, [*RIGHT, (2, "5")])


def test_rows_in_another_order_are_a_problem():
    """All values are there, but not in the order in which they were written."""
    assert ["partition 0: not in order"] == order_problems(
        NUMBERS, [RIGHT[3], RIGHT[0], *RIGHT[1:3], *RIGHT[4:]]
    )
