from __future__ import annotations

import dataclasses
import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.metrics.snapshot import MetricsSnapshot, Summary
from spark_kafka_sink.model import UNKNOWN_OFFSET, PartitionAcks, TopicPartition
from spark_kafka_sink.spark.sink.batch_log import BatchLog
from spark_kafka_sink.spark.sink.partition_writer import KafkaCommitMessage
from spark_kafka_sink.spark.sink.write_report import WriteReport, report_of, resolve_report_path
from spark_kafka_sink.spark.task_costs import TaskTimes


def acks(first, records, size=100, *, log_append_time=False):
    return PartitionAcks(
        first_offset=first,
        last_offset=UNKNOWN_OFFSET if first == UNKNOWN_OFFSET else first + records - 1,
        records=records,
        bytes=size,
        log_append_time=log_append_time,
    )


def message(rows, written, partition_id=0):
    return KafkaCommitMessage(
        partition_id=partition_id,
        task_attempt_id=partition_id + 100,
        rows=rows,
        acks=tuple((TopicPartition(*where), what) for where, what in written.items()),
    )


def report(*messages):
    return report_of(messages)


def test_messages_are_merged_per_partition():
    """A partition's offsets and counts are merged over all tasks that wrote to it."""
    folded = report(
        message(3, {("t", 1): acks(10, 3, 50)}),
        message(2, {("t", 1): acks(5, 1, 20), ("t", 0): acks(0, 1, 30)}),
    )
    assert (
        WriteReport(
            tasks=2,
            rows=5,
            partitions=(
                (TopicPartition("t", 0), acks(0, 1, 30)),
                (
                    TopicPartition("t", 1),
                    PartitionAcks(first_offset=5, last_offset=12, records=4, bytes=70),
                ),
            ),
        )
        == folded
    )
    assert (100, ("t",), True) == (folded.bytes, folded.topics, folded.offsets_known)


def test_unfinished_tasks_are_ignored():
    """None stands for a task that did not finish, and is ignored."""
    assert report(message(3, {("t", 0): acks(0, 3)})) == report(
        None, message(3, {("t", 0): acks(0, 3)}), None
    )


def test_the_table_of_one_topic():
    """One topic gives a summary and one aligned line per partition."""
    text = report(
        message(
            1_234_567, {("events", 0): acks(0, 1_234_560, 9_000_000), ("events", 11): acks(7, 7)}
        )
    ).to_text()
    assert (
        "Kafka: wrote 1,234,567 rows (9.0 MB) to topic events from 1 task\n"
        "  topic   partition  first offset  last offset    records      bytes\n"
        "  events          0             0      1234559  1,234,560  9,000,000\n"
        "  events         11             7           13          7        100\n"
    ) == text


def test_the_table_of_several_topics():
    """Several topics give their totals before the partitions."""
    text = report(
        message(3, {("a", 0): acks(0, 1), ("a", 1): acks(0, 1), ("b", 0): acks(4, 1)})
    ).to_text()
    assert (
        "Kafka: wrote 3 rows (300 bytes) to 2 topics from 1 task\n"
        "  topic  partitions  records  bytes\n"
        "  a               2        2    200\n"
        "  b               1        1    100\n"
        "  topic  partition  first offset  last offset  records  bytes\n"
        "  a              0             0            0        1    100\n"
        "  a              1             0            0        1    100\n"
        "  b              0             4            4        1    100\n"
    ) == text


def test_a_long_table_is_truncated():
    """Beyond the maximum the table says how many more lines there are."""
    text = report(
        message(6, {(topic, part): acks(0, 1) for topic in "abc" for part in range(2)})
    ).to_text(max_lines=2)
    lines = text.splitlines()
    assert "  ... and 1 more topic" == lines[4]
    assert "  ... and 4 more partitions" == lines[8]
    assert 9 == len(lines)


@pytest.mark.parametrize(("count", "more"), [(20, []), (21, ["  ... and 1 more partition"])])
def test_a_table_has_at_most_twenty_partitions_by_default(count, more):
    """The default maximum is 20 partitions."""
    written = {("t", number): acks(0, 1) for number in range(count)}
    assert more == report(message(count, written)).to_text().splitlines()[22:]


