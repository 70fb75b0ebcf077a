"""What the error of a batch reports: the records, the cause, and the advice."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import DeliveryTimeoutError, KafkaError
from spark_kafka_sink.producer.batch.error_rules import (
    ADVICE,
    MAX_REFUSED_RECORDS,
    advice_of,
    delivery_error,
    refused_records,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from tests.support.producer.producer_batches import batch


class _Rows:
    """Rows numbered from 70 on that record which of them were looked up."""

    def __init__(self) -> None:
        self.lookups: list[int] = []

    def row_of(self, index: int) -> int:
        self.lookups.append(index)
        return 70 + index


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, 12_345])
def test_an_error_code_without_advice_refers_to_the_broker_log(code):
    """An error code without advice of its own refers to the broker's log."""
    error = delivery_error(batch(), broker_error(code, "the broker refused the batch"))
    assert str(error).endswith(". Check the broker's log for the reason")


@pytest.mark.parametrize("code", ADVICE)
def test_the_error_ends_with_the_advice_for_its_code(code):
    """The cause comes before the advice and is chained to the error."""
    cause = broker_error(code, "the broker refused the batch")
    error = delivery_error(batch(), cause)
    assert str(error).endswith(f"{cause}. {advice_of(code)}")
    assert cause is error.__cause__


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ErrorCode.PRODUCER_FENCED, "Another producer with this transactional.id has taken over"),
        (
            ErrorCode.INVALID_PRODUCER_EPOCH,
            "abort the transaction. If that succeeds, write it again",
        ),
        (ErrorCode.INVALID_TXN_STATE, "committed none of it. Abort it, and write it again"),
        (ErrorCode.TRANSACTION_ABORTABLE, "Abort the transaction, and write it again"),
    ],
)
def test_transaction_errors_say_how_to_proceed(code, advice):
    """The advice for transactions says whether to abort, to close, or to write again."""
    assert advice in str(delivery_error(batch(), broker_error(code, "refused")))


def test_a_delivery_timeout_has_its_own_advice():
    """A delivery timeout has its own advice, because no broker has returned an error."""
    error = delivery_error(batch(), DeliveryTimeoutError("not acknowledged within 5 ms"))
    assert str(error).endswith("or raise delivery.timeout.ms")


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (
            ErrorCode.UNKNOWN_TOPIC_ID,
            "check that it has this partition, and send the records again",
        ),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "or recreated with fewer partitions: check"),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, "Check that the brokers are running and not overloaded"),
    ],
)
def test_a_missing_partition_has_its_own_advice(code, advice):
    """The advice for a missing partition is not to allow more time, which would not help."""
    late = DeliveryTimeoutError("not acknowledged within 5 ms")
    late.__cause__ = broker_error(code, "refused")
    assert advice in str(delivery_error(batch(), late))


def test_the_error_names_the_first_rejected_rows_and_counts_the_rest():
    """The error names the first five rows, and only those are looked up."""
    refused_batch = batch(records=9)
    refused_batch.rows = rows = _Rows()
    refused = refused_records(refused_batch, {index: f"bad {index}" for index in range(8, 0, -1)})
    assert list(range(1, 1 + MAX_REFUSED_RECORDS)) == rows.lookups
    error = str(delivery_error(refused_batch, broker_error(87, "refused"), refused))
    assert "Rejected: row 71 (bad 1). Rejected: row 72 (bad 2)." in error
    assert "row 75 (bad 5). And 3 more." in error


def test_rejected_records_without_rows_are_named_by_their_batch_index():
    """Records that were sent one by one are named by their index in the batch."""
    refused_batch = batch(records=3)
    refused = refused_records(refused_batch, {1: "", 2: "too old"})
    error = str(delivery_error(refused_batch, broker_error(87, "refused"), refused))
    assert "Rejected: record 1 of the batch (no reason given)." in error
    assert "Rejected: record 2 of the batch (too old)." in error


@pytest.mark.parametrize(
    ("refused", "names"),
    [
        (0, ""),
        (1, " Rejected: record 0 of the batch (bad)."),
        (5, "".join(f" Rejected: record {index} of the batch (bad)." for index in range(5))),
        (
            6,
            "".join(f" Rejected: record {index} of the batch (bad)." for index in range(5))
            + " And 1 more.",
        ),
    ],
)
def test_the_error_names_up_to_five_rejected_records(refused, names):
    """The error names up to five refused records and counts the others, if there are any."""
    refused_batch = batch(records=7)
    records = refused_records(refused_batch, dict.fromkeys(range(refused), "bad"))
    error = delivery_error(refused_batch, KafkaError("refused"), records)
    assert str(error) == (
        "7 records for t-0, among rows 0 to 6 were not delivered: refused."
        f"{names} Check the broker's log for the reason"
    )


@pytest.mark.parametrize(
    ("records", "start"),
    [
        (1, "1 record for t-0, row 0, was not delivered: "),
        (2, "2 records for t-0, among rows 0 to 1 were not delivered: "),
    ],
)
def test_the_verb_agrees_with_the_number_of_records(records, start):
    """The verb agrees with the number of records."""
    assert str(delivery_error(batch(records=records), KafkaError("refused"))).startswith(start)


def test_the_error_names_the_known_rows_of_the_batch():
    """The error names the range of rows, only its beginning, or no rows."""
    whole, open_ended, unnumbered = batch(records=3), batch(records=3), batch(records=3)
    open_ended.last_row = unnumbered.last_row = unnumbered.first_row = None
    assert [
        "3 records for t-0, among rows 0 to 2",
        "3 records for t-0, from row 0 on",
        "3 records for t-0",
    ] == [str(each) for each in (whole, open_ended, unnumbered)]
