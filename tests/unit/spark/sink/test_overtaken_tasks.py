"""The errors of tasks whose transactions another process ended while they wrote."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import BrokerError, KafkaError
from spark_kafka_sink.exactly_once.errors import OvertakenError, WinnerLostError
from spark_kafka_sink.exactly_once.ledger_records import Claim
from spark_kafka_sink.exactly_once.plan import Plan
from spark_kafka_sink.spark.sink import exactly_once_write
from spark_kafka_sink.spark.sink.exactly_once_write import ExactlyOnceWrite
from spark_kafka_sink.spark.sink.partition_writer import KafkaCommitMessage

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


@pytest.mark.parametrize(("paced_seconds", "is_named"), [(None, False), (0.0, False), (50.4, True)])
def test_a_commit_that_comes_too_late_names_the_pauses_of_its_tasks(
    monkeypatch, paced_seconds, is_named
):
    """They may be the reason why a transaction timed out before the driver could commit it."""

    def fail(*_, **__):
        raise WinnerLostError("it is no longer open")

    monkeypatch.setattr(
        exactly_once_write,
        "two_phase_commit",
        lambda *_, **__: nullcontext(SimpleNamespace(commit=fail)),
    )
    messages = [
        KafkaCommitMessage(
            partition_id=task, task_attempt_id=task, rows=1, acks=(), paced_seconds=paced_seconds
        )
        for task in range(2)
    ]
    write = ExactlyOnceWrite(PARSED.producer, PARSED.exactly_once)
    with pytest.raises(WinnerLostError, match=r"^it is no longer open") as caught:
        write.commit(PLAN, "w", 0, messages, lambda _: None)
    assert is_named == ("tasks paused for 101 s in all" in str(caught.value))