def test_the_table_says_where_offsets_are_unknown():
    """With acks=0 the table marks offsets as unknown and says why."""
    text = report(message(2, {("t", 0): acks(UNKNOWN_OFFSET, 2)})).to_text()
    assert [
        "  t              0       unknown      unknown        2    100",
        "  acks=0: brokers acknowledged nothing and returned no offsets",
    ] == text.splitlines()[2:]


def test_the_table_names_topics_that_replaced_timestamps():
    """A topic that replaced the timestamps has a line that says so."""
    text = report(
        message(2, {("t", 0): acks(0, 1, log_append_time=True), ("u", 0): acks(0, 1)})
    ).to_text()
    assert (
        "  t: the broker replaced all timestamps (message.timestamp.type=LogAppendTime)"
        == text.splitlines()[-1]
    )


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([message(0, {})], "Kafka: there were no rows to write (1 task)\n"),
        ([message(0, {})] * 2, "Kafka: there were no rows to write (2 tasks)\n"),
    ],
)
def test_the_table_of_an_empty_write(messages, expected):
    """A write without rows is reported in one line."""
    assert expected == report(*messages).to_text()


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (1_239, "1.2 kB"),
        (1_500_000, "1.5 MB"),
        (2 * 10**15, "2,000.0 TB"),
    ],
)
def test_sizes_are_formatted_with_a_suitable_unit(count, expected):
    """Sizes are formatted with powers of 1000."""
    text = report(message(1, {("t", 0): acks(0, 1, count)})).to_text()
    assert f"({expected})" in text.splitlines()[0]


def test_the_json_has_everything():
    """The JSON has every partition, and null for unknown offsets."""
    written = {("t", 0): acks(3, 2, log_append_time=True), ("u", 1): acks(UNKNOWN_OFFSET, 1)}
    assert {
        "tasks": 1,
        "rows": 3,
        "bytes": 200,
        "elapsed_seconds": None,
        "task_seconds": None,
        "paced_seconds": None,
        "throttled_seconds": 0.0,
        "sampled_keys": 0,
        "spread_keys": 0,
        "rows_per_second": None,
        "bytes_per_second": None,
        "offsets_known": False,
        "topics": {
            "t": [
                {
                    "partition": 0,
                    "first_offset": 3,
                    "last_offset": 4,
                    "records": 2,
                    "bytes": 100,
                    "log_append_time": True,
                }
            ],
            "u": [
                {
                    "partition": 1,
                    "first_offset": None,
                    "last_offset": None,
                    "records": 1,
                    "bytes": 100,
                    "log_append_time": False,
                }
            ],
        },
        "bad_rows": None,
        "schemas": [],
        "metrics": MetricsSnapshot().as_dict(),
    } == json.loads(report(message(3, written)).to_json())


def test_the_json_is_indented_by_two_spaces():
    """The JSON is meant to be readable without a tool."""
    assert report().to_json().startswith('{\n  "tasks": 0,\n  "rows": 0,\n')


def test_the_json_file_is_replaced_atomically(tmp_path):
    """The file replaces an older one, is private, and leaves no temporary file behind."""
    target = tmp_path / "report.json"
    target.write_text("old")
    done = report(message(1, {("t", 0): acks(0, 1)}))
    done.write_json(str(target))
    assert done.to_json() == target.read_text()
    assert 0o600 == stat.S_IMODE(target.stat().st_mode)
    assert [target] == list(tmp_path.iterdir())


def test_a_failed_write_leaves_no_temporary_file(tmp_path):
    """If the file cannot be replaced, the temporary one is removed and the error raised."""
    target = tmp_path / "report.json"
    target.mkdir()
    with pytest.raises(OSError, match=r"report\.json"):
        report(message(0, {})).write_json(str(target))
    assert [target] == list(tmp_path.iterdir())


