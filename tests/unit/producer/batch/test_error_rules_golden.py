"""The error rule tables, repeated here so that no row changes by accident.

`test_error_rules` checks the effect of each row, and this module checks what each row says. Both
follow Java's client: `Sender.completeBatch` and `canRetry`, and the handlers of
`TransactionManager`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.producer.batch.error_rules import (
    ABORT_RULES,
    MAY_BE_APPENDED,
    PRODUCE_RULES,
    TXN_RULES,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import Enum

#: The error codes of each action.
PRODUCE = {
    "COMPLETE": "NONE DUPLICATE_SEQUENCE_NUMBER",
    "RETRY": (
        "CORRUPT_MESSAGE REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS "
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND THROTTLING_QUOTA_EXCEEDED UNKNOWN_LEADER_EPOCH "
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR "
        "CONCURRENT_TRANSACTIONS"
    ),
    "REFRESH_METADATA": (
        "UNKNOWN_TOPIC_OR_PARTITION LEADER_NOT_AVAILABLE NOT_LEADER_OR_FOLLOWER "
        "REPLICA_NOT_AVAILABLE NETWORK_EXCEPTION KAFKA_STORAGE_ERROR LISTENER_NOT_FOUND "
        "FENCED_LEADER_EPOCH UNKNOWN_TOPIC_ID INCONSISTENT_TOPIC_ID"
    ),
    "SPLIT": "MESSAGE_TOO_LARGE",
    "BUMP_EPOCH": "OUT_OF_ORDER_SEQUENCE_NUMBER UNKNOWN_PRODUCER_ID",
    "FAIL_BATCH": (
        "UNKNOWN_SERVER_ERROR INVALID_TOPIC_EXCEPTION RECORD_LIST_TOO_LARGE "
        "INVALID_REQUIRED_ACKS TOPIC_AUTHORIZATION_FAILED INVALID_TIMESTAMP INVALID_REQUEST "
        "UNSUPPORTED_FOR_MESSAGE_FORMAT POLICY_VIOLATION UNSUPPORTED_COMPRESSION_TYPE "
        "INVALID_RECORD INVALID_PRODUCER_EPOCH INVALID_TXN_STATE TRANSACTION_ABORTABLE"
    ),
    "FATAL": (
        "CLUSTER_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED "
        "UNSUPPORTED_VERSION INVALID_PRODUCER_ID_MAPPING PRODUCER_FENCED"
    ),
}
TRANSACTIONS = {
    "FIND_COORDINATOR": {
        "DONE": "NONE",
        "ABORTABLE": "TRANSACTION_ABORTABLE GROUP_AUTHORIZATION_FAILED",
        "RETRY": "COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS",
        "FATAL": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    },
    "INIT_PRODUCER_ID": {
        "DONE": "NONE",
        "FIND_COORDINATOR": "COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR",
        "FENCED": "INVALID_PRODUCER_EPOCH PRODUCER_FENCED",
        "RETRY": "COORDINATOR_LOAD_IN_PROGRESS CONCURRENT_TRANSACTIONS",
        "UNAUTHORIZED": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED",
        "FATAL": "INVALID_TRANSACTION_TIMEOUT TRANSACTION_ABORTABLE",
    },
    "ADD_PARTITIONS_TO_TXN": {
        "DONE": "NONE",
        "ABORTABLE": "TRANSACTION_ABORTABLE TOPIC_AUTHORIZATION_FAILED",
        "FIND_COORDINATOR": "COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR",
        "FENCED": "INVALID_PRODUCER_EPOCH PRODUCER_FENCED",
        "FATAL": (
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING"
        ),
        "RETRY": "COORDINATOR_LOAD_IN_PROGRESS UNKNOWN_TOPIC_OR_PARTITION",
        "RETRY_SOON": "CONCURRENT_TRANSACTIONS",
        "NOT_ATTEMPTED": "OPERATION_NOT_ATTEMPTED",
        "ABORTABLE_WITH_BUMP": "UNKNOWN_PRODUCER_ID",
    },
    "ADD_OFFSETS_TO_TXN": {
        "DONE": "NONE",
        "ABORTABLE": "TRANSACTION_ABORTABLE GROUP_AUTHORIZATION_FAILED",
        "FIND_COORDINATOR": "COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR",
        "FENCED": "INVALID_PRODUCER_EPOCH PRODUCER_FENCED",
        "FATAL": (
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING"
        ),
        "RETRY": "COORDINATOR_LOAD_IN_PROGRESS",
        "RETRY_SOON": "CONCURRENT_TRANSACTIONS",
        "ABORTABLE_WITH_BUMP": "UNKNOWN_PRODUCER_ID",
    },
    "TXN_OFFSET_COMMIT": {
        "DONE": "NONE",
        "ABORTABLE": (
            "TRANSACTION_ABORTABLE GROUP_AUTHORIZATION_FAILED FENCED_INSTANCE_ID "
            "UNKNOWN_MEMBER_ID ILLEGAL_GENERATION"
        ),
        "FIND_COORDINATOR": "COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR REQUEST_TIMED_OUT",
        "FENCED": "INVALID_PRODUCER_EPOCH PRODUCER_FENCED",
        "RETRY": "COORDINATOR_LOAD_IN_PROGRESS UNKNOWN_TOPIC_OR_PARTITION",
        "RETRY_SOON": "CONCURRENT_TRANSACTIONS",
        "FATAL": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED UNSUPPORTED_FOR_MESSAGE_FORMAT",
    },
    "END_TXN": {
        "DONE": "NONE",
        "ABORTABLE": "TRANSACTION_ABORTABLE",
        "FIND_COORDINATOR": "COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR",
        "FENCED": "INVALID_PRODUCER_EPOCH PRODUCER_FENCED",
        "FATAL": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED INVALID_PRODUCER_ID_MAPPING",
        "ABORTABLE_WITH_BUMP": "INVALID_TXN_STATE UNKNOWN_PRODUCER_ID",
        "RETRY": "COORDINATOR_LOAD_IN_PROGRESS",
        "RETRY_SOON": "CONCURRENT_TRANSACTIONS",
    },
}
ABORT = {
    "DONE": "NONE",
    "FATAL": (
        "TRANSACTION_ABORTABLE TRANSACTIONAL_ID_AUTHORIZATION_FAILED INVALID_PRODUCER_ID_MAPPING"
    ),
    "FIND_COORDINATOR": "COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR",
    "REINITIALIZE": "INVALID_PRODUCER_EPOCH PRODUCER_FENCED INVALID_TXN_STATE UNKNOWN_PRODUCER_ID",
    "RETRY": "COORDINATOR_LOAD_IN_PROGRESS",
    "RETRY_SOON": "CONCURRENT_TRANSACTIONS",
}
APPENDED = (
    "KAFKA_STORAGE_ERROR NETWORK_EXCEPTION NOT_ENOUGH_REPLICAS_AFTER_APPEND "
    "NOT_LEADER_OR_FOLLOWER REQUEST_TIMED_OUT"
)


def _by_code(actions: Mapping[str, str]) -> dict[str, str]:
    return {code: action for action, codes in actions.items() for code in codes.split()}


def _named(rules: Mapping[int, Enum]) -> dict[str, str]:
    return {ErrorCode(code).name: action.name for code, action in rules.items()}


def test_the_meaning_of_each_produce_response():
    """A batch completes, is retried, is split, or fails, alone or together with its producer."""
    assert _by_code(PRODUCE) == _named(PRODUCE_RULES)


@pytest.mark.parametrize("api_key", list(ApiKey), ids=lambda api_key: api_key.name)
def test_the_meaning_of_each_transactional_response(api_key):
    """APIs that are not transactional have no table."""
    expected = _by_code(TRANSACTIONS.get(api_key.name, {}))
    assert expected == _named(TXN_RULES.get(api_key, {}))


def test_the_meaning_of_each_response_to_an_abort():
    """An apparent fencing may be an abort by the coordinator, which was faster (KIP-588)."""
    assert _by_code(ABORT) == _named(ABORT_RULES)


def test_codes_after_which_a_batch_may_have_been_appended():
    """A batch that may have been appended never gets a new sequence number."""
    assert set(APPENDED.split()) == {ErrorCode(code).name for code in MAY_BE_APPENDED}
