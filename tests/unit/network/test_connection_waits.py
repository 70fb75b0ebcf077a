"""The first wait for a cluster: what ends it early, and what does not."""

from __future__ import annotations

import asyncio
import re

import pytest

from spark_kafka_sink.errors import (
    AuthenticationError,
    DecodeError,
    KafkaTimeoutError,
    NetworkError,
)
from spark_kafka_sink.model import Node
from spark_kafka_sink.network import connection_waits
from spark_kafka_sink.network.connection_waits import (
    FINAL_SECONDS,
    Patience,
    UnreachedError,
    look_for_brokers,
    wait_for_answer,
    wait_for_leaders,
)


class _Client:
    """A client that fails as scripted and records the time and the limit of each wait."""

    def __init__(self, *outcomes, finds_nobody=False):
        self._outcomes = list(outcomes)
        self.finds_nobody = finds_nobody
        self.requests = []

    async def wait_for_topics(self, topics, deadline, *, limit, since):
        self.requests.append((topics, round(deadline - since), limit))
        outcome = self._outcomes.pop(0)
        if outcome is not None:
            raise outcome


def wait(*outcomes, seconds=60.0, finds_nobody=False, is_final=lambda: False):
    """Wait for a topic; return the requests and the reason for waiting on, or raise."""

    async def run():
        client = _Client(*outcomes, finds_nobody=finds_nobody)
        reasons = []
        try:
            await wait_for_answer(
                client, ["t"], Patience(seconds, "x"), is_final=is_final, on_wait=reasons.append
            )
        except Exception as error:
            error.requests = client.requests
            raise
        return client.requests, reasons

    return asyncio.run(run())


FIRST = (["t"], FINAL_SECONDS, connection_waits._FINAL)
SECOND = (["t"], 60, "x")


def test_a_response_ends_the_wait():
    """No further request follows a response."""
    assert ([FIRST], []) == wait(None)


@pytest.mark.parametrize("kind", [NetworkError, KafkaTimeoutError])
def test_transient_errors_are_waited_out(kind):
    """A broker that is slow or not reached has the whole time, and the caller learns why."""
    error = kind("slow")
    assert ([FIRST, SECOND], [error]) == wait(error, None)


def test_refused_connections_end_the_wait_early():
    """If every connection is refused the wait ends after a few seconds."""
    with pytest.raises(NetworkError, match="refused") as caught:
        wait(NetworkError("refused"), finds_nobody=True)
    assert [FIRST] == caught.value.requests


def test_a_final_failure_ends_the_wait_early():
    """A failure that the caller knows to be final ends the wait after a few seconds."""
    with pytest.raises(KafkaTimeoutError, match="unknown") as caught:
        wait(KafkaTimeoutError("unknown"), is_final=lambda: True)
    assert [FIRST] == caught.value.requests


def test_a_permanent_error_ends_the_wait_at_once():
    """A permanent error is not retried."""
    with pytest.raises(AuthenticationError) as caught:
        wait(AuthenticationError("no"))
    assert [FIRST] == caught.value.requests


def test_a_smaller_limit_takes_precedence():
    """A limit below those few seconds is the only one, and is named."""
    with pytest.raises(KafkaTimeoutError) as caught:
        wait(KafkaTimeoutError("slow"), seconds=1.0)
    assert [(["t"], 1, "x")] == caught.value.requests


class _Leaders:
    """A client whose partitions are led by the first of these nodes, and later by the next ones."""

    def __init__(self, *leaders, ready=(), busy=(), wrong=(), refusals=None):
        self._leaders = list(leaders)
        self._ready = ready
        self._busy = busy
        self._wrong = wrong
        self._refusals = refusals or {}
        self.metadata = self
        self.dialled = False
        self.updates = 0

    def leaders(self):
        return self._leaders[:1]

    def ready_connection(self, node):
        return "a connection" if node in self._ready else None

    def is_connected(self, node):
        return node in self._ready or node in self._busy

    def refusal_of(self, node):
        return self._refusals.get(node)

    def never_reached(self, node):
        return NetworkError(f"nobody at {node}") if node in self._wrong else None

    def connect_error(self, node):
        return self.never_reached(node)

    def dial_all(self):
        self.dialled = True

    @property
    def isolation(self):
        assert self.dialled
        return None if self._ready else NetworkError("nobody at all")

    def cause(self, node):
        return NetworkError(f"{node} is silent")

    def next_update_at(self):
        return 0.0

    async def update_metadata(self, deadline):
        self.updates += 1
        if self._leaders[1:]:
            self._leaders.pop(0)
        raise NetworkError("no answer")