def test_a_report_path_becomes_absolute(tmp_path, monkeypatch):
    """A relative path is resolved against the current directory."""
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path / "r.json") == resolve_report_path("r.json")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("s3://bucket/r.json", "must be a local path on the driver, not a URI"),
        (".", "is a directory: name a file in it"),
        ("missing/r.json", "the directory '"),
    ],
)
def test_an_unusable_report_path_is_rejected(path, problem, tmp_path, monkeypatch):
    """A path that cannot be written is rejected before any row is written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        resolve_report_path(path)
    assert f"reportPath {path!r}" in str(caught.value)
    assert problem in str(caught.value)


def test_a_report_path_must_be_allowed(tmp_path, monkeypatch):
    """A report is written only to the allowed paths, if they are restricted."""
    monkeypatch.setenv("SPARK_KAFKA_SINK_ALLOWED_PATHS", str(tmp_path / "reports"))
    (tmp_path / "reports").mkdir()
    listed = str(tmp_path / "reports" / "r.json")
    assert listed == resolve_report_path(listed)
    (tmp_path / "reports" / "link").symlink_to(tmp_path)
    for other in (tmp_path / "r.json", tmp_path / "reports" / "link" / "r.json"):
        with pytest.raises(ConfigError, match="ALLOWED_PATHS does not allow it in this process"):
            resolve_report_path(str(other))


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_report_stays_in_the_allowed_directory(tmp_path, monkeypatch, is_stream):
    """A link that is exchanged after the check does not lead the report elsewhere."""
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    allowed.mkdir()
    other.mkdir()
    (allowed / "link").symlink_to(allowed)
    monkeypatch.setenv("SPARK_KAFKA_SINK_ALLOWED_PATHS", str(allowed))

    def write(path):
        if is_stream:
            BatchLog(path).put("q", 1, {})
        else:
            report(message(0, {})).write_json(path)

    path = resolve_report_path(str(allowed / "link" / "r.json"))
    write(path)
    assert ["link", "r.json"] == sorted(each.name for each in allowed.iterdir())
    (allowed / "link").unlink()
    (allowed / "link").symlink_to(other)
    with pytest.raises(PermissionError, match="ALLOWED_PATHS does not allow it in this process"):
        write(path)
    assert [] == list(other.iterdir())


def test_a_report_directory_without_write_permission_is_rejected(tmp_path, monkeypatch):
    """A directory without write permission is rejected (simulated, since root may always write)."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="no permission to write to the directory"):
        resolve_report_path(str(tmp_path / "r.json"))


@given(
    st.lists(
        st.dictionaries(
            st.tuples(st.sampled_from("abc"), st.integers(0, 3)),
            st.builds(acks, st.integers(0, 9), st.integers(1, 9), st.integers(1, 999)),
        ).map(lambda written: message(sum(a.records for a in written.values()), written)),
        max_size=5,
    ),
    st.randoms(use_true_random=False),
)
def test_merging_is_independent_of_the_order_of_messages(messages, random):
    """Records and bytes add up, in whatever order tasks finish."""
    shuffled = list(messages)
    random.shuffle(shuffled)
    folded = report(*messages)
    assert folded == report(*shuffled)
    assert folded.rows == sum(written.records for _, written in folded.partitions)
    assert folded.bytes == sum(a.bytes for m in messages for _, a in m.acks)


def test_metrics_are_summed_over_the_tasks():
    """Totals are summed over the tasks, and appear below the table and in the JSON."""
    measured = MetricsSnapshot(
        records_per_request=Summary(2, 6.0, 4.0),
        request_latency_ms=Summary(2, 30.0, 20.0),
        record_retry_total=3,
    )
    messages = [
        dataclasses.replace(message(3, {("t", 0): acks(3 * task, 3)}), metrics=measured)
        for task in range(2)
    ]
    merged_report = report(*messages)
    assert measured.merged(measured) == merged_report.metrics
    assert "  6 records retried" in merged_report.to_text()
    assert 6 == json.loads(merged_report.to_json())["metrics"]["record-retry-total"]


TIMED = dataclasses.replace(
    report(message(3000, {("t", 0): acks(0, 3000, 2_000_000)})), elapsed=2.0, ended_at=1000.0
)


