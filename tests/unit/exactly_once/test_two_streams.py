"""Two streams under one prefix: the last to plan continues, and the other's error names it."""

from __future__ import annotations

import logging
import os
import platform
import re
from functools import partial

import pyarrow as pa
import pytest

from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.errors import OvertakenError
from spark_kafka_sink.exactly_once.two_phase_commit import Point
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.exactly_once.exactly_once_world import QUERY, TIMEOUT, each_once
from tests.support.kafka.real_kafka import wait_until
from tests.support.spark.micro_batches import Query, process_of_its_own

THIS_PROCESS = re.escape(f"{platform.node()}, process {os.getpid()} claimed generation ")


@pytest.fixture
def stream_of(world):
    """Yield a function that creates streams in this world, which send each record at once."""
    with process_of_its_own():
        yield partial(_stream, world)


def _stream(world, query_id):
    options = {
        "topic": world.data,
        "transactionalIdPrefix": world.prefix,
        "ledgerTopic": world.ledger,
        "kafka.batch.size": "1",
    }
    return Query(world.site, query_id, **options)


def _write_while(world, stream, batch_id, meanwhile):
    """Run a task, and call `meanwhile` while its transaction is open and rows remain."""
    planned = stream.plan()

    def batches():
        # The producer's last batch is not closed until the flush.
        yield pa.record_batch({"value": ["one", "two", "three"]})
        wait_until(world.left_open, seconds=TIMEOUT, what="an open transaction")
        meanwhile()
        yield pa.record_batch({"value": ["four", "five"]})

    with stream.task_context(batch_id, 0):
        return planned.write(batches())


@pytest.mark.parametrize("is_newcomer_stopped", [True, False])
def test_a_task_names_the_driver_that_ended_its_transaction(world, stream_of, is_newcomer_stopped):
    """A task whose transaction another stream's plan aborted names that driver in its error."""
    first, newcomer = stream_of("first"), stream_of("newcomer")
    first.run_batch(0)
    stopped, other = (newcomer, first) if is_newcomer_stopped else (first, newcomer)
    with pytest.raises(OvertakenError, match=THIS_PROCESS) as caught:
        _write_while(world, stopped, 1, other.plan)
    assert "Give each query and job its own transactionalIdPrefix" in str(caught.value)
    other.run_batch(1)
    assert sorted([*_rows(0), *_rows(1)]) == world.visible()


def _rows(batch_id):
    return [f"b{batch_id}.t{task}.{row}" for task in range(2) for row in range(3)]


def test_a_transaction_aborted_by_hand_is_not_blamed_on_a_driver(world, stream_of):
    """A transaction aborted by hand is not blamed on another driver."""
    stream = stream_of("first")

    def abort_by_hand():
        [name] = world.left_open()
        world.admin.init_producer_id(name, transaction_timeout_ms=60_000, timeout=TIMEOUT)

    with pytest.raises(KafkaError) as caught:
        _write_while(world, stream, 0, abort_by_hand)
    assert not isinstance(caught.value, OvertakenError)


def test_an_unreadable_ledger_does_not_hide_the_error(tv2, caplog):
    """If the ledger is unreadable, a task raises its original error and logs a warning."""
    with process_of_its_own():
        stream, other = _stream(tv2, "first"), _stream(tv2, "newcomer")
        hooks = []

        def take_over():
            other.plan()
            refusal = AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            hooks.append(tv2.broker.on(ApiKey.LIST_OFFSETS, refusal))

        with caplog.at_level(logging.WARNING), pytest.raises(KafkaError) as caught:
            _write_while(tv2, stream, 0, take_over)
        hooks[0].remove()
    assert not isinstance(caught.value, OvertakenError)
    assert "another driver has taken over transactionalIdPrefix" in caplog.text
    assert "TOPIC_AUTHORIZATION_FAILED" in caplog.text


def test_a_commit_whose_winners_were_aborted_names_the_other_driver(world):
    """A commit whose winners a new driver has aborted names that driver in its error."""

    def take_over(point):
        if point is Point.COMMIT_FENCED:
            world.driver("somewhere, process 7").plan()

    driver = world.driver(observe=take_over)
    plan = driver.plan()
    prepared = world.worker.run(plan)
    with pytest.raises(OvertakenError, match="somewhere, process 7 claimed generation"):
        driver.commit(plan, prepared)
    assert [] == world.visible()


def test_a_batch_decided_again_names_the_other_driver(world):
    """A driver whose decided batch another driver has decided again names that driver."""

    def undo(point):
        if point is Point.DECIDED:
            for one in prepared:
                world.abort_by_hand(one.transaction)
            world.finish(driver=world.driver("somewhere, process 7"))

    driver = world.driver(observe=undo)
    plan = driver.plan()
    prepared = world.worker.run(plan)
    with pytest.raises(OvertakenError, match="somewhere, process 7 claimed generation") as caught:
        driver.commit(plan, prepared)
    assert f"{QUERY!r} has moved on since batch 0 was decided" in str(caught.value)
    assert each_once(0) == world.visible()
