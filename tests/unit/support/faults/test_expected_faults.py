"""Every action that a test injects is expected to act."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError, CloseConnection
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from tests.support.faults.expected_faults import expected_faults, wait_until_injected
from tests.support.network.raw_client import RawClient

ERROR = AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
NEVER = r"never acted.*: \[<FaultHook for PRODUCE: injected 0 times>\]"


@pytest.fixture(autouse=True)
def _faults_act():
    """Replace the check of all tests: these call it themselves."""


@pytest.fixture
def broker():
    """Return a broker that is not started, and so does not end."""
    return DevBroker()


def test_an_action_must_act(broker):
    """The end of the test fails, although the test does not ask for it."""
    with pytest.raises(AssertionError, match=NEVER), expected_faults():
        broker.on(ApiKey.PRODUCE, ERROR)


def test_an_action_must_act_before_its_hook_is_removed(broker):
    """The end of the test fails for a hook that is no longer installed, too."""
    with pytest.raises(AssertionError, match=NEVER), expected_faults():
        broker.on(ApiKey.PRODUCE, ERROR).remove()


def test_a_test_can_expect_nothing(broker):
    """A test may show that no such request is sent, and a function may only watch requests."""
    with expected_faults():
        broker.on(ApiKey.PRODUCE, ERROR, expect=False)
        broker.on(ApiKey.PRODUCE, lambda *_: None)


def test_a_function_can_be_expected_to_act(broker):
    """It must return an action at least once."""
    with pytest.raises(AssertionError, match=NEVER), expected_faults():
        broker.on(ApiKey.PRODUCE, lambda *_: ERROR, expect=True)


def test_an_action_that_has_acted_is_enough():
    """Nothing is raised; after the test hooks are as for everybody else."""
    with DevBroker() as broker:
        with expected_faults():
            hook = broker.on(ApiKey.METADATA, CloseConnection())
            with RawClient(broker.port) as client:
                client.send(MetadataRequest(topics=()), 9)
                wait_until_injected(hook)
        broker.on(ApiKey.PRODUCE, ERROR)
