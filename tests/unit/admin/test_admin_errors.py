"""The values and errors of the public admin client, without a broker."""

from __future__ import annotations

import pickle

import pytest

from spark_kafka_sink import (
    AclOperation,
    AclPermissionType,
    AdminError,
    AlterConfigOp,
    BrokerError,
    ConfigResource,
    ConfigResourceType,
    KafkaTimeoutError,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)


def test_items_with_the_same_error_are_named_together():
    """The message stays short if all items of a long list have the same error."""
    error = BrokerError("refused", code=29, name="TOPIC_AUTHORIZATION_FAILED")

    assert "DeleteTopics failed for 8 of 9: t0, t1, t2, t3, t4 and 3 more: refused" == str(
        AdminError("DeleteTopics", {f"t{it}": error for it in range(8)}, {"done": None})
    )


def test_an_empty_name_is_shown():
    """A name that is empty is as visible as any other."""
    refused = BrokerError("refused", code=17, name="INVALID_TOPIC_EXCEPTION")

    assert "DeleteTopics failed for 2 of 2: '', t: refused" == str(
        AdminError("DeleteTopics", {"": refused, "t": refused}, {})
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


def test_control_characters_of_names_are_escaped():
    """A name that someone else has given cannot change the terminal that shows the error."""
    evil = "evil\x1b[2J\n"
    error = AdminError("DeleteGroups", {evil: KafkaTimeoutError(f"{evil} is late")}, {})

    assert str(error).endswith(r"1 of 1: evil\x1b[2J\n: evil\x1b[2J\n is late")
    assert [evil] == list(error.errors)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ConfigResource(ConfigResourceType.BROKER, 1),
            "the name of a ConfigResource must be a text, such as '1', not 1",
        ),
        (lambda: ConfigResource(2, "orders"), "must be a ConfigResourceType.* not 2"),
        (lambda: AlterConfigOp("retention.ms", 77), "value of 'retention.ms' .* the type int"),
        (lambda: AlterConfigOp(b"retention.ms", "1"), "the name of a setting is a text"),
        (lambda: NewTopic("t", configs={"retention.ms": 77}), "value of 'retention.ms' must be"),
        (lambda: NewTopic(7), "the name of a topic is a text, not 7"),
    ],
)
def test_values_that_are_not_texts_are_rejected_where_they_are_made(make, message):
    """The error names what is wrong, but not the value of a setting, which may be a secret."""
    with pytest.raises(TypeError, match=message) as caught:
        make()
    assert "77" not in str(caught.value)


def test_settings_without_a_value_are_accepted():
    """None is the value of a setting that is to be deleted, or of a topic's default."""
    assert None is AlterConfigOp("retention.ms", None).value
    assert {"retention.ms": None} == NewTopic("t", configs={"retention.ms": None}).configs


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (ResourceType, "TOPIC", "write ResourceType.TOPIC or ResourceType['TOPIC']"),
        (ResourcePatternType, "Prefixed", "write ResourcePatternType.PREFIXED or "),
        (AclOperation, "READ", "'READ' is a name of AclOperation, not a code: write "),
        (AclPermissionType, "deny", "write AclPermissionType.DENY or AclPermissionType['DENY']"),
        (AclPermissionType, "2", "with one of the names UNKNOWN, ANY, DENY, ALLOW"),
        (AclOperation, "", "'' is no AclOperation: write AclOperation.NAME with"),
    ],
)
def test_a_text_is_not_a_code_of_acls(kind, text, message):
    """A name given as a text is an error that says how to write it, and is never UNKNOWN."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        kind(text)

    assert message in str(caught.value)


@pytest.mark.parametrize("kind", [ResourceType, ResourcePatternType, AclOperation])
def test_a_code_of_a_newer_broker_is_unknown(kind):
    """A number without a name is UNKNOWN, and anything but a number is an error."""
    assert [kind.UNKNOWN, kind.UNKNOWN] == [kind(99), kind(-1)]
    with pytest.raises(ValueError, match="None is not a valid"):
        kind(None)
