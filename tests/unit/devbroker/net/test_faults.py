"""Fault hooks: which hook is called, how often, and what is counted."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.base.partition_faults import (
    AlterRecords,
    OmitPartitions,
    PartitionError,
)
from spark_kafka_sink.devbroker.net.faults import (
    AlterResponse,
    AnswerError,
    CloseConnection,
    Corrupt,
    Delay,
    Faults,
    Throttle,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.registry import RequestHeader

ERROR = AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.fixture(autouse=True)
def _faults_act():
    """Replace the check of all tests: these ask for what they expect."""


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


@pytest.mark.parametrize("api", ["produce", "PRODUCE", ApiKey.PRODUCE])
def test_an_api_may_be_named(api):
    """A hook takes the names that the command line takes."""
    faults = Faults()
    hook = faults.on(api, ERROR)

    assert ERROR == decide(faults)
    assert "<FaultHook for PRODUCE: injected 1 time>" == repr(hook)


def test_an_api_may_be_named_with_hyphens():
    """Words may be separated as in an option."""
    assert ApiKey.FIND_COORDINATOR is Faults().on("find-coordinator", ERROR).api_key


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("producing", ERROR), "'producing' is not an API of Kafka: name one, such as 'produce'"),
        ((0, ERROR), "0 is not an API of Kafka"),
        ((None, ERROR), "None is not an API of Kafka"),
        ((ApiKey.PRODUCE, CloseConnection), r"must not be a class: write CloseConnection\(...\)"),
        ((ApiKey.PRODUCE, None), r"an action, such as CloseConnection\(\), or a function .* None"),
        ((ApiKey.PRODUCE, "close"), "not 'close'"),
        ((ApiKey.PRODUCE, lambda: None), "must take two arguments, a request and its context"),
        ((ApiKey.PRODUCE, lambda request: None), "must take two arguments"),
    ],
)
def test_a_hook_that_could_never_act_is_refused(arguments, message):
    """The error says which argument is wrong, at the call and not in the broker's thread."""
    with pytest.raises(ConfigError, match=message):
        Faults().on(*arguments)


@pytest.mark.parametrize("times", ["3", 1.5, True])
def test_times_is_a_whole_number(times):
    """Other types are refused."""
    with pytest.raises(ConfigError, match="times must be a whole number, not"):
        Faults().on(ApiKey.PRODUCE, ERROR, times=times)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AnswerError("NOT_LEADER_OR_FOLLOWER"), "a member of ErrorCode.* not 'NOT_LEADER"),
        (lambda: AnswerError(6), "a member of ErrorCode, .* not 6"),
        (lambda: Delay("5"), "seconds must be finite and not negative, not '5'"),
        (lambda: Delay(-1), "not -1"),
        (lambda: Throttle(float("nan")), "not nan"),
        (lambda: Throttle(None), "not None"),
        (lambda: Corrupt(b"x"), "alter must be a function, not b'x'"),
        (lambda: AlterResponse(None), "alter must be a function, not None"),
        (lambda: AlterRecords(b""), "alter must be a function"),
        (lambda: PartitionError("X"), "a member of ErrorCode"),
        (lambda: PartitionError(ErrorCode.CORRUPT_MESSAGE, "t"), "partitions must be pairs"),
        (lambda: OmitPartitions(("t", 0)), "partitions must be pairs"),
    ],
)
def test_an_action_checks_its_values(make, message):
    """Values that would fail in the broker's thread are refused when the action is made."""
    with pytest.raises(ConfigError, match=message):
        make()


def test_an_expected_hook_must_act():
    """`check` and `remove` raise AssertionError as long as an expected hook has not acted."""
    faults = Faults()
    hook = faults.on(
        "produce", lambda _, context: ERROR if context.number > 1 else None, expect=True
    )
    faults.on("fetch", ERROR)
    decide(faults)

    with pytest.raises(AssertionError, match="PRODUCE was asked about 1 PRODUCE request and acted"):
        faults.check()
    decide(faults)
    faults.check()
    hook.remove()


def test_an_expected_hook_that_is_removed_must_have_acted():
    """Removing the hook ends the wait for its first action; removing it again does nothing."""
    faults = Faults()
    hook = faults.on("produce", ERROR, expect=True)

    with pytest.raises(AssertionError, match="was never injected"):
        hook.remove()
    hook.remove()
    faults.check()


def test_the_end_of_a_broker_checks_its_expected_hooks():
    """The `with` block fails for a fault that was never injected, unless it has failed already."""
    with pytest.raises(AssertionError, match="was never injected"), DevBroker() as broker:
        broker.on("produce", CloseConnection(), expect=True)
    with pytest.raises(ConfigError, match="'fitch' is not"), DevBroker() as broker:
        broker.on(broker.on("produce", ERROR, expect=True) and "fitch", ERROR)
