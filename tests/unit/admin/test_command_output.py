"""What the cluster commands do if their output or their settings cannot be written or read."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kafka_sink import AdminClient, TopicPartition, groups, transactions
from spark_kafka_sink.admin.terminal import table
from spark_kafka_sink.devbroker import DevBroker

PLACE = TopicPartition("data", 0)
JAPANESE = "日本語"
FULL = os.strerror(errno.ENOSPC)
RESET = ("reset-offsets", "--topic", "data", "--to-earliest", "--execute")
DELETE_OFFSETS = ("delete-offsets", "--topic", "data", "--execute")
DELETE = ("delete", "--execute")

needs_posix = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="the system has no /dev/full"
)


@pytest.fixture
def broker():
    with DevBroker(topics={"data": 1}, auto_create_topics=False) as started:
        yield started


@pytest.fixture
def admin(broker):
    with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        yield client


@pytest.fixture
def closed_pipe():
    """Return a stream to a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        yield stream


@pytest.fixture
def full_disk():
    """Return a stream to a device that has no space left."""
    with Path("/dev/full").open("w", encoding="utf-8") as stream:
        yield stream


def _where(broker):
    return ["--bootstrap-server", broker.bootstrap_servers]


def _committed(admin, group):
    return {place: it.offset for place, it in admin.list_consumer_group_offsets(group).items()}


@pytest.fixture
def run(broker, monkeypatch, capsys):
    """Return a function that runs a command with another standard output.

    The function returns the exit code and what the command wrote to standard error.
    """

    def run(stream, command, *arguments, main=groups.main):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            code = main([command, *arguments, "--bootstrap-server", broker.bootstrap_servers])
        return code, capsys.readouterr().err

    return run


# --- output without a reader


@needs_posix
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_a_closed_pipe_ends_a_command_quietly(form, run, closed_pipe):
    """The exit code is that of a tool which SIGPIPE has ended, and nothing is reported."""
    assert (141, "") == run(closed_pipe, "list", *form)


@needs_posix
def test_a_closed_pipe_ends_the_other_command_as_well(run, closed_pipe):
    """After what was to be said without it, the command for transactions adds nothing."""
    code, err = run(closed_pipe, "list", main=transactions.main)

    assert (141, 1) == (code, err.count("\n"))
    assert err.startswith("the ledger topic ")


@needs_posix
def test_a_change_is_made_although_nobody_reads_of_it(run, admin, closed_pipe):
    """The offsets are set, and the exit code is not the one for a refusal."""
    admin.alter_consumer_group_offsets("g", {PLACE: 7})

    assert (141, "") == run(closed_pipe, RESET[0], "g", *RESET[1:])
    assert {PLACE: 0} == _committed(admin, "g")


@needs_posix
@pytest.mark.parametrize("change", [RESET, DELETE_OFFSETS, DELETE], ids=lambda it: it[0])
def test_a_change_that_cannot_be_printed_is_reported(change, run, admin, full_disk):
    """One sentence says that the change was made and why nothing is printed, with its own code."""
    admin.alter_consumer_group_offsets("g", {PLACE: 7})
    sentence = f"error: the change was made, but the output could not be written: {FULL}\n"

    assert (4, sentence) == run(full_disk, change[0], "g", *change[1:])


@needs_posix
@pytest.mark.parametrize("arguments", [["list"], ["delete", "g"]], ids=["list", "dry run"])
def test_output_without_a_change_that_cannot_be_printed_is_reported(
    arguments, run, admin, full_disk
):
    """The sentence speaks of no change after a command that only looks, or only would change."""
    admin.alter_consumer_group_offsets("g", {PLACE: 7})

    sentence = f"error: the output could not be written: {FULL}\n"
    assert (4, sentence) == run(full_disk, *arguments)
    assert {PLACE: 7} == _committed(admin, "g")


def test_closed_standard_output_is_reported(run):
    """Without any standard output the command ends with a sentence, too."""
    sentence = "error: the output could not be written: standard output is closed\n"
    assert (4, sentence) == run(None, "list")


@needs_posix
def test_help_that_cannot_be_printed_is_reported(full_disk, monkeypatch, capsys):
    """The parser's own output is checked as well, before the process ends."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full_disk)
        code = groups.main(["--help"])

    assert (4, f"error: the output could not be written: {FULL}\n") == (
        code,
        capsys.readouterr().err,
    )


@needs_posix
@pytest.mark.parametrize("is_closed", [True, False])
def test_errors_that_cannot_be_printed_leave_the_exit_code(is_closed, full_disk, monkeypatch):
    """If nobody can read the error, the exit code still tells of it."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None if is_closed else full_disk)
        code = groups.main(["list"])

    assert 2 == code


