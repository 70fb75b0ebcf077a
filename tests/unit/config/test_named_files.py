"""Files that options name must be regular and small, whatever the option."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_kafka_sink.config import allow_lists
from spark_kafka_sink.config.allow_lists import (
    MAX_BYTES,
    PATHS,
    pinned_file,
    pinned_target,
    read_named_file,
)
from spark_kafka_sink.errors import AuthenticationError, ConfigError
from spark_kafka_sink.network.authentication.kerberos_tickets import _open_keytab
from spark_kafka_sink.network.tls_contexts import TlsContexts
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
        _open_keytab("/dev/zero", "alice", ExitStack())


class Restricted:
    """A directory that is allowed, and a secret next to it that is not."""

    def __init__(self, root, patch):
        self.allowed = root / "allowed"
        self.allowed.mkdir()
        (self.allowed / "file").write_bytes(b"public")
        self.other = root / "other"
        self.other.mkdir()
        (self.other / "file").write_bytes(b"secret")
        #: A link in the allowed directory, to be exchanged.
        self.link = self.allowed / "link"
        self.link.symlink_to(self.allowed)
        self._open = os.open
        patch.setenv(PATHS, str(self.allowed))
        self._patch = patch

    def exchange(self):
        """Replace the link by one to the other directory."""
        self.link.unlink()
        self.link.symlink_to(self.other)

    def exchange_before_opening(self):
        """Replace the link after its check, right before the next file is opened."""

        def late(path, *arguments, **options):
            self._patch.setattr(os, "open", self._open)
            self.exchange()
            return self._open(path, *arguments, **options)

        self._patch.setattr(os, "open", late)


@pytest.fixture
def restricted(tmp_path, monkeypatch):
    return Restricted(tmp_path, monkeypatch)


def test_a_link_exchanged_after_the_check_leads_nowhere(restricted):
    """The file that was opened must be allowed, not only the one that the name led to before."""
    path = restricted.link / "file"
    assert b"public" == read_named_file(path)
    restricted.exchange_before_opening()
    assert f"{PATHS} does not allow it in this process" == problem(path)


def test_a_file_is_checked_by_its_name_before_it_is_opened(restricted):
    """Whether a forbidden file exists is not revealed."""
    for name in ("file", "none"):
        assert f"{PATHS} does not allow it in this process" == problem(restricted.other / name)


def test_a_library_opens_the_file_that_was_checked(restricted):
    """A pinned path leads to the same file, wherever its name leads meanwhile."""
    with pinned_file(restricted.link / "file") as path:
        restricted.exchange()
        assert b"public" == Path(path).read_bytes()
        assert b"public" == read_named_file(path)
    with (
        pytest.raises(PermissionError, match=PATHS),
        pinned_file(restricted.link / "file"),
    ):
        raise AssertionError


def test_a_file_is_written_to_the_directory_that_was_checked(restricted):
    """A pinned target is in the same directory, wherever its name leads meanwhile."""
    with pinned_target(restricted.link / "new") as target:
        restricted.exchange()
        target.write_bytes(b"x")
    assert b"x" == (restricted.allowed / "new").read_bytes()
    assert not (restricted.other / "new").exists()
    with (
        pytest.raises(PermissionError, match=PATHS),
        pinned_target(restricted.link / "new"),
    ):
        raise AssertionError


def test_an_error_shows_the_path_that_was_given(restricted):
    """An error of a pinned target does not show the path of a descriptor."""
    with (
        pytest.raises(FileNotFoundError) as caught,
        pinned_target(restricted.allowed / "none") as target,
    ):
        target.read_bytes()
    assert (errno.ENOENT, str(restricted.allowed / "none")) == (
        caught.value.errno,
        caught.value.filename,
    )


def test_a_list_allows_nothing_on_a_system_that_cannot_check_open_files(restricted, monkeypatch):
    """Without /proc nothing is opened, instead of a file that a link may have been changed to."""
    monkeypatch.setattr(allow_lists, "_DESCRIPTORS", "/none/self/fd")
    reason = f"{PATHS} needs /none/self/fd, which this system does not have"

    assert reason == problem(restricted.allowed / "file")
    with (
        pytest.raises(PermissionError, match=reason),
        pinned_target(restricted.allowed / "new"),
    ):
        raise AssertionError


def test_paths_remain_as_they_are_without_a_list(tmp_path):
    """Without a list nothing is pinned, and a missing file is left to the library."""
    with pinned_file(tmp_path / "none") as path, pinned_target(tmp_path / "none") as target:
        assert (str(tmp_path / "none"), tmp_path / "none") == (path, target)
