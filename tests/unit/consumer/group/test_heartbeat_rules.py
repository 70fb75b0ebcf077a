"""The table of reactions to the error codes of ConsumerGroupHeartbeat."""

from __future__ import annotations

import pytest

from spark_kafka_sink.consumer.group.consumer_membership import (
    HEARTBEAT_ADVICE,
    HEARTBEAT_RULES,
    HeartbeatAction,
    heartbeat_action,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode, is_retriable

_A, _E = HeartbeatAction, ErrorCode
UNLISTED = [code for code in ErrorCode if code not in HEARTBEAT_RULES]


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (_E.NONE, _A.DONE),
        (_E.COORDINATOR_LOAD_IN_PROGRESS, _A.RETRY),
        (_E.COORDINATOR_NOT_AVAILABLE, _A.FIND_COORDINATOR),
        (_E.NOT_COORDINATOR, _A.FIND_COORDINATOR),
        (_E.UNKNOWN_MEMBER_ID, _A.REJOIN),
        (_E.FENCED_MEMBER_EPOCH, _A.REJOIN),
        (_E.TOPIC_AUTHORIZATION_FAILED, _A.RETRY_AND_RAISE),
        (_E.GROUP_ID_NOT_FOUND, _A.FATAL_IN_GROUP),
        (_E.REQUEST_TIMED_OUT, _A.RETRY),
        (_E.UNKNOWN_SERVER_ERROR, _A.FATAL),
        (999, _A.FATAL),
    ],
)
def test_each_code_has_its_action(code, action):
    """The actions are those of Java, except that unknown retriable codes are retried."""
    assert action is heartbeat_action(code)


@pytest.mark.parametrize(
    "code",
    [
        _E.GROUP_AUTHORIZATION_FAILED,
        _E.INVALID_REQUEST,
        _E.INVALID_REGULAR_EXPRESSION,
        _E.GROUP_MAX_SIZE_REACHED,
        _E.UNSUPPORTED_ASSIGNOR,
        _E.UNSUPPORTED_VERSION,
        _E.UNRELEASED_INSTANCE_ID,
        _E.FENCED_INSTANCE_ID,
    ],
)
def test_fatal_codes_are_fatal(code):
    """Retrying does not help against them."""
    assert _A.FATAL is HEARTBEAT_RULES[code]


@pytest.mark.parametrize("code", UNLISTED, ids=lambda code: code.name)
def test_codes_without_a_rule_are_retried_or_fatal(code):
    """It depends on what Kafka says of the code in general."""
    assert (_A.RETRY if is_retriable(code) else _A.FATAL) is heartbeat_action(code)


@pytest.mark.parametrize(
    "code",
    [
        code
        for code, action in HEARTBEAT_RULES.items()
        if action.name in {"FATAL", "FATAL_IN_GROUP", "RETRY_AND_RAISE"}
    ],
)
def test_each_error_of_the_user_has_an_advice(code):
    """What the user can do is said, without a full stop."""
    assert HEARTBEAT_ADVICE[code][-1] not in ". "
