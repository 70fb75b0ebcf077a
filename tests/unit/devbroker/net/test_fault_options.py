"""Faults given on the command line."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.net.fault_options import parse_fault
from spark_kafka_sink.devbroker.net.faults import (
    AnswerError,
    CloseConnection,
    Corrupt,
    Delay,
    NeverAnswer,
    Throttle,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("produce:close", (ApiKey.PRODUCE, CloseConnection(), None)),
        ("produce:drop-answer:3", (ApiKey.PRODUCE, CloseConnection(handled=True), 3)),
        ("End-Txn:never-answer:1", (ApiKey.END_TXN, NeverAnswer(), 1)),
        ("END_TXN:swallow-answer", (ApiKey.END_TXN, NeverAnswer(handled=True), None)),
        (
            "produce:error=not_leader_or_follower:2",
            (ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER), 2),
        ),
        (
            "produce:late-error=NOT_ENOUGH_REPLICAS_AFTER_APPEND",
            (
                ApiKey.PRODUCE,
                AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, handled=True),
                None,
            ),
        ),
        ("metadata:delay=0.5", (ApiKey.METADATA, Delay(0.5), None)),
        ("metadata:delay-answer=2", (ApiKey.METADATA, Delay(2.0, handled=True), None)),
        ("fetch:throttle=1", (ApiKey.FETCH, Throttle(1.0), None)),
        ("fetch:corrupt:1", (ApiKey.FETCH, Corrupt(), 1)),
    ],
)
def test_a_fault_is_read(text, expected):
    """A fault consists of an API, an action and an optional number of times."""
    assert expected == parse_fault(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no API ''"),
        ("producing:close", "no API 'producing'"),
        ("produce", "'' is none of close, drop-answer"),
        ("produce:explode", "'explode' is none of"),
        ("produce:close=1", "'close=1' is none of"),
        ("produce:error", "'' is no error code"),
        ("produce:error=NO_SUCH", "'NO_SUCH' is no error code"),
        ("produce:delay=soon", "'soon' is not a number of seconds"),
        ("produce:delay=-1", "cannot take -1 seconds"),
        ("produce:delay=nan", "cannot take nan seconds"),
        ("produce:throttle=inf", "cannot take inf seconds"),
        ("produce:close:often", "'often' is not a number of times"),
        ("produce:close:0", "cannot happen 0 times"),
    ],
)
def test_what_is_no_fault_is_refused(text, message):
    """The error quotes the part that is wrong."""
    with pytest.raises(ConfigError, match=message):
        parse_fault(text)
