"""Faults given on the command line."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.partition_faults import (
    AlterRecords,
    OmitPartitions,
    PartitionError,
)
from spark_kafka_sink.devbroker.net.faults import (
    AnswerError,
    CloseConnection,
    Corrupt,
    Delay,
    NeverAnswer,
    Throttle,
    parse_fault,
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
        (
            "list-offsets:partition-error=leader_not_available:2",
            (ApiKey.LIST_OFFSETS, PartitionError(ErrorCode.LEADER_NOT_AVAILABLE), 2),
        ),
        ("fetch:omit-partitions", (ApiKey.FETCH, OmitPartitions(), None)),
        ("fetch:corrupt-records:1", (ApiKey.FETCH, AlterRecords(), 1)),
    ],
)
def test_a_fault_is_read(text, expected):
    """A fault consists of an API, an action and an optional number of times."""
    assert expected == parse_fault(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not an API"),
        ("producing:close", "'producing' is not an API"),
        ("produce", "'' is not one of close, drop-answer"),
        ("produce:explode", "'explode' is not one of"),
        ("produce:close=1", "'close=1' is not one of"),
        ("produce:error", "'' is not a Kafka error code"),
        ("produce:error=NO_SUCH", "'NO_SUCH' is not a Kafka error code"),
        ("produce:delay=soon", "'soon' is not a number of seconds"),
        ("produce:delay=-1", "not negative, not -1"),
        ("produce:delay=nan", "must be finite .* not nan"),
        ("produce:throttle=inf", "must be finite .* not inf"),
        ("produce:close:often", "'often' is not a number of times"),
        ("produce:close:0", "at least 1, not 0"),
        ("produce:corrupt-records", "affects FETCH, not PRODUCE"),
        ("fetch:partition-error=NO_SUCH", "'NO_SUCH' is not a Kafka error code"),
    ],
)
def test_a_malformed_fault_is_refused(text, message):
    """The error quotes the part that is wrong."""
    with pytest.raises(ConfigError, match=message):
        parse_fault(text)
