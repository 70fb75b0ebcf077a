"""The context of a connection, and the files from which it was built."""

from __future__ import annotations

import os
import tempfile

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


def test_a_context_is_reused_while_its_files_are_unchanged(truststore):
    """A file that was rewritten with the same content counts as unchanged."""
    contexts = contexts_of(truststore)
    first = contexts.current()
    assert first is contexts.current()
    truststore.write_bytes(truststore.read_bytes())
    assert first is contexts.current()


def test_a_changed_file_creates_another_context(certificates, truststore):
    """The next connection trusts the authority that the file then holds."""
    contexts = contexts_of(truststore)
    first = contexts.current()
    truststore.write_text(certificates.authority.pem + certificates.stranger.pem)
    second = contexts.current()
    assert (1, 2) == (len(first.get_ca_certs()), len(second.get_ca_certs()))
    assert second is contexts.current()


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_the_context_is_kept_if_a_file_becomes_unusable(truststore, caplog, content):
    """Each use logs a warning until the file is usable again."""
    contexts = contexts_of(truststore)
    first, good = contexts.current(), truststore.read_bytes()
    truststore.unlink()
    if content is not None:
        truststore.write_bytes(content)
    for _ in range(2):
        assert first is contexts.current()
    assert 2 == len(caplog.messages)
    assert caplog.messages[0].startswith("kafka.ssl.truststore.location ")
    assert caplog.messages[0].endswith("; its previous content remains in use")
    assert "planted" not in caplog.text
    truststore.write_bytes(good)
    assert first is contexts.current()
    assert 2 == len(caplog.messages)


def test_a_file_that_was_never_usable_is_an_error(tmp_path):
    """The error names the setting with its prefix, and the system's reason."""
    with pytest.raises(ConfigError) as caught:
        contexts_of(tmp_path / "planted").current()
    sentence = str(caught.value)
    assert sentence.startswith("kafka.ssl.truststore.location ")
    assert sentence.endswith(" cannot be read: No such file or directory")
    assert "planted" not in sentence


def test_a_key_is_on_no_disk_where_memory_can_be_a_file(certificates, monkeypatch):
    """OpenSSL reads a key from a file only; where the system has none in memory, for a moment."""
    on_disk = []
    real = tempfile.NamedTemporaryFile

    def recorded():
        on_disk.append(None)
        return real()

    monkeypatch.setattr("spark_kafka_sink.security.tls.tempfile.NamedTemporaryFile", recorded)
    client = certificates.client
    settings = TlsSettings(
        keystore_type="PEM",
        keystore_key=client.key,
        keystore_certificate_chain=client.chain,
    )
    TlsContexts(settings, "", ()).current()
    assert hasattr(os, "memfd_create") == (on_disk == [])
    monkeypatch.delattr(os, "memfd_create", raising=False)
    on_disk.clear()
    TlsContexts(settings, "", ()).current()
    assert [None] == on_disk
