"""The errors of tasks whose transactions another process ended while they wrote."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import BrokerError, KafkaError
from spark_kafka_sink.exactly_once.errors import OvertakenError
from spark_kafka_sink.exactly_once.ledger_records import Claim
from spark_kafka_sink.exactly_once.plan import Plan
from spark_kafka_sink.spark.sink import exactly_once_write
from spark_kafka_sink.spark.sink.exactly_once_write import ExactlyOnceWrite

PARSED = SinkOptions.from_mapping(
    {
        "kafka.bootstrap.servers": "localhost:9092",
        "topic": "events",
        "deliveryGuarantee": "exactly_once",
        "transactionalIdPrefix": "orders",
    }
)
PLAN = Plan("orders", 3, 1_000, {})


class _FakeAdmin:
    def __init__(self, config):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def write(monkeypatch):
    """Return a function that fails a task with a broker error, given the ledger's generation."""

    def run(name, generation):
        asked = []

        def fail(*_, **__):
            raise KafkaError("a row was not delivered") from BrokerError("no", code=1, name=name)

        def read(budget):
            asked.append(budget.left("reading"))
            return SimpleNamespace(
                writes={}, generation=generation, claim=Claim(generation, 1, "newcomer")
            )

        monkeypatch.setattr(exactly_once_write, "write_rows", fail)
        monkeypatch.setattr(exactly_once_write, "DriverClient", _FakeAdmin)
        monkeypatch.setattr(
            exactly_once_write, "Ledger", lambda *_, **__: SimpleNamespace(read=read)
        )
        monkeypatch.setattr(
            exactly_once_write, "time", SimpleNamespace(time=lambda: 1_000.0, monotonic=lambda: 0.0)
        )
        with pytest.raises(KafkaError) as caught:
            ExactlyOnceWrite(PARSED.producer, PARSED.exactly_once).write(PLAN, "q", 0, [], "events")
        return caught.value, asked

    return run


def test_the_ledger_is_read_for_half_a_minute_at_most(write):
    """A failed task must not wait long to find out which driver has taken over."""
    error, asked = write("PRODUCER_FENCED", 4)
    assert isinstance(error, OvertakenError)
    assert "another driver has taken over: newcomer claimed generation 4" in str(error)
    assert [30.0] == asked


def test_a_driver_of_the_same_generation_has_not_taken_over(write):
    """If the transaction was aborted manually or timed out, the original error is raised."""
    error, asked = write("PRODUCER_FENCED", 3)
    assert "a row was not delivered" == str(error)
    assert [30.0] == asked


def test_the_ledger_is_not_read_for_other_errors(write):
    """Other errors do not mean that another process ended the transaction."""
    error, asked = write("NOT_LEADER_OR_FOLLOWER", 4)
    assert "a row was not delivered" == str(error)
    assert [] == asked
