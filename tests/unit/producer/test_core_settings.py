"""Settings reach the parts of a producer in the units that those use, with nothing added."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError
from spark_kafka_sink.metrics import client_metrics
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.producer import producer_core
from spark_kafka_sink.producer.sender_metrics import TimedCall
from spark_kafka_sink.producer.threaded_core import ThreadedCore
from spark_kafka_sink.record.key_hashes import DEFAULT_KEY_RULE
from tests.support.producer.producer_batches import batch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

SETTINGS = {
    "bootstrap.servers": "127.0.0.1:9",
    "linger.ms": 1_001,
    "max.block.ms": 2_003,
    "request.timeout.ms": 3_005,
    "delivery.timeout.ms": 4_007,
    "metadata.max.idle.ms": 5_009,
    "partitioner.availability.timeout.ms": 6_011,
    "metrics.sample.window.ms": 7_013,
}


def _core(
    undo: ExitStack,
    *,
    lingers: bool = True,
    clock: Callable[[], float] = lambda: 100.0,
    **settings: object,
) -> ThreadedCore:
    return ThreadedCore(
        ProducerConfig.from_mapping({**SETTINGS, **settings}),
        partitioner=DEFAULT_KEY_RULE,
        lingers=lingers,
        undo=undo,
        clock=clock,
        wall_clock=lambda: 1_700_000_000.9876,
    )


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as undo:
        yield undo


class _Parts:
    """A recorder of the arguments that the parts of a core are built with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: dict[str, dict[str, Any]] = {}
        self.positional: dict[str, tuple[Any, ...]] = {}
        self._patch = monkeypatch

    def note(self, module: object, name: str) -> None:
        make = getattr(module, name)

        def noting(*arguments: Any, **given: Any) -> Any:
            self.given[name], self.positional[name] = given, arguments
            return make(*arguments, **given)

        self._patch.setattr(module, name, noting)


@pytest.fixture
def parts(monkeypatch) -> _Parts:
    parts = _Parts(monkeypatch)
    for name in ("SenderMetrics", "RecordAccumulator", "NodeLatencies", "RecordGatherer"):
        parts.note(producer_core, name)
    parts.note(client_metrics, "MetricConfig")
    return parts


def test_the_parts_get_times_in_seconds(parts, undo):
    """The parts get seconds, although the settings are in milliseconds, as in Kafka."""
    core = _core(undo)
    assert 1.001 == parts.given["RecordGatherer"]["linger"]
    assert 2.003 == parts.given["RecordGatherer"]["max_block"]
    assert 102.003 == core.give_up_at()
    assert 4.007 == parts.given["RecordAccumulator"]["delivery_timeout"]
    assert 5.009 == parts.given["SenderMetrics"]["topic_expiration"]
    assert (6.011,) == parts.positional["NodeLatencies"]
    assert 7.013 == parts.given["MetricConfig"]["window"]


def test_a_producer_that_does_not_linger_has_no_linger_time(parts, undo):
    """The batches of a bulk producer are closed by callers, or when they are full."""
    _core(undo, lingers=False)
    assert parts.given["RecordGatherer"]["linger"] is None


@pytest.mark.parametrize(("in_flight", "is_one"), [(1, True), (2, False), (5, False)])
def test_order_is_guaranteed_with_one_request_in_flight(parts, undo, in_flight, is_one):
    """Without idempotence a retry could be overtaken by a second request in flight."""
    _core(
        undo, **{"max.in.flight.requests.per.connection": in_flight, "enable.idempotence": "false"}
    )
    assert is_one == parts.given["RecordAccumulator"]["guarantee_order"]


def test_the_time_of_a_record_is_in_milliseconds(parts, undo):
    """The timestamp is truncated, not rounded, so that it is never in the future."""
    _core(undo)
    assert 1_700_000_000_987 == parts.given["RecordGatherer"]["wall_clock_ms"]()


# --- calls from other threads


class _Thread:
    """A stand-in for the network thread that records the timeouts of calls."""

    is_current = False
    is_alive = True

    def __init__(self) -> None:
        self.timeouts: list[float] = []
        self.calls: list[object] = []

    def run(self, coroutine: Any, timeout: float) -> None:
        coroutine.close()
        self.timeouts.append(timeout)

    def call_soon(self, function: object) -> None:
        self.calls.append(function)