def test_a_timed_report_has_rates():
    """The summary has the elapsed time, and rows and megabytes per second."""
    assert (
        "Kafka: wrote 3,000 rows (2.0 MB) to topic t from 1 task in 2.0 s (1,500 rows/s, 1.0 MB/s)"
    ) == TIMED.summary()
    assert (1500.0, 1_000_000.0) == (TIMED.rows_per_second, TIMED.bytes_per_second)
    as_json = TIMED.as_dict()
    assert (2.0, 1500.0) == (as_json["elapsed_seconds"], as_json["rows_per_second"])


def test_a_report_without_time_has_no_rates():
    """A report that was not timed, or took no time, has no rates."""
    untimed = report(message(1, {("t", 0): acks(0, 1)}))
    assert (None, None) == (untimed.rows_per_second, untimed.bytes_per_second)
    assert untimed.timed(5.0, 5.0).to_line().endswith("from 1 task in 0.0 s")
    assert 0.0 == untimed.timed(5.0, 4.0).elapsed


def test_small_batches_are_not_called_compressed():
    """Compression that makes a small write larger is not mentioned."""
    measured = MetricsSnapshot(
        records_per_request=Summary(1, 1.0, 1.0), uncompressed_bytes=100, compressed_bytes=156
    )
    small = dataclasses.replace(message(1, {("t", 0): acks(0, 1)}), metrics=measured)
    assert "compressed" not in report(small).to_text()


def test_a_summary_mentions_trouble():
    """Retries are in the summary, since they are what an operator looks for."""
    measured = MetricsSnapshot(records_per_request=Summary(1, 1.0, 1.0), record_retry_total=1)
    retried = report(dataclasses.replace(message(1, {("t", 0): acks(0, 1)}), metrics=measured))
    assert ["  1 records retried"] == retried.summary().splitlines()[1:]
    assert 1 == retried.retries


def test_a_report_survives_as_json():
    """The record of a report can be stored as JSON and restores an equal report."""
    measured = MetricsSnapshot(request_latency_ms=Summary(2, 30.0, 20.0), record_retry_total=3)
    given = dataclasses.replace(
        TIMED, metrics=measured, report_id="r", query_id="q", batch_id=4, replayed=True
    )
    assert given == WriteReport.from_record(json.loads(json.dumps(given.to_record())))


def test_the_report_says_what_many_tasks_cost():
    """The time is known from the tasks' own times, and fewer tasks are advised."""
    messages = [
        dataclasses.replace(
            message(10, {("t", 0): acks(10 * number, 10)}, number),
            times=TaskTimes("a", number * 0.01, number * 0.01 + 0.004, 0.002),
        )
        for number in range(100)
    ]
    timed = report(*messages).timed(1000.0, 1001.0)
    advice = (
        "100 tasks of about 10 rows: 0.8 s of 1.0 s went into starting and ending them; with "
        "df.coalesce(4) the write would take about 0.2 s"
    )
    assert advice == timed.advice
    assert timed.summary().endswith(f"\n  {advice}")
    assert advice in timed.to_text()
    assert advice in timed._repr_html_()
    assert pytest.approx(0.8) == timed.as_dict()["task_seconds"]
    assert timed == WriteReport.from_record(json.loads(json.dumps(timed.to_record())))
    assert timed.merged(timed).advice is None


def test_the_report_says_what_pacing_and_throttling_cost():
    """Both are sums over the tasks, in the text, the JSON and a notebook, and over batches."""
    throttled = MetricsSnapshot(
        records_per_request=Summary(1, 10.0, 10.0),
        produce_throttle_time_ms=Summary(1, 1_500.0, 1_500.0),
    )
    messages = [
        dataclasses.replace(
            message(10, {("t", 0): acks(10 * number, 10)}, number),
            metrics=throttled,
            paced_seconds=20.5,
        )
        for number in range(2)
    ]
    paced = report(*messages)
    note = "paced by maxBytesPerSecond or maxRecordsPerSecond: the tasks paused for 41.0 s in all"
    assert note in paced.summary()
    assert "waited 3.0 s throttled by brokers" in paced.to_text()
    assert (41.0, 3.0) == (paced.paced_seconds, paced.throttled_seconds)
    assert [41.0, 3.0] == [
        json.loads(paced.to_json())[name] for name in ("paced_seconds", "throttled_seconds")
    ]
    page = paced._repr_html_()
    assert [True] * 3 == [text in page for text in (note, "41.0 s", "3.0 s")]
    assert paced == WriteReport.from_record(json.loads(json.dumps(paced.to_record())))
    assert 82.0 == paced.merged(paced).paced_seconds


