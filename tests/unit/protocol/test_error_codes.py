from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.protocol.error_codes import (
    ErrorCode,
    broker_error,
    error_name,
    is_invalid_metadata,
    is_retriable,
)


def test_codes_have_kafkas_names():
    """Every code that kio generates from Kafka's source exists here under the same name."""
    theirs = {code.value: code.name.upper() for code in KioErrorCode}
    assert theirs == {code: error_name(code) for code in theirs}


def test_there_are_no_gaps():
    """Codes run from -1 to the last one of Kafka 4.4, each with a meaning."""
    assert list(range(-1, 137)) == sorted(ErrorCode)
    assert [] == [code for code in ErrorCode if not code.meaning]


def test_retriable_codes_equal_kios():
    """The same codes are retriable as in kio, which is generated from Kafka's source."""
    theirs = [code.value for code in KioErrorCode if code.retriable]
    assert theirs == [code.value for code in KioErrorCode if is_retriable(code.value)]


def test_codes_for_stale_metadata_equal_javas():
    """These are the codes for which the Java client refreshes its metadata."""
    expected = {
        "UNKNOWN_TOPIC_OR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER",
        "REPLICA_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "KAFKA_STORAGE_ERROR",
        "LISTENER_NOT_FOUND",
        "FENCED_LEADER_EPOCH",
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        "ELECTION_NOT_NEEDED",
        "UNKNOWN_TOPIC_ID",
        "INCONSISTENT_TOPIC_ID",
    }
    assert expected == {code.name for code in ErrorCode if is_invalid_metadata(code)}


def test_an_unknown_code_keeps_its_number():
    """A code of a newer broker is not retriable and is named by its number."""
    error = broker_error(999, "topic 't'")
    assert isinstance(error, BrokerError)
    assert (999, "UNKNOWN_CODE_999") == (error.code, error.name)
    assert (False, False) == (error.retriable, error.invalid_metadata)
    assert "UNKNOWN_CODE_999" == error_name(999)
    assert is_retriable(999) is False
    assert is_invalid_metadata(999) is False


@pytest.mark.parametrize(
    ("code", "retriable", "invalid_metadata"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True, True),
        (ErrorCode.NOT_ENOUGH_REPLICAS, True, False),
        (ErrorCode.MESSAGE_TOO_LARGE, False, False),
    ],
)
def test_an_error_has_its_context_and_meaning(code, retriable, invalid_metadata):
    """The message has the context, and the meaning, the name and the number of the code."""
    error = broker_error(code, "partition t-0")
    expected = f"partition t-0: {code.meaning} ({code.name}, code {code.value})"
    assert expected == str(error)
    assert (retriable, invalid_metadata) == (error.retriable, error.invalid_metadata)
    assert (code, code.name) == (error.code, error.name)