class _Client:
    """A stand-in for the client that records the deadlines of metadata refreshes."""

    def __init__(self) -> None:
        self.deadlines: list[float] = []

    def cause(self) -> None:
        return None

    def refresh_metadata(self, deadline: float) -> Coroutine[Any, Any, None]:
        self.deadlines.append(deadline)
        return asyncio.sleep(0)


@pytest.mark.parametrize(
    ("timeout", "deadline"), [(1.5, 101.5), (2.003, 102.003), (60.0, 102.003), (0.0, 100.0)]
)
def test_max_block_ms_limits_a_metadata_refresh(undo, timeout, deadline):
    """A shorter timeout takes precedence over max.block.ms."""
    core = _core(undo)
    core._thread, core._client = _Thread(), _Client()
    core.refresh_metadata(timeout)
    assert [deadline] == core._client.deadlines
    assert [pytest.approx(deadline - 100.0)] == core._thread.timeouts


def test_a_refresh_after_its_deadline_does_not_wait(undo):
    """A refresh whose deadline has passed meanwhile waits for 0 seconds."""
    times = [100.0]

    class _SlowClient(_Client):
        def refresh_metadata(self, deadline: float) -> Coroutine[Any, Any, None]:
            times.append(105.0)
            return super().refresh_metadata(deadline)

    core = _core(undo, clock=lambda: times[-1])
    core._thread, core._client = _Thread(), _SlowClient()
    core.refresh_metadata(1.0)
    assert [0] == core._thread.timeouts


@pytest.mark.parametrize(("give_up_at", "left"), [(101.5, 1.5), (100.0, 0), (99.0, 0)])
def test_a_transactional_call_waits_until_its_deadline(undo, give_up_at, left):
    """A transactional call waits for the rest of its deadline, and its error names max.block.ms."""
    core = _core(undo)
    core._thread, core._client = _Thread(), _Client()
    waits = []

    class _Result:
        def wait(self, timeout: float, last_error: Any, *, limit: float) -> None:
            waits.append((timeout, last_error(), limit))

    core.await_transaction(_Result(), give_up_at)
    assert [(left, None, 2.003)] == waits
    assert 1 == len(core._thread.calls)


def test_the_network_thread_is_woken_for_the_first_batch_of_a_queue_only(undo):
    """A batch behind another is sent as soon as the network thread goes on with that one."""
    core = _core(undo)
    core._thread = _Thread()
    assert [True, False, True] == [core.enqueue(batch(place)) for place in (0, 0, 1)]


def test_the_network_thread_is_woken_once_until_it_runs(undo):
    """The thread is woken once until it runs, and an interrupted wake-up does not count."""
    core = _core(undo)
    core._thread = thread = _Thread()
    for _ in range(3):
        core.wake_network_thread()
    assert 1 == len(thread.calls)

    class _Sender:
        def turn(self) -> None:
            """Do nothing."""

    core._sender = _Sender()
    thread.calls.pop()()
    core.wake_network_thread()
    assert 1 == len(thread.calls)
    thread.calls.pop()()

    def interrupt(function: object) -> None:
        raise KeyboardInterrupt

    call_soon, thread.call_soon = thread.call_soon, interrupt
    with pytest.raises(KeyboardInterrupt):
        core.wake_network_thread()
    thread.call_soon = call_soon
    core.wake_network_thread()
    assert 1 == len(thread.calls)


# --- services for the parts


@pytest.mark.parametrize(
    ("missing", "ready_at", "sendable_at"),
    [
        ("nothing", 90.0, 100.0),
        ("connection", 107.5, 107.5),
        ("connection", 100.0, NEVER),
        ("leader", 90.0, NEVER),
        ("empty queue", 90.0, NEVER),
    ],
)
def test_a_batch_can_be_sent_once_its_leader_accepts_requests(undo, missing, ready_at, sendable_at):
    """Only the end of a throttle or back-off is a time; all other changes wake the thread."""
    core = _core(undo)
    updates = []
    core.accumulator.is_queue_empty = lambda _: missing != "empty queue"
    core._client = SimpleNamespace(
        metadata=SimpleNamespace(
            snapshot=SimpleNamespace(leader_of=lambda _: None if missing == "leader" else "node"),
            request_update=lambda: updates.append("requested"),
        ),
        ready_connection=lambda _: None if missing == "connection" else "connection",
        ready_at=lambda _: ready_at,
    )
    assert sendable_at == core.sendable_at(TopicPartition("t", 0), 100.0)
    assert (["requested"] if missing == "leader" else []) == updates


