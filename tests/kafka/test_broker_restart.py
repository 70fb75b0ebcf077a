"""The only broker goes away in mid-write, and comes back."""

from __future__ import annotations

import pytest

from tests.support.disturbance import write_disturbed
from tests.support.numbered_rows import RowCheck

pytestmark = pytest.mark.slow

ROWS = 3_000_000


def test_a_killed_broker_costs_no_row_and_doubles_none(own_kafka):
    """After SIGKILL and restart, twice in one write, every row is there once and in order."""
    (broker,) = own_kafka.brokers
    topic = own_kafka.create_topic(3)

    def kill_and_start():
        broker.kill()
        broker.start()
        own_kafka.wait_until_ready()

    checked = write_disturbed(
        own_kafka,
        topic,
        rows=ROWS,
        disturbances=[kill_and_start, kill_and_start],
        **{"compression.type": "none"},
    )
    assert RowCheck() == checked


def test_a_broker_restarted_in_order_costs_no_row_and_doubles_none(own_kafka):
    """An orderly restart in mid-write leaves every row there once and in order."""
    (broker,) = own_kafka.brokers
    topic = own_kafka.create_topic(3)

    def restart():
        broker.stop()
        broker.start()
        own_kafka.wait_until_ready()

    checked = write_disturbed(
        own_kafka, topic, rows=ROWS, disturbances=[restart], **{"compression.type": "lz4"}
    )
    assert RowCheck() == checked
