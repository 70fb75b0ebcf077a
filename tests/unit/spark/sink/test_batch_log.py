from __future__ import annotations

import json
import os
import stat

import pytest

from spark_kafka_sink.spark.sink.batch_log import BatchLog


def lines(path):
    return [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "report.jsonl"


def test_each_batch_has_a_line(path):
    """Batches are appended in order, each with its query id and batch id."""
    for batch in range(3):
        BatchLog(str(path)).put("q", batch, {"rows": batch * 10})
    assert [("q", 0, 0), ("q", 1, 10), ("q", 2, 20)] == lines(path)


def test_a_replayed_batch_replaces_its_line(path):
    """A batch that is committed again appears once, with its latest report."""
    for batch, rows in ((0, 1), (1, 2), (1, 3)):
        BatchLog(str(path)).put("q", batch, {"rows": rows})
    assert [("q", 0, 1), ("q", 1, 3)] == lines(path)


def test_put_if_missing_never_replaces_a_line(path):
    """`put_if_missing` adds a missing line but never replaces one."""
    log = BatchLog(str(path))
    log.put("q", 0, {"rows": 1})
    log.put_if_missing("q", 0, {"rows": 0})
    log.put_if_missing("q", 1, {"rows": 0})
    assert [("q", 0, 1), ("q", 1, 0)] == lines(path)


def test_batches_of_a_rolled_back_checkpoint_replace_their_lines(path):
    """A batch that is committed again after later ones still appears once."""
    for batch, rows in ((0, 0), (1, 1), (2, 2), (1, 7)):
        BatchLog(str(path)).put("q", batch, {"rows": rows})
    assert [("q", 0, 0), ("q", 2, 2), ("q", 1, 7)] == lines(path)


def test_queries_may_share_a_file(path):
    """Equal batch ids of different queries are different batches."""
    for query, rows in (("a", 1), ("b", 2), ("a", 3)):
        BatchLog(str(path)).put(query, 0, {"rows": rows})
    assert [("b", 0, 2), ("a", 0, 3)] == lines(path)


def test_a_line_is_appended_by_one_write(path, monkeypatch):
    """A concurrent reader sees half a line only if the file system exposes a partial write."""
    written = []

    def write(handle, data):
        written.append(bytes(data))
        return os_write(handle, data)

    os_write = os.write
    log = BatchLog(str(path))
    monkeypatch.setattr(os, "write", write)
    for batch in range(2):
        log.put("q", batch, {"rows": "x" * 100_000})
    assert path.read_bytes().splitlines(keepends=True) == written


def test_a_line_is_appended_after_concurrent_appends(path, monkeypatch):
    """A line is appended at the current end of the file and overwrites nothing."""

    def write(handle, data):
        monkeypatch.undo()
        with path.open("ab") as file:
            file.write(b'{"query_id": "a", "batch_id": 1, "rows": 2}\n')
        return os.write(handle, data)

    BatchLog(str(path)).put("b", 0, {"rows": 1})
    monkeypatch.setattr(os, "write", write)
    BatchLog(str(path)).put("b", 1, {"rows": 3})
    assert [("b", 0, 1), ("a", 1, 2), ("b", 1, 3)] == lines(path)


def test_an_interrupted_write_is_completed(path, monkeypatch):
    """The rest is written when a signal interrupts a write."""
    os_write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: os_write(handle, data[:7]))
    BatchLog(str(path)).put("q", 0, {"rows": 1})
    assert [("q", 0, 1)] == lines(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[1, 2\n", "not JSON \\(Expecting"),
        (b'{"query_id": "q"}\n', "query_id or batch_id is missing$"),
    ],
)
def test_the_error_of_a_foreign_line_names_no_python_exception(path, content, problem):
    """The error names no Python exception and has no chain."""
    path.write_bytes(content)
    with pytest.raises(OSError, match=f"not a micro-batch's report: {problem}") as caught:
        BatchLog(str(path)).check()
    assert "Error" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("torn", ['{"query_id": "q", "batch', '{"query_id": "q", "batch_id": 1}'])
def test_a_partial_last_line_is_removed(path, torn):
    """A partial last line is removed before the next line is appended."""
    log = BatchLog(str(path))
    log.put("q", 0, {"rows": 1})
    with path.open("a") as file:
        file.write(torn)
    log.put("q", 1, {"rows": 2})
    assert [("q", 0, 1), ("q", 1, 2)] == lines(path)


def test_a_partial_first_line_is_removed(path):
    """Even the first line may be a partial one."""
    path.write_text('{"query')
    BatchLog(str(path)).put("q", 0, {"rows": 1})
    assert [("q", 0, 1)] == lines(path)


def test_a_line_longer_than_a_read_block_is_found(path):
    """A line longer than one read block is found."""
    log = BatchLog(str(path))
    for batch in range(3):
        log.put("q", batch, {"topics": "x" * 200_000})
    log.put("q", 2, {"topics": "short"})
    assert [200_000, 200_000, 5] == [len(topics) for _, _, topics in lines(path)]


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 131_072])
def test_a_line_of_any_length_is_found(path, size):
    """A line is found even if the previous one ends just before a read block."""
    log = BatchLog(str(path))
    log.put("q", 0, {"topics": ""})
    log.put(
        "q", 1, {"topics": "x" * (size - len('{"query_id": "q", "batch_id": 1, "topics": ""}\n'))}
    )
    assert size == len(path.read_bytes().splitlines(keepends=True)[1])
    log.check()
    log.put("q", 2, {"topics": ""})
    assert [0, 1, 2] == [batch for _, batch, _ in lines(path)]