@pytest.mark.parametrize("records", [1, 3])
def test_records_that_reached_no_batch_are_counted(undo, records):
    """A failed send counts one record unless the number is given."""
    core = _core(undo)
    if records == 1:
        core.note_failed_send(KafkaError("refused"))
    else:
        core.note_failed_send(KafkaError("refused"), records)
    [metric] = [
        metric
        for name, metric in core.metrics.metrics().items()
        if (name.name, name.group) == ("record-error-total", "producer-metrics")
    ]
    assert records == metric.value()


# --- closing and flushing


class _Ending:
    """A core without threads that records how long each of its parts may take to end."""

    def __init__(self, undo: ExitStack) -> None:
        self.now = 100.0
        self.core = _core(undo, clock=lambda: self.now)
        #: How long closing the batches takes.
        self.spent = 0.0
        self.deadlines: list[float | None] = []
        self.closes: list[float] = []
        self.joins: list[float] = []
        self.callback_waits: list[float | None] = []
        thread = _Thread()
        thread.call_soon = lambda function: function()
        thread.join = lambda timeout: self.joins.append(timeout) or True
        self.core._thread = thread
        self.core._sender = SimpleNamespace(turn=lambda: None, initiate_close=self.closes.append)

        def close_batches(deadline: float | None) -> None:
            self.deadlines.append(deadline)
            self.now += self.spent

        self.core.gatherer.close_batches = close_batches
        self.core.callbacks.wait = lambda left: self.callback_waits.append(left) or True


@pytest.fixture
def ending(undo) -> _Ending:
    return _Ending(undo)


@pytest.mark.parametrize(
    ("timeout", "spent", "deadlines", "left"),
    [
        (None, 1.0, [None], 2.003),
        (5.0, 1.5, [105.0], 3.5),
        (5.0, 7.0, [105.0], 0),
        (0, 7.0, [], 0),
        (-0.0, 7.0, [], 0),
    ],
)
def test_closing_gives_the_network_thread_the_remaining_time(
    ending, timeout, spent, deadlines, left
):
    """The network thread gets the rest of the timeout, and ten seconds more to end."""
    ending.spent = spent
    ending.core.close(timeout)
    assert (deadlines, [left], [left + 10.0]) == (ending.deadlines, ending.closes, ending.joins)


@pytest.mark.parametrize("timeout", [None, 5.0, 0])
def test_a_producer_that_has_ended_is_closed_at_once(ending, timeout):
    """After the producer has ended nothing can be sent, so closing does not wait."""
    ending.core.accumulator.refuse(KafkaError("ended"))
    ending.core.close(timeout)
    assert ([], [0], [10.0]) == (ending.deadlines, ending.closes, ending.joins)


@pytest.mark.parametrize(("timeout", "is_raised"), [(None, True), (5.0, True), (0, False)])
def test_close_raises_lost_rows_unless_its_timeout_is_0(ending, timeout, is_raised):
    """Lost rows that have no future are raised, except by a close with a timeout of 0."""
    ending.core.accumulator.remember_losses()
    ending.core.accumulator.note_loss(KafkaError("lost"))
    with pytest.raises(KafkaError, match="lost") if is_raised else nullcontext():
        ending.core.close(timeout)
    assert [10.0] == ending.joins


@pytest.mark.parametrize(
    ("timeout", "spent", "deadline", "left"),
    [(None, 1.0, None, None), (5.0, 1.5, 105.0, 3.5), (5.0, 7.0, 105.0, 0)],
)
def test_a_flush_gives_callbacks_the_remaining_time(ending, timeout, spent, deadline, left):
    """A flush gives callbacks the time that is left after all batches have ended."""
    ending.spent = spent
    ending.core.flush(timeout)
    assert ([deadline], [left]) == (ending.deadlines, ending.callback_waits)
    ending.core.callbacks.wait = lambda _: False
    with pytest.raises(KafkaTimeoutError, match="not all delivery callbacks"):
        ending.core.flush(timeout)


def test_the_duration_of_a_call_is_measured(ending):
    """The duration of a call is recorded even if the call raises."""
    calls = []
    ending.core.sender_metrics.on_timed_call = lambda *measured: calls.append(measured)

    def call() -> None:
        with ending.core.timed(TimedCall.FLUSH):
            ending.now += 2.5
            raise KeyError

    with pytest.raises(KeyError):
        call()
    assert [(TimedCall.FLUSH, 2.5, 102.5)] == calls
