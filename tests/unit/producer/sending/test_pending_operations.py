"""The operations whose outcome the caller has not received."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import IllegalStateError, KafkaError
from spark_kafka_sink.producer.sending.transaction_state import (
    PendingOperations,
    TransactionalRequestResult,
)
from tests.support.producer.transactions_over_mock import GROUP, OFFSETS, S


def _committing() -> tuple[PendingOperations, TransactionalRequestResult]:
    operations, result = PendingOperations(), TransactionalRequestResult("commit_transaction")
    operations.begin(result, S.COMMITTING_TRANSACTION)
    return operations, result


def test_a_pending_operation_is_resumed_only_by_the_same_call():
    """The call that led to the same state gets the result; any other call gets none."""
    operations, result = _committing()
    assert result is operations.pending(S.COMMITTING_TRANSACTION)
    assert operations.pending(S.ABORTING_TRANSACTION) is None


def test_no_operation_starts_before_the_last_result_is_received():
    """A result that has ended but was not received still blocks; the error names both calls."""
    operations, result = _committing()
    result.done()
    with pytest.raises(IllegalStateError, match=r"^send is not .* call commit_transaction again"):
        operations.raise_if_pending("send")
    result.wait(0)
    assert operations.pending(S.COMMITTING_TRANSACTION) is None
    operations.raise_if_pending("send")


def test_a_failure_ends_the_pending_operation():
    """The caller that waits gets the error, and without a pending operation nothing happens."""
    operations, result = _committing()
    operations.fail(KafkaError("lost"))
    with pytest.raises(KafkaError, match="lost"):
        result.wait(0)
    PendingOperations().fail(KafkaError("lost"))


def test_equal_offsets_are_the_same_operation_until_the_result_is_received():
    """A repeated call with equal arguments waits for the same result."""
    operations, result = PendingOperations(), TransactionalRequestResult("send_offsets")
    operations.add_offsets(OFFSETS, GROUP, result)
    assert result is operations.pending_offsets(dict(OFFSETS), GROUP)
    assert operations.pending_offsets({}, GROUP) is None
    assert operations.pending_offsets(OFFSETS, GROUP._replace(group_id="others")) is None
    result.done()
    result.wait(0)
    assert operations.pending_offsets(OFFSETS, GROUP) is None


def test_offsets_of_an_earlier_transaction_are_forgotten():
    """Equal offsets in the next transaction are a new operation."""
    operations = PendingOperations()
    operations.add_offsets(OFFSETS, GROUP, TransactionalRequestResult("send_offsets"))
    operations.forget_offsets()
    assert operations.pending_offsets(OFFSETS, GROUP) is None
