"""Fault hooks: which hook is called, how often, and what is counted."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.net.faults import AnswerError, CloseConnection, Delay, Faults
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.headers import RequestHeader

ERROR = AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def header(api_key=ApiKey.PRODUCE):
    return RequestHeader(request_api_key=api_key, request_api_version=9, correlation_id=1)


def decide(faults, api_key=ApiKey.PRODUCE, request=None):
    return faults.decide(request, header(api_key), 0.0, 1, 1)


def test_without_hooks_nothing_happens():
    """Without hooks every request is handled normally."""
    assert None is decide(Faults())


def test_an_action_happens_to_every_request_of_its_api():
    """An action given instead of a function applies to every request of its API."""
    faults = Faults()
    faults.on(ApiKey.PRODUCE, ERROR)

    assert [ERROR, ERROR, None] == [
        decide(faults),
        decide(faults),
        decide(faults, ApiKey.METADATA),
    ]


def test_a_function_chooses_by_request_and_context():
    """A function gets the request and the number of requests it has been called for."""
    faults = Faults()
    hook = faults.on(
        ApiKey.PRODUCE,
        lambda request, context: Delay(1.0) if (request, context.number) == ("b", 2) else None,
    )

    actions = [decide(faults, request=request) for request in "abb"]

    assert [None, Delay(1.0), None] == actions
    assert (3, 1) == (hook.seen, hook.fired)


def test_a_hook_acts_at_most_the_given_number_of_times():
    """A hook that has acted the given number of times is not called again."""
    faults = Faults()
    hook = faults.on(ApiKey.PRODUCE, CloseConnection(), times=2)

    assert [CloseConnection(), CloseConnection(), None] == [decide(faults) for _ in range(3)]
    assert (2, 2) == (hook.seen, hook.fired)


def test_requests_that_a_hook_lets_pass_do_not_count():
    """Only requests on which the hook acts count."""
    faults = Faults()
    faults.on(ApiKey.PRODUCE, lambda _, context: ERROR if context.number > 2 else None, times=1)

    assert [None, None, ERROR, None] == [decide(faults) for _ in range(4)]


def test_the_first_hook_that_acts_wins():
    """Hooks are called in the order of registration until one of them acts."""
    faults = Faults()
    faults.on(ApiKey.PRODUCE, ERROR, times=1)
    second = faults.on(ApiKey.PRODUCE, Delay(1.0))

    assert [ERROR, Delay(1.0)] == [decide(faults), decide(faults)]
    assert 1 == second.seen


def test_a_hook_can_be_removed():
    """A removed hook is not called again; removing it twice has no effect."""
    faults = Faults()
    hook = faults.on(ApiKey.PRODUCE, ERROR)
    hook.remove()
    hook.remove()

    assert None is decide(faults)


@pytest.mark.parametrize("times", [0, -1])
def test_a_fault_happens_at_least_once(times):
    """A fault that can never happen is a mistake in the test that sets it."""
    with pytest.raises(ConfigError):
        Faults().on(ApiKey.PRODUCE, ERROR, times=times)
