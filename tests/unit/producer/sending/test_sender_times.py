"""When the Sender runs again, how long it waits, and how it ends."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.errors import DeliveryError, NetworkError
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.producer.sending.sender import TransactionRequestSender
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from tests.support.producer.sender_harness import PLAIN, SenderHarness, place, produce_response
from tests.support.producer.transactions_over_mock import TRANSACTIONAL

if TYPE_CHECKING:
    from collections.abc import Callable

BACKOFFS = {"retry_backoff_ms": 128, "retry_backoff_max_ms": 1_024}


@pytest.fixture
def no_jitter(monkeypatch):
    """Make every back-off last exactly as long as its base value."""
    monkeypatch.setattr(random.Random, "uniform", lambda *_: 1.0)


# --- back-offs


@pytest.mark.usefixtures("no_jitter")
def test_the_backoff_of_a_batch_doubles_with_each_failure():
    """The back-off grows from retry.backoff.ms to retry.backoff.max.ms (KIP-580)."""
    with SenderHarness(**BACKOFFS, **PLAIN) as harness:
        harness.add()
        harness.step()
        delays = []
        for _ in range(5):
            harness.produce(ErrorCode.NOT_ENOUGH_REPLICAS)
            delays.append(harness.step() - harness.now)
            harness.step(delays[-1])
        assert [0.128, 0.256, 0.512, 1.024, 1.024] == pytest.approx(delays, rel=1e-6)


@pytest.mark.usefixtures("no_jitter")
def test_the_backoff_of_an_id_request_doubles_with_each_failure():
    """Requests for an id back off like batches, but the first attempt is sent at once."""
    with SenderHarness(**BACKOFFS) as harness:
        harness.add()
        delays = []
        for _ in range(5):
            harness.step()
            harness.take(ApiKey.INIT_PRODUCER_ID).answer(
                InitProducerIdResponse(
                    error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    producer_id=-1,
                    producer_epoch=-1,
                )
            )
            delays.append(harness.step() - harness.now)
            assert [] == harness.network.sent
            harness.step(delays[-1])
        assert [0.128, 0.256, 0.512, 1.024, 1.024] == pytest.approx(delays, rel=1e-6)


# --- the request timeout


def test_a_metadata_request_has_the_request_timeout():
    """A metadata request has a deadline of request.timeout.ms."""
    with SenderHarness(request_timeout_ms=4_000, **PLAIN) as harness:
        deadlines = []

        async def update_metadata(deadline: float) -> None:
            deadlines.append(deadline)

        harness.network.update_metadata = update_metadata
        harness.step()
        assert [harness.now + 4.0] == deadlines


def test_the_search_for_a_broker_has_the_request_timeout():
    """The search for any broker has a deadline of request.timeout.ms."""
    with SenderHarness(request_timeout_ms=4_000) as harness:
        deadlines = []

        async def least_loaded_connection(deadline: float) -> None:
            deadlines.append(deadline)
            raise NetworkError("none is up")

        harness.network.least_loaded_connection = least_loaded_connection
        harness.add()
        harness.step()
        assert [harness.now + 4.0] == deadlines


@pytest.mark.parametrize(("left", "updates", "next_at"), [(-1, 1, NEVER), (0, 1, NEVER), (1, 0, 1)])
def test_metadata_is_requested_when_due(left, updates, next_at):
    """Metadata is requested when it is due, and its response, not a timer, runs the loop again."""
    with SenderHarness(**PLAIN) as harness:
        harness.network.metadata.next_update_at = lambda: harness.now + left
        assert harness.now + next_at == harness.step()
        assert updates == harness.network.metadata_updates


def test_metadata_is_requested_once():
    """While a metadata request is in flight, the loop sends no second one."""
    with SenderHarness(**PLAIN) as harness:
        harness.network.is_updating_metadata = True
        harness.network.metadata.next_update_at = lambda: harness.now
        assert NEVER == harness.step()
        assert 0 == harness.network.metadata_updates


# --- expiry


@pytest.mark.parametrize(("throttle", "expires_at"), [(119.95, 120.0), (120.0, 130.0)])
def test_a_throttle_up_to_the_delivery_timeout_postpones_expiry(throttle, expires_at):
    """A batch gets request.timeout.ms from then on, to the millisecond (KIP-219)."""
    with SenderHarness(request_timeout_ms=10_000, **PLAIN) as harness:
        harness.network.down = {0}
        harness.network.throttled[0] = harness.now + throttle
        added = harness.add()
        harness.step()
        harness.step(expires_at - 0.005)
        assert not added.is_done
        harness.step(0.005)
        assert isinstance(added.result.error, DeliveryError)


def test_a_postponed_expiry_is_checked_every_second():
    """The throttle may end early, and batches of other brokers expire in time."""
    with SenderHarness(**PLAIN) as harness:
        harness.network.down = {0, 1}
        harness.network.throttled[0] = harness.now + 130
        throttled, other = harness.add(0), harness.add(1)
        harness.step()
        assert harness.now + 121.0 == harness.step(120)
        assert [False, True] == [throttled.is_done, other.is_done]


def test_a_batch_that_fails_with_its_connection_delays_no_expiry():
    """The batches behind it expire in the same run."""
    with SenderHarness(**PLAIN) as harness:
        harness.network.stalled = {0}
        harness.network.down = {1}
        harness.add(0)
        waiting = harness.add(1)
        harness.step()
        harness.sender.run_once(harness.now + 120)
        assert isinstance(waiting.result.error, DeliveryError)


def _queues_seen_by_gather(harness: SenderHarness, fail: Callable[[], object]) -> list[bool]:
    """Run the loop, and `fail` when it rests; return whether each gathering found an empty queue.

    The open batch of a partition is only closed if its queue is empty.
    """
    seen: list[bool] = []
    at_rest: list[list[bool]] = []

    def gather(_: float) -> float:
        seen.append(harness.accumulator.is_queue_empty(place()))
        return NEVER

    harness.sender._gather = gather
    harness.run_to_the_end(fail, lambda: at_rest.append(list(seen)), harness.sender.initiate_close)
    return at_rest[0]


def test_a_batch_left_open_behind_an_expired_one_is_gathered_at_once(plain):
    """The loop runs again after a batch has expired, because nothing else signals that."""
    plain.network.down = {0}
    plain.add()
    plain.step()

    def expire() -> None:
        plain.now += 120
        plain.sender.wakeup()

    assert [False, False, True] == _queues_seen_by_gather(plain, expire)


def test_a_batch_left_open_behind_an_unauthorized_one_is_gathered_at_once():
    """The loop runs again after it has failed the batches that need an id it may not have."""
    with SenderHarness() as harness:
        harness.add()
        harness.step()
        refusal = InitProducerIdResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, producer_id=-1, producer_epoch=-1
        )
        sent = harness.take(ApiKey.INIT_PRODUCER_ID)
        seen = _queues_seen_by_gather(harness, lambda: sent.answer(refusal))
        assert [False, False, True] == seen


OWN, NETWORKS = NetworkError("the batch's"), NetworkError("the network's")
LEADERS = NetworkError("the leader's")


@pytest.mark.parametrize(
    ("own", "networks", "leaders", "cause"),
    [
        (OWN, NETWORKS, None, "the batch's"),
        (OWN, None, None, "the batch's"),
        (None, NETWORKS, None, "the network's"),
        (None, None, None, "no broker answered"),
        (OWN, NETWORKS, LEADERS, "the leader's"),
    ],
)
def test_the_error_of_an_expired_batch_names_the_last_cause(plain, own, networks, leaders, cause):
    """The cause is why its leader is not connected, the batch's last error, or the network's."""
    plain.network.down = {0}
    plain.network.last_error = networks
    plain.network.connect_errors = {} if leaders is None else {0: leaders}
    added = plain.add()
    added.last_error = own
    plain.step(120)
    expiry = added.result.error.__cause__
    assert str(expiry).endswith(f"last cause: {cause}")
    assert (leaders or own or networks) is expiry.__cause__


# --- versions


@pytest.mark.parametrize(
    ("settings", "level", "is_highest"),
    [
        (PLAIN, 2, True),
        ({}, 2, True),
        ({}, 1, True),
        (TRANSACTIONAL, 2, True),
        (TRANSACTIONAL, 1, False),
    ],
    ids=["plain", "idempotent", "idempotent-tv1", "tv2", "tv1"],
)
def test_only_a_tv1_transaction_limits_the_produce_version(settings, level, is_highest):
    """From version 12 on Produce adds the partition, on which a TV1 transaction must not rely."""
    with SenderHarness(transaction_version=level, **settings) as harness:
        if settings is TRANSACTIONAL:
            harness.begin(0)
        else:
            harness.add()
            if harness.manager is not None:
                harness.initialize()
            harness.step()
        sent = harness.take(ApiKey.PRODUCE)
        assert (sent.request.highest_version if is_highest else 11) == sent.version


# --- transactions


def test_a_transaction_ends_only_in_a_run_after_its_commit(monkeypatch):
    """A transaction ends only in a run that starts after its commit and sees all its batches."""
    checks = []
    advance = TransactionRequestSender.advance

    def noting(
        self: TransactionRequestSender, now: float, *, has_incomplete_batches: bool
    ) -> float:
        checks.append(has_incomplete_batches)
        return advance(self, now, has_incomplete_batches=has_incomplete_batches)

    monkeypatch.setattr(TransactionRequestSender, "advance", noting)
    with SenderHarness(**TRANSACTIONAL) as harness:
        harness.begin(0)
        harness.produce()
        checks.clear()
        harness.step()
        harness.manager.begin_commit()
        harness.step()
        assert [True, False] == checks


def test_a_batch_left_open_behind_an_aborted_one_is_gathered_at_once(tv2):
    """The loop runs again after it has failed the batches of a transaction that must abort."""
    tv2.begin(0)
    tv2.network.down = {0}
    tv2.add()
    tv2.step()

    def abort() -> None:
        tv2.manager.maybe_transition_to_error_state(DeliveryError("a record was lost"))
        tv2.sender.wakeup()

    assert [False, False, True] == _queues_seen_by_gather(tv2, abort)


def test_an_end_without_a_request_runs_the_loop_again(tv2, monkeypatch):
    """An end without a request runs the loop again, because no response will wake it."""
    tv2.initialize()
    woken = []
    monkeypatch.setattr(tv2.sender, "wakeup", lambda: woken.append(tv2.now))
    tv2.manager.begin_transaction()
    result = tv2.manager.begin_commit()
    tv2.step()
    assert [tv2.now] == woken
    result.wait(0)
    tv2.manager.begin_transaction()
    tv2.add()
    tv2.step()
    tv2.produce()
    tv2.manager.begin_commit()
    tv2.step()
    woken.clear()
    tv2.step()
    assert [] == woken
    assert [ApiKey.END_TXN] == [sent.request.api_key for sent in tv2.network.sent]


# --- the loop


def _runs(harness: SenderHarness, *answers: float) -> list[float]:
    """Run the loop once for each answer, and return the timeouts of its timers."""
    delays: list[float] = []
    left = list(answers)

    def call_later(delay: float, _: Callable[[], None]) -> SimpleNamespace:
        delays.append(delay)
        return SimpleNamespace(cancel=lambda: None)

    harness.sender._loop = SimpleNamespace(call_later=call_later, call_soon=harness._loop.call_soon)
    harness.sender.run_once = lambda now: left.pop(0) if left else NEVER
    wakeups = [harness.sender.wakeup] * (len(answers) - 1)
    harness.run_to_the_end(*wakeups, harness.sender.initiate_close)
    return delays


def test_the_loop_sleeps_until_the_next_run(plain):
    """Only an earlier time replaces the timer; a time that has passed is not slept for."""
    assert [7.0, 0.25, 0] == _runs(
        plain, NEVER, plain.now + 7, plain.now + 8, NEVER, plain.now + 0.25, plain.now - 3
    )


def test_a_timer_that_has_fired_is_set_again(plain):
    """Each timer that fires runs the loop once, and that run sets the next timer."""
    timers = []

    def call_later(delay: float, callback: Callable[[], None]) -> SimpleNamespace:
        timers.append((delay, callback))
        return SimpleNamespace(cancel=lambda: None)

    def fire() -> None:
        plain.now += 3
        timers[-1][1]()

    plain.sender._loop = SimpleNamespace(call_later=call_later, call_soon=plain._loop.call_soon)
    plain.sender.run_once = lambda now: now + 3
    plain.run_to_the_end(fire, fire, plain.sender.initiate_close)
    assert [3.0, 3.0, 3.0] == [delay for delay, _ in timers]


def test_an_error_of_a_run_ends_the_loop(plain):
    """The loop raises what a run raises, whatever it is, and does not run again."""

    class Interrupt(BaseException):
        pass

    def fail(_: float) -> float:
        raise Interrupt

    def break_down() -> None:
        plain.sender.run_once = fail
        plain.sender.wakeup()

    with pytest.raises(Interrupt):
        plain.run_to_the_end(break_down)
    plain.sender.turn()


def test_the_loop_does_not_sleep_beyond_its_deadline(plain):
    """The loop does not sleep beyond the deadline of the close."""
    plain.add()
    plain.sender.initiate_close(timeout=5)
    assert [5.0, 2.0] == _runs(plain, NEVER, plain.now + 2)


@pytest.mark.parametrize("timeouts", [(60, 5), (5, 60)], ids=str)
def test_the_earlier_of_two_deadlines_counts(plain, timeouts):
    """A second close does not postpone the first."""
    plain.add()
    plain.step()
    for timeout in timeouts:
        plain.sender.initiate_close(timeout)
    plain.now += 5
    plain.run_to_the_end()
    assert plain.accumulator.has_incomplete


def test_the_end_cancels_pending_tasks(plain):
    """The end cancels pending tasks, and does not raise their cancellation."""
    ends = []

    async def update_metadata(deadline: float) -> None:
        del deadline
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(plain.now)

    plain.network.update_metadata = update_metadata
    plain.run_to_the_end(plain.sender.initiate_close)
    assert [plain.now] == ends


@pytest.mark.parametrize("settings", [PLAIN, {}, TRANSACTIONAL], ids=["plain", "idempotent", "tv2"])
def test_an_idle_loop_runs_once(settings):
    """Without work nothing that the loop does wakes it again."""
    with SenderHarness(**settings) as harness:
        harness.step()
        runs = []
        run_once = harness.sender.run_once
        harness.sender.run_once = lambda now: runs.append(now) or run_once(now)
        harness.run_to_the_end(
            lambda: None, lambda: runs.append(None), harness.sender.initiate_close
        )
        assert [harness.now, None] == runs


def _turns_after_last_response(
    harness: SenderHarness,
    code: int = 0,
    *,
    before: Callable[[], object] = lambda: None,
    then: Callable[[], object] = lambda: None,
) -> int:
    """Return how often the loop runs after the response to the only queued batch.

    `before` is called before the response, `then` after the turns were counted.
    """
    harness.add()
    if harness.manager is not None:
        harness.initialize()
    harness.step()
    sent = harness.take(ApiKey.PRODUCE)
    runs: list[int] = []
    run_once = harness.sender.run_once
    harness.sender.run_once = lambda now: runs.append(1) or run_once(now)
    counts: list[int] = []
    harness.run_to_the_end(
        before,
        lambda: counts.append(len(runs)),
        lambda: sent.answer(produce_response(sent, code)),
        lambda: counts.append(len(runs)),
        then,
        lambda: harness.sender.initiate_close(1),
    )
    return counts[1] - counts[0]


@pytest.mark.parametrize("settings", [PLAIN, {}], ids=["plain", "idempotent"])
def test_the_last_response_does_not_run_the_loop_again(settings):
    """With nothing queued or open, a run would find nothing to do."""
    with SenderHarness(**settings) as harness:
        assert 0 == _turns_after_last_response(harness)


def test_a_response_does_not_run_the_loop_while_all_other_batches_are_in_flight(plain):
    """Only a queued batch could be sent now."""
    plain.add(1)
    plain.step()
    plain.network.sent.insert(0, plain.network.sent.pop())
    other = plain.take(ApiKey.PRODUCE)
    turns = _turns_after_last_response(plain, then=lambda: other.answer(produce_response(other)))
    assert 0 == turns
    assert not plain.accumulator.has_incomplete


def test_a_response_after_which_a_partition_must_restart_runs_the_loop():
    """A refused batch leaves a gap in an idempotent producer's sequence numbers."""
    with SenderHarness() as harness:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert 1 == _turns_after_last_response(harness, code)
        assert not harness.manager.is_settled


def test_a_batch_left_open_behind_the_last_response_is_gathered_at_once(plain):
    """It was not closed while its partition's queue was not empty, and no timer is set for it."""
    plain.sender._has_open = lambda: True
    assert 1 == _turns_after_last_response(plain)


@pytest.mark.parametrize("backoff", [0, 1], ids=str)
def test_metadata_that_the_last_response_found_outdated_is_updated_in_time(plain, backoff):
    """An update that is due before the next run is started or scheduled, with no batch left."""
    plain.network.is_updating_metadata = True
    due_at = [NEVER]
    plain.network.metadata.next_update_at = lambda: due_at[0]
    turns = _turns_after_last_response(
        plain, before=lambda: due_at.__setitem__(0, plain.now + backoff)
    )
    assert 1 == turns
