"""The values and errors of the public admin client, without a broker."""

from __future__ import annotations

import pickle

from spark_kafka_sink import AdminError, AlterConfigOp, BrokerError, KafkaTimeoutError


def test_items_with_the_same_error_are_named_together():
    """The message stays short if all items of a long list have the same error."""
    error = BrokerError("refused", code=29, name="TOPIC_AUTHORIZATION_FAILED")

    assert "DeleteTopics failed for 8 of 9: t0, t1, t2, t3, t4 and 3 more: refused" == str(
        AdminError("DeleteTopics", {f"t{it}": error for it in range(8)}, {"done": None})
    )


def test_many_different_errors_are_cut_short():
    """The message names the first errors only; all are in `errors`."""
    errors = {f"t{it}": KafkaTimeoutError(f"t{it} is late") for it in range(7)}
    error = AdminError("DeleteTopics", errors, {})

    assert str(error).endswith("t4: t4 is late; and 2 more errors, see `errors`")
    assert errors == error.errors


def test_a_change_of_a_setting_does_not_show_its_value():
    """The value of a setting may be a password, which a repr must not show."""
    assert "hunter2" not in repr(AlterConfigOp("ssl.keystore.password", "hunter2"))


def test_an_admin_error_survives_pickling():
    """An error that a task raises reaches the driver with its parts."""
    error = AdminError("DeleteTopics", {"t": KafkaTimeoutError("late")}, {"u": None})
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert (str(error), {"u": None}, True) == (str(copy), copy.results, copy.retriable)