@needs_posix
@pytest.mark.parametrize(
    ("redirection", "code", "error"),
    [
        ("| true", 141, ""),
        ("> /dev/full", 4, f"error: the output could not be written: {FULL}\n"),
        (">&-", 4, "error: the output could not be written: standard output is closed\n"),
        ("> /dev/full 2>&1", 4, ""),
        ("> /dev/full 2>&-", 4, ""),
    ],
)
def test_the_process_ends_without_a_traceback(redirection, code, error, broker):
    """Python, which flushes its streams when it exits, reports nothing more and keeps the code."""
    command = f'set -o pipefail; "$0" -m spark_kafka_sink.groups list "$@" {redirection}'
    done = subprocess.run(  # noqa: S603 -- our own command
        ["/bin/bash", "-c", command, sys.executable, *_where(broker)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (code, "", error) == (done.returncode, done.stdout, done.stderr)


# --- names that the output cannot show


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_what_the_encoding_lacks_is_escaped(encoding, run, admin):
    """A change is printed with escapes, and the columns of a table remain aligned."""
    for group in (JAPANESE, "g"):
        admin.alter_consumer_group_offsets(group, {PLACE: 7})
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding)

    assert (0, "") == run(stream, "list")
    assert (0, "") == run(stream, RESET[0], JAPANESE, *RESET[1:])
    lines = buffer.getvalue().decode(encoding).splitlines()
    assert [
        "group               state  type",
        "g                   Empty  Classic",
        r"\u65e5\u672c\u8a9e  Empty  Classic",
    ] == lines[:3]
    assert r"the offsets of group \u65e5\u672c\u8a9e are set" == lines[-1]
    assert {PLACE: 0} == _committed(admin, JAPANESE)


def test_columns_are_aligned_as_a_terminal_shows_them():
    """Wide characters count as two columns, marks over another character as none."""
    names = ("日本語", "e\N{COMBINING ACUTE ACCENT}t", "a\x1b", "")

    assert [
        "name    n",
        "日本語  1",
        "e\N{COMBINING ACUTE ACCENT}t      1",
        r"a\x1b   1",
        '""      1',
    ] == table(("name", "n"), [(name, "1") for name in names])


def test_an_empty_group_id_is_visible(broker, admin, capsys):
    """The empty id, which is a group like others, is shown as two quotes."""
    admin.alter_consumer_group_offsets("", {PLACE: 7})

    assert 0 == groups.main(["list", *_where(broker)])
    assert ['""', "Empty", "Classic"] == capsys.readouterr().out.splitlines()[1].split()


# --- settings


@pytest.mark.parametrize(
    "written",
    [
        "client.id=bü".encode(),
        b"\xef\xbb\xbf" + "client.id=bü".encode(),
        "client.id=bü".encode("iso-8859-1"),
        rb"client.id=b\u00fc",
    ],
    ids=["UTF-8", "UTF-8 with a mark", "ISO-8859-1", "escape"],
)
def test_a_properties_file_may_have_any_of_these_encodings(
    written, broker, tmp_path, monkeypatch, capsys
):
    """UTF-8 and ISO-8859-1 are recognised, as are a byte order mark and Java's escapes."""
    seen = []
    connect = groups.DriverClient
    monkeypatch.setattr(
        groups, "DriverClient", lambda config: seen.append(config.client_id) or connect(config)
    )
    path = tmp_path / "client.properties"
    path.write_bytes(written)

    code = groups.main(["list", "--command-config", str(path), *_where(broker)])

    assert (0, "", ["bü"]) == (code, capsys.readouterr().err, seen)


def test_a_properties_file_is_read_the_same_in_every_locale(broker, tmp_path):
    """A locale without any letter but those of ASCII makes no difference."""
    path = tmp_path / "client.properties"
    path.write_bytes("client.id=bü".encode())
    command = ["list", "--command-config", str(path), *_where(broker)]
    done = subprocess.run(  # noqa: S603 -- our own command
        [sys.executable, "-m", "spark_kafka_sink.groups", *command],
        env={**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert (0, b"there are no consumer groups", b"") == (
        done.returncode,
        done.stdout.strip(),
        done.stderr,
    )


@pytest.mark.parametrize("main", [groups.main, transactions.main], ids=["groups", "transactions"])
def test_a_setting_that_only_a_connection_finds_wrong_is_wrong_usage(
    main, broker, tmp_path, capsys
):
    """A truststore that cannot be read ends with the exit code of wrong settings."""
    missing = tmp_path / "missing.pem"
    tls = ("security.protocol=SSL", "ssl.truststore.type=PEM", f"ssl.truststore.location={missing}")
    options = [part for setting in tls for part in ("--property", setting)]

    code = main(["list", *_where(broker), *options])

    err = capsys.readouterr().err
    assert (2, 1) == (code, err.count("\n"))
    assert err.startswith("error: ssl.truststore.location")
