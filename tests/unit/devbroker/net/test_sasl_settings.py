"""The SASL settings of a listener, which never reveal secrets."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.net.listener import SaslSettings, read_users
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.security.sasl import SaslMechanism

SECRET = "pl4nted"  # noqa: S105 - of nobody


def test_mechanisms_are_known_by_name():
    """Names are converted to mechanisms."""
    settings = SaslSettings(users={"a": "b"}, mechanisms=("PLAIN", "SCRAM-SHA-512"))
    assert (SaslMechanism.PLAIN, SaslMechanism.SCRAM_SHA_512) == settings.mechanisms


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"users": {"a": SECRET}, "mechanisms": ("GSSAPI",)}, "'GSSAPI'.*use PLAIN"),
        ({"users": {"a": SECRET}, "mechanisms": ()}, "is empty"),
        ({"users": {"": SECRET}}, "a name and a password"),
        ({"users": {"a": SECRET, "b": ""}}, "a name and a password"),
        ({}, "needs at least one user"),
        ({"users": {"a": SECRET}, "scram_iterations": 100}, "4096"),
    ],
)
def test_unusable_settings_are_refused(settings, reason):
    """Unusable settings are refused at once, and the error contains no password."""
    with pytest.raises(ConfigError, match=reason) as caught:
        SaslSettings(**settings)
    assert SECRET not in str(caught.value)


def test_tokens_need_no_users():
    """OAUTHBEARER alone needs no passwords."""
    assert {} == SaslSettings(mechanisms=("OAUTHBEARER",)).users


def test_passwords_are_not_shown():
    """A repr contains no password."""
    assert SECRET not in repr(SaslSettings(users={"a": SECRET}))


def test_users_are_read_from_json():
    """Names and passwords may contain any character."""
    assert {"a:b": "=,\n"} == read_users('{"a:b": "=,\\n"}', "it")


@pytest.mark.parametrize(
    "text", ["", f"a={SECRET}", f'["{SECRET}"]', f'{{"a": ["{SECRET}"]}}', "[" * 100_000]
)
def test_users_that_cannot_be_read_are_an_error_without_them(text):
    """The error names the source and the expected form, and shows none of the content."""
    with pytest.raises(ConfigError, match=r"users\.json.*JSON") as caught:
        read_users(text, "users.json")
    assert SECRET not in str(caught.value)
    assert None is caught.value.__cause__