def reach(client, *, seconds):
    """Wait for leaders, with the patience of this many seconds."""
    asyncio.run(wait_for_leaders(client, client.leaders, Patience(seconds, "x")))


ONE, TWO = Node(1, "one", 9092), Node(2, "two", 9092)


def test_leaders_that_can_be_reached_are_enough():
    """A connection to each leader ends the wait; without a leader, there is nothing to wait for."""
    reach(_Leaders(ONE, ready=[ONE]), seconds=3600)
    reach(_Leaders(), seconds=3600)


def test_a_leader_whose_connection_is_busy_was_reached():
    """Requests in flight, or a throttle, keep it from taking another request now."""
    reach(_Leaders(ONE, busy=[ONE]), seconds=3600)


def test_a_new_leader_is_waited_for():
    """While a leader cannot be reached, brokers are asked for others, even if none answers."""
    client = _Leaders(ONE, TWO, ready=[TWO])
    reach(client, seconds=3600)
    assert 1 == client.updates


def test_a_leader_that_alone_was_never_reached_may_have_crashed():
    """If another broker is reached, the addresses are right, and another leader is waited for."""
    client = _Leaders(ONE, TWO, ready=[TWO], wrong=[ONE])
    reach(client, seconds=3600)
    assert 1 == client.updates


def test_a_leader_with_a_wrong_address_ends_the_wait():
    """If nothing has ever listened where a leader should be, waiting longer does not help."""
    with pytest.raises(UnreachedError) as caught:
        reach(_Leaders(ONE, wrong=[ONE]), seconds=3600)
    assert "nobody at one:9092 (id 1); waiting longer would not help" == str(caught.value)


def test_a_silent_leader_is_waited_for_until_the_limit():
    """A leader that may respond has the whole time; then it, the limit and the cause are named."""
    with pytest.raises(NetworkError) as caught:
        reach(_Leaders(ONE), seconds=0.1)
    text = r"no connection to one:9092 \(id 1\) after .* s \(x\); last cause: one:9092 .* is silent"
    assert re.fullmatch(text, str(caught.value))


def test_a_refusal_of_a_leader_ends_the_wait_at_once():
    """Every further attempt would meet it again."""
    with pytest.raises(AuthenticationError, match="no"):
        reach(_Leaders(ONE, refusals={ONE: AuthenticationError("no")}), seconds=3600)


def test_a_refusal_of_another_broker_does_not_matter():
    """Only the leaders of the topics concerned are needed."""
    client = _Leaders(ONE, TWO, ready=[TWO], refusals={TWO: AuthenticationError("no")})
    reach(client, seconds=3600)
    assert 1 == client.updates


class _Metadata:
    """Metadata that may be requested again only long after the first contact."""

    def next_update_at(self):
        return asyncio.get_running_loop().time() + 60


class _SilentClient:
    """A client whose first request fails."""

    metadata = _Metadata()

    def __init__(self, error, *, finds_nobody=False):
        self.error = error
        self.finds_nobody = finds_nobody
        self.requests = 0

    async def update_metadata(self, deadline):
        self.requests += 1
        raise self.error


def look(error, *, seconds=60.0, finds_nobody=False):
    """Look for brokers; return the number of requests, or raise."""

    async def run():
        client = _SilentClient(error, finds_nobody=finds_nobody)
        await look_for_brokers(client, asyncio.get_running_loop().time() + seconds)
        return client.requests

    return asyncio.run(run())


@pytest.mark.parametrize("error", [NetworkError("slow"), DecodeError("starting")], ids=repr)
def test_a_look_leaves_failures_that_may_pass_to_its_caller(error):
    """A broker that is slow, or answers nonsense, is the caller's to wait for."""
    assert 1 == look(error)


@pytest.mark.parametrize(
    ("error", "finds_nobody"),
    [(NetworkError("refused"), True), (AuthenticationError("wrong password"), False)],
    ids=repr,
)
def test_a_look_raises_what_waiting_does_not_change(error, finds_nobody):
    """Nobody is there, or a broker has refused the login."""
    with pytest.raises(type(error), match=str(error)):
        look(error, finds_nobody=finds_nobody)


def test_a_caller_with_less_time_does_not_look():
    """Its own limit ends the wait sooner, and its error names that limit."""
    assert 0 == look(NetworkError("refused"), seconds=FINAL_SECONDS - 1, finds_nobody=True)
