from __future__ import annotations

import json
import os
import stat

import pytest

from spark_kafka_sink.spark import report_store
from spark_kafka_sink.spark.report_store import KEPT, ReportStore, request

QUERY = "00000000-0000-0000-0000-000000000007"


@pytest.fixture
def store(tmp_path):
    environ = {"SPARK_LOCAL_DIRS": f"{tmp_path},/elsewhere", "SPARK_JOB_ARTIFACT_UUID": "mine"}
    return ReportStore.of_driver(environ)


def files_of(directory):
    return [path for path in directory.rglob("*") if path.is_file()]


def test_outside_of_spark_there_is_no_store():
    """A process that Spark has not started keeps no reports."""
    assert ReportStore.of_driver({}) is None


def test_the_newest_reports_are_returned(store):
    """The newest reports are returned, the oldest of them first."""
    for number in range(5):
        store.put(None, {"rows": number}, now_ns=number)
    assert [{"rows": 3}, {"rows": 4}] == store.newest(None, limit=2)


def test_reports_are_told_apart_by_their_id(store):
    """With a report id, only its reports are returned, although others are newer."""
    for number, name in enumerate(["a", "b", "a", "b", None]):
        store.put(None, {"rows": number, "report_id": name}, now_ns=number)
    assert [2] == [each["rows"] for each in store.newest(None, limit=1, report_id="a")]
    assert [] == store.newest(None, limit=1, report_id="c")


def test_sessions_and_queries_have_reports_of_their_own(store, tmp_path):
    """A report is found only by the session or the query that it belongs to."""
    other = ReportStore.of_driver({"SPARK_LOCAL_DIRS": str(tmp_path)})
    store.put(None, {"rows": 1}, now_ns=1)
    other.put(None, {"rows": 2}, now_ns=2)
    other.put(QUERY, {"rows": 3}, now_ns=3)
    found = [store.newest(group, limit=9) for group in (None, QUERY, QUERY[:-1] + "8")]
    assert [[{"rows": 1}], [{"rows": 3}], []] == found


def test_the_oldest_reports_are_removed(store, tmp_path):
    """A group has a bounded number of files, the newest ones."""
    for number in range(KEPT + 3):
        store.put(None, {"rows": number}, now_ns=number)
    assert KEPT == len(files_of(tmp_path))
    assert {"rows": 3} == store.newest(None, limit=KEPT)[0]


def test_a_clock_that_was_set_back_hides_no_report(store):
    """A report is newer than those before it, and is not the one that is removed."""
    for number in range(KEPT):
        store.put(QUERY, {"rows": number}, now_ns=1_000 + number)
    for number in range(2):
        store.put(QUERY, {"rows": KEPT + number}, now_ns=number)
    assert [{"rows": KEPT}, {"rows": KEPT + 1}] == store.newest(QUERY, limit=2)


def test_the_oldest_groups_are_removed(store, tmp_path, monkeypatch):
    """The number of queries with reports is bounded."""
    monkeypatch.setattr(report_store, "KEPT_GROUPS", 2)
    queries = [f"query-{number}" for number in range(4)]
    for number, query in enumerate(queries):
        store.put(query, {"rows": number}, now_ns=number)
        [group] = tmp_path.glob(f"*/query-{query}")
        os.utime(group, ns=(number, number))
    store.put(queries[3], {"rows": 9}, now_ns=9)
    assert [0, 0, 1, 2] == [len(store.newest(query, limit=9)) for query in queries]


def test_only_the_user_may_read_the_reports(store, tmp_path):
    """Directories have mode 0700 and files 0600."""
    store.put(QUERY, {"rows": 1}, now_ns=1)
    store.set_printed(QUERY, {"printed_at": 5})
    paths = list((tmp_path / "spark-kafka-sink-reports").rglob("*"))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()}
    assert ({0o600}, 3) == (modes, len(paths))
    folders = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert {0o700} == {stat.S_IMODE(path.stat().st_mode) for path in folders}


@pytest.mark.parametrize("query_id", ["../x", "", "a/b", "a" * 65, "."])
def test_an_id_that_is_not_of_spark_is_rejected(store, query_id):
    """An id becomes the name of a directory, so nothing but an id is accepted."""
    with pytest.raises(ValueError, match="is not an id of Spark's"):
        store.newest(query_id, limit=1)


def test_a_request_is_answered(store):
    """A request travels as text, and so does its answer."""
    store.put(QUERY, {"rows": 1, "report_id": "a"}, now_ns=1)
    store.put(QUERY, {"rows": 2, "report_id": "b"}, now_ns=2)
    answer = store.answer(request(QUERY, limit=1, report_id="a"))
    assert [{"rows": 1, "report_id": "a"}] == json.loads(answer)


def test_a_micro_batch_is_found_among_later_ones(store):
    """With the number of a micro-batch, only its report is returned."""
    for number in range(5):
        store.put(QUERY, {"batch_id": number}, now_ns=number)
    found = [
        json.loads(store.answer(request(QUERY, limit=1, report_id=None, batch_id=number)))
        for number in (0, 3, 5)
    ]
    assert [[{"batch_id": 0}], [{"batch_id": 3}], []] == found


def test_each_request_is_different():
    """Spark Connect caches plans, so that the same request would get an old answer."""
    assert request(None, limit=1, report_id=None) != request(None, limit=1, report_id=None)


def test_what_was_printed_is_stored_with_its_query(store):
    """The state of what was printed is empty at first, and is no report."""
    assert {} == store.printed(QUERY)
    store.put(QUERY, {"rows": 1}, now_ns=1)
    store.set_printed(QUERY, {"printed_at": 5})
    assert {"printed_at": 5} == store.printed(QUERY)
    assert [{"rows": 1}] == store.newest(QUERY, limit=9)
