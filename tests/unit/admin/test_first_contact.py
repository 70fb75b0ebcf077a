"""The first wait for a cluster: what ends it early, and what does not."""

from __future__ import annotations

import asyncio

import pytest

from spark_kafka_sink.admin import first_contact
from spark_kafka_sink.admin.first_contact import FINAL_SECONDS, Patience, wait_for_answer
from spark_kafka_sink.errors import AuthenticationError, KafkaTimeoutError, NetworkError


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


FIRST = (["t"], FINAL_SECONDS, first_contact._FINAL)
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