def test_a_report_without_pacing_does_not_speak_of_it():
    """Neither where it is off, nor where no task had to pause."""
    for seconds in (None, 0.0):
        quiet = report(
            dataclasses.replace(message(3, {("t", 0): acks(0, 3)}), paced_seconds=seconds)
        )
        assert seconds == quiet.paced_seconds
        assert "paced" not in quiet.to_text() + quiet.summary()
        assert "throttled" not in quiet._repr_html_()
    assert "paused" not in report(message(3, {("t", 0): acks(0, 3)}))._repr_html_()
    assert report().merged(report()).paced_seconds is None


def with_keys(*samples):
    return [
        dataclasses.replace(message(1, {("t", 0): acks(number, 1)}, number), keys=keys)
        for number, keys in enumerate(samples)
    ]


def test_the_report_warns_of_keys_that_several_tasks_have_written():
    """The text, the JSON and a notebook have it; a stream's batches are added up."""
    spread = report(*with_keys((1, 2, 3), (2, 3, 5), (2, 8)))
    assert (5, 2) == (spread.sampled_keys, spread.spread_keys)
    warning = (
        "2 of 5 sampled keys are in more than one task, so the order of their records is "
        'not defined: if it matters, write df.repartition("key"), otherwise set keyOrder=off'
    )
    assert warning in spread.summary()
    assert warning in spread.to_text()
    assert "2 of 5" in spread._repr_html_()
    assert [5, 2] == [
        json.loads(spread.to_json())[name] for name in ("sampled_keys", "spread_keys")
    ]
    assert spread == WriteReport.from_record(json.loads(json.dumps(spread.to_record())))
    assert (10, 4) == (spread.merged(spread).sampled_keys, spread.merged(spread).spread_keys)


def test_keys_of_one_task_each_are_no_warning():
    """A task that has failed, and was run again by another one, has sent no message."""
    ordered = report(*with_keys((1, 2), (3,)), None)
    assert (3, 0) == (ordered.sampled_keys, ordered.spread_keys)
    assert "keys" not in ordered.to_text() + ordered._repr_html_()


def test_reports_of_one_stream_are_merged():
    """The sum of two batches has the time that both took, and not the time between them."""
    later = dataclasses.replace(
        report(message(10, {("t", 0): acks(3000, 10), ("u", 1): acks(0, 1)})),
        elapsed=1.0,
        ended_at=1008.0,
        batch_id=5,
    )
    merged = TIMED.merged(later)
    assert (3010, 2, 3.0, 5) == (merged.rows, merged.tasks, merged.elapsed, merged.batch_id)
    assert (0, 3009, 3010) == dataclasses.astuple(merged.partitions[0][1])[:3]
    assert 2 == len(merged.partitions)


def test_a_replayed_write_says_so():
    """A write that was committed before does not look like one without rows."""
    replayed = WriteReport(tasks=3, rows=0, partitions=(), replayed=True)
    assert "<WriteReport: wrote nothing: this write was committed before>" == repr(replayed)
    assert "wrote nothing" in replayed._repr_html_()


def test_a_report_shows_itself():
    """The repr is the printed table, and a notebook shows a table with the same offsets."""
    shown = repr(TIMED)
    assert shown.startswith("<WriteReport: wrote 3,000 rows")
    assert "2999" in shown
    page = TIMED._repr_html_()
    assert "2,999" in page
    assert "1,500" in page


def test_names_in_a_notebook_are_escaped():
    """A name cannot add markup to a notebook."""
    page = dataclasses.replace(TIMED, report_id="<script>")._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
