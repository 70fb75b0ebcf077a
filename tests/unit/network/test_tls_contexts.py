"""The context of a connection, and the files that it was made of."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.network.tls_contexts import TlsContexts
from spark_kafka_sink.security.tls import TlsSettings


@pytest.fixture
def truststore(certificates, tmp_path):
    """Return a file that holds an authority's certificate."""
    path = tmp_path / "planted" / "trust.pem"
    path.parent.mkdir()
    path.write_text(certificates.authority.pem)
    return path


def contexts_of(path):
    settings = TlsSettings(truststore_type="PEM", truststore_location=str(path))
    return TlsContexts(settings, "kafka.", ["planted"])


def test_a_context_is_kept_while_its_files_stay_the_same(truststore):
    """A file that was written again with the same content is the same."""
    contexts = contexts_of(truststore)
    first = contexts.current()
    assert first is contexts.current()
    truststore.write_bytes(truststore.read_bytes())
    assert first is contexts.current()


def test_a_file_that_has_changed_makes_another_context(certificates, truststore):
    """The next connection trusts whom the file names by then."""
    contexts = contexts_of(truststore)
    first = contexts.current()
    truststore.write_text(certificates.authority.pem + certificates.stranger.pem)
    second = contexts.current()
    assert (1, 2) == (len(first.get_ca_certs()), len(second.get_ca_certs()))
    assert second is contexts.current()


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_file_that_cannot_be_used_any_more_changes_nothing(truststore, caplog, content):
    """It is a warning, each time that it is looked at, until the file is good again."""
    contexts = contexts_of(truststore)
    first, good = contexts.current(), truststore.read_bytes()
    truststore.unlink()
    if content is not None:
        truststore.write_bytes(content)
    for _ in range(2):
        assert first is contexts.current()
    assert 2 == len(caplog.messages)
    assert caplog.messages[0].startswith("kafka.ssl.truststore.location ")
    assert caplog.messages[0].endswith("; what it held before stays in use")
    assert "planted" not in caplog.text
    truststore.write_bytes(good)
    assert first is contexts.current()
    assert 2 == len(caplog.messages)


def test_a_file_that_could_never_be_used_is_an_error(tmp_path):
    """It names the setting with its prefix, and the reason of the system."""
    with pytest.raises(ConfigError) as caught:
        contexts_of(tmp_path / "planted").current()
    sentence = str(caught.value)
    assert sentence.startswith("kafka.ssl.truststore.location ")
    assert sentence.endswith(" cannot be read: No such file or directory")
    assert "planted" not in sentence
