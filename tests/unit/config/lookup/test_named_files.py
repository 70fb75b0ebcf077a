"""Files that options name must be regular and small, whatever the option."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from spark_kafka_sink.config.lookup.named_files import MAX_BYTES, read_named_file
from spark_kafka_sink.errors import AuthenticationError, ConfigError
from spark_kafka_sink.network.authentication.kerberos_tickets import _check_keytab
from spark_kafka_sink.network.authentication.tls_contexts import TlsContexts
from spark_kafka_sink.security.tls import TlsSettings

NOT_REGULAR = "it is not a regular file"


def problem(path):
    with pytest.raises(OSError) as caught:  # noqa: PT011 -- the reason is compared
        read_named_file(path)
    return caught.value.strerror


@pytest.mark.parametrize("size", [0, 1, MAX_BYTES - 1, MAX_BYTES])
def test_a_file_of_up_to_1_mib_is_read(tmp_path, size):
    """A file of up to 1 MiB is read, also through a symbolic link as in Kubernetes."""
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "link").symlink_to("file")
    assert content == read_named_file(tmp_path / "link")


def test_a_file_that_reports_no_size_is_read():
    """A file in /proc, which reports no size, is read completely."""
    assert Path("/proc/version").read_bytes() == read_named_file("/proc/version")


def test_a_larger_file_is_rejected(tmp_path):
    """A file larger than 1 MiB is an error, even if it is sparse."""
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert "it is larger than 1048576 bytes" == problem(tmp_path / "sparse")


def test_other_than_regular_files_are_rejected(tmp_path):
    """A device, pipe, socket or directory is rejected at once."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        assert "No such device or address" == problem(tmp_path / "socket")
    for path in ("/dev/zero", "/dev/null", tmp_path, tmp_path / "pipe"):
        assert NOT_REGULAR == problem(path)


def test_the_error_for_an_unreadable_file_gives_the_reason(tmp_path):
    """The error for a file that cannot be opened gives the reason."""
    assert "No such file or directory" == problem(tmp_path / "none")
    assert "it is not a valid path" == problem("a\0b")


@pytest.mark.parametrize("name", ["truststore", "keystore"])
def test_a_store_must_be_a_regular_file(name):
    """Key stores and trust stores must be regular files."""
    settings = {f"{name}_type": "PEM", f"{name}_location": "/dev/zero"}
    with pytest.raises(ConfigError) as caught:
        TlsContexts(TlsSettings(**settings), "kafka.").current()
    assert f"kafka.ssl.{name}.location /dev/zero cannot be read: {NOT_REGULAR}" == str(caught.value)


def test_a_keytab_must_be_a_regular_file():
    """A keytab must be a regular file."""
    with pytest.raises(AuthenticationError, match=f"/dev/zero .* cannot be read: {NOT_REGULAR}"):
        _check_keytab("/dev/zero", "alice")
