"""A disk that is really full: a file system of 8 MB, mounted for one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import count
from shutil import which

import pytest

from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.devbroker.admin_requests import delete_records, delete_topics
from tests.support.devbroker.transactional_client import TRANSACTIONAL, TransactionalRequests
from tests.support.kafka.readers import read_with_confluent
from tests.support.network.raw_client import RawClient
from tests.support.skips import ToleratedSkip

#: Mounts a file system visible only to itself, and starts the broker again when it has ended.
SCRIPT = """
mount -t tmpfs -o size=8m none "$1" || exit 77
for turn in 1 2; do
  "$2" -m spark_kafka_sink.devbroker --port 0 --data-dir "$1/data" \
    --topic t --topic filler:1:segment.bytes=1048576 &
  echo "$!"
  wait
done
"""
NOT_MOUNTED = 77
NOT_ALLOWED = "the system lets nobody but root mount a file system"
AS_ROOT = ["--user", "--map-root-user"] if os.geteuid() else []
VALUE_BYTES = 40_000
#: This number of records fills two segments.
FILLERS = 60


class OverSocket(TransactionalRequests):
    """A client that sends requests about one topic through a connection."""

    def __init__(self, client, topic):
        super().__init__("id", topic)
        self.client = client

    def ask(self, request, version, **_):
        """Send a request and return the response."""
        return self.client.ask(request, version)

    def write(self, sequence, identity=(7, 0), attributes=0, size=VALUE_BYTES):
        """Write a number as a value of this size, and return the error code and offset."""
        value = (b"%d" % sequence).ljust(size)
        return self.produce(identity, sequence, attributes=attributes, value=value)[0]


@contextmanager
def small_disk(path):
    """Start a broker on its own file system, and yield a function that awaits the next start."""
    if which("unshare") is None:
        raise ToleratedSkip("unshare(1) is not there, which mounts without being root")
    unshare = ["unshare", "--mount", *AS_ROOT]
    if subprocess.run([*unshare, "true"], check=False).returncode:  # noqa: S603
        raise ToleratedSkip(NOT_ALLOWED)
    command = [*unshare, "sh", "-c", SCRIPT, "sh", str(path), sys.executable]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        started = []
        try:
            yield lambda: _started(process, started)
        finally:
            process.kill()
            for pid in started:
                os.kill(pid, signal.SIGKILL)


def _started(process, started):
    """Return the process id and the port of the broker that starts next."""
    pid = process.stdout.readline()
    if not pid and NOT_MOUNTED == process.wait():
        raise ToleratedSkip(NOT_ALLOWED)
    started[:] = [int(pid)]
    return int(pid), int(process.stdout.readline().rpartition(":")[2])


def _fill(client):
    """Write to `t` until it is refused, and return the number of records that were written."""
    topic, filler = OverSocket(client, "t"), OverSocket(client, "filler")
    for sequence in range(FILLERS):
        assert (ErrorCode.NONE, sequence) == filler.write(sequence)
    written = next(n for n in count() if topic.write(n)[0])
    assert 50 < written < 8_000_000 // VALUE_BYTES
    # No further large record fits; continue until not even a small one does.
    written = next(n for n in count(written) if topic.write(n, size=1)[0])
    full = ErrorCode.KAFKA_STORAGE_ERROR
    assert [full] * 5 == [topic.write(written)[0] for _ in range(5)]
    return written


def _delete_topic(client):
    (deleted,) = client.ask(delete_topics("filler"), 6).responses
    assert ErrorCode.NONE == deleted.error_code


def _delete_records(client):
    (topic,) = client.ask(delete_records(("filler", 0, FILLERS)), 2).topics
    assert [ErrorCode.NONE] == [partition.error_code for partition in topic.partitions]


@pytest.mark.slow
@pytest.mark.parametrize("free", [_delete_topic, _delete_records])
def test_a_full_disk_is_freed_through_the_broker_and_loses_nothing_that_was_answered(
    tmp_path, free
):
    """A full disk refuses records, deletions free space, and a kill loses nothing."""
    with small_disk(tmp_path) as start:
        pid, port = start()
        with RawClient(port) as client:
            written = _fill(client)
            free(client)
            assert (ErrorCode.NONE, written) == OverSocket(client, "t").write(written)
        os.kill(pid, signal.SIGKILL)

        _, port = start()
        values = [int(record.value) for record in read_with_confluent(f"127.0.0.1:{port}", "t")]
        assert list(range(written + 1)) == values


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_a_transaction_that_a_full_disk_kept_from_ending_ends_when_there_is_room(tmp_path, killed):
    """Its records are never visible, and the id and the last stable offset can advance again."""
    with small_disk(tmp_path) as start:
        pid, port = start()
        with RawClient(port) as client:
            transaction = OverSocket(client, "t")
            _, identity = transaction.init()
            assert (ErrorCode.NONE, 0) == transaction.write(0, identity, TRANSACTIONAL)
            written = _fill(client)
            transaction.end(identity, committed=False)
            assert [] == transaction.read_committed()
            _delete_topic(client)
        if killed:
            os.kill(pid, signal.SIGKILL)
            _, port = start()

        with RawClient(port) as client:
            transaction = OverSocket(client, "t")
            deadline = time.monotonic() + 60
            while transaction.init()[0] != ErrorCode.NONE:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert list(range(written)) == list(map(int, transaction.read_committed()))
