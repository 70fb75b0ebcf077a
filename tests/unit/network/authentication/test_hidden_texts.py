"""What errors must not show, besides the known secrets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink.errors import AuthenticationError, NetworkError
from spark_kafka_sink.network.authentication.connection_security import hidden_texts
from spark_kafka_sink.security.kerberos import KerberosLogin
from spark_kafka_sink.security.login import TokenFile, TokenLogin
from spark_kafka_sink.security.redaction import errors_hiding
from tests.support.producer.producer_configs import config

KERBEROS = KerberosLogin(service_name="kafka", keytab="/planted/keytab", ticket_cache="/elsewhere")
TOKEN = TokenLogin(
    source=TokenFile("/token"), tls_options={"ssl.truststore.location": "/planted/ca"}
)


@pytest.mark.parametrize(("login", "path"), [(KERBEROS, "/planted/keytab"), (TOKEN, "/planted/ca")])
def test_paths_within_a_reference_are_hidden(login, path):
    """If a reference stands for a whole login module, errors do not show its files."""
    text = f'Module required x="{path}";'
    settings = replace(config().security, hidden_texts=frozenset({text}))
    assert {text, path} == hidden_texts(settings, login)


def test_paths_written_in_the_settings_are_shown():
    """A path is hidden because it came from a reference, not because it is a path."""
    assert frozenset() == hidden_texts(config().security, KERBEROS)


@pytest.mark.parametrize("kind", [AuthenticationError, NetworkError])
def test_hidden_texts_are_removed_from_an_error(kind):
    """The error keeps its type and the rest of its message."""
    error = kind("the file /planted/ca is gone")
    with pytest.raises(kind) as caught, errors_hiding({"/planted/ca"}):
        raise error
    assert error is caught.value
    assert "the file [hidden] is gone" == str(caught.value)
