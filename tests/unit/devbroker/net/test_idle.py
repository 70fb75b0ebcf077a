"""The event loop of an idle broker sleeps, however many clients wait."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.devbroker.broker_asker import produce_request
from tests.support.network.raw_client import RawClient
from tests.support.record.plain_batches import plain_batch

CONSUMERS = 30
IDLE_SECONDS = 0.5
#: A call into the loop takes an iteration to run and one to end, and maybe one more for each.
TURNS_OF_ASKING = 8
LONG_MS = 600_000


def fetch(offset):
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=10**6)
    return FetchRequest(
        max_wait_ms=LONG_MS,
        min_bytes=1,
        topics=(FetchTopic(topic="t", partitions=(partition,)),),
    )


class LoopWatch:
    """A counter of how often the broker's event loop has polled its selector."""

    def __init__(self, broker):
        self._broker = broker
        self.count = 0
        broker.call(self._begin)

    def _begin(self, _):
        selector = next(iter(self._broker._server._servers.values())).loop._selector
        select = selector.select

        def counted(timeout=None):
            self.count += 1
            return select(timeout)

        selector.select = counted

    def of_idleness(self):
        """Count the iterations during a pause without requests."""
        before = self._broker.call(lambda _: self.count)
        threading.Event().wait(IDLE_SECONDS)
        return self._broker.call(lambda _: self.count) - before


@pytest.fixture(params=[1, 3], ids=["one broker", "three brokers"])
def broker(request):
    with DevBroker(brokers=request.param, topics={"t": 1}) as broker:
        yield broker


def test_waiting_consumers_do_not_run_the_event_loop(broker):
    """With thirty open long polls, the event loop runs only for the calls that count its runs."""
    watch = LoopWatch(broker)
    with ExitStack() as stack:
        consumers = [stack.enter_context(RawClient(broker.port)) for _ in range(CONSUMERS)]
        for consumer in consumers:
            consumer.send(fetch(0), 12)
        wait_until_watched(broker, CONSUMERS)

        assert watch.of_idleness() <= TURNS_OF_ASKING

        # The waiting fetches still get their responses.
        with RawClient(broker.port) as producer:
            producer.ask(produce_request("t", plain_batch(1)), 9)
        assert [0] * CONSUMERS == [consumer.receive()[0] for consumer in consumers]


def wait_until_watched(broker, clients):
    """Wait until this many clients wait for the topic."""
    pause = threading.Event()

    def waiting(_):
        dispatcher = next(iter(broker._server._servers.values())).dispatcher
        return sum(map(len, dispatcher._watching.values()))

    assert any(clients == broker.call(waiting) or pause.wait(0.01) for _ in range(3000))