FOREIGN = {
    "no json": b"no json\n",
    "a list": b"[1]\n",
    "an object": b'{"rows": 5}\n',
    "null": b"null\n",
    "a batch beyond all numbers": b'{"query_id": "q", "batch_id": 1e999}\n',
    "a batch that is no whole number": b'{"query_id": "q", "batch_id": 1.5}\n',
    "a query that is no name": b'{"query_id": [], "batch_id": 1}\n',
    "deep": b"[" * 100_000 + b"\n",
    "no text": b"\xff\xfe\n",
    "no line's end": b"secret",
    "an object without a line's end": b'{"password": "secret"}',
    "an empty line": b"\n",
    "an empty line behind a report": b'{"query_id": "q", "batch_id": 0}\n\n',
    "something behind a report": b'{"query_id": "q", "batch_id": 0}\nsecret',
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_file_that_is_not_a_report_is_rejected_unchanged(path, content):
    """A file that is not a report is rejected and not changed."""
    path.write_bytes(content)
    for batch in (0, 1):
        with pytest.raises(OSError, match="not a micro-batch's report"):
            BatchLog(str(path)).put("q", batch, {"rows": 1})
    with pytest.raises(OSError, match="not a micro-batch's report"):
        BatchLog(str(path)).check()
    assert content == path.read_bytes()


@pytest.mark.parametrize("content", [b"secret", b'{"query_id": "q", "batch_id": 0}\n', b""])
def test_a_symbolic_link_is_not_followed(path, tmp_path, content):
    """A link at the path is rejected, and neither it nor its target is changed."""
    target = tmp_path / "target"
    target.write_bytes(content)
    path.symlink_to(target)
    for put in (BatchLog(str(path)).put, BatchLog(str(path)).put_if_missing):
        with pytest.raises(OSError, match=r"report\.jsonl' is a symbolic link"):
            put("q", 0, {"rows": 1})
    with pytest.raises(OSError, match="is a symbolic link"):
        BatchLog(str(path)).check()
    assert content == target.read_bytes()
    assert target == path.readlink()


def test_a_pipe_is_rejected_at_once(path):
    """A pipe at the path is rejected without waiting for a reader."""
    os.mkfifo(path)
    with pytest.raises(OSError, match="is not a regular file"):
        BatchLog(str(path)).put("q", 0, {"rows": 1})


@pytest.mark.parametrize("batches", [(0,), (0, 1), (0, 1, 0)])
def test_a_report_is_readable_only_by_its_owner(path, batches):
    """The file has mode 0600, whether appended to or rewritten, and whatever the umask."""
    before = os.umask(0)
    try:
        for batch in batches:
            BatchLog(str(path)).put("q", batch, {"rows": 1})
    finally:
        os.umask(before)
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)


def test_a_check_changes_nothing(path):
    """A check neither creates a missing file nor removes a partial line."""
    BatchLog(str(path)).check()
    assert not path.exists()
    path.write_text('{"query')
    BatchLog(str(path)).check()
    assert '{"query' == path.read_text()


def test_a_missing_directory_is_an_error(tmp_path):
    """A missing parent directory is not created."""
    with pytest.raises(OSError, match="nowhere"):
        BatchLog(str(tmp_path / "nowhere" / "r.jsonl")).put("q", 0, {})
