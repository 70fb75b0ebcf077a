from __future__ import annotations

import json
import pickle
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.metrics.snapshot import MetricsSnapshot, Summary

VALUES = st.lists(st.integers(0, 2**40))
COUNTS = st.integers(0, 2**60)


def summary_of(values):
    """Return the summary of the values."""
    return Summary(len(values), float(sum(values)), max(values, default=None))


SNAPSHOTS = st.builds(
    MetricsSnapshot,
    **{
        field.name: VALUES.map(summary_of) if isinstance(field.default, Summary) else COUNTS
        for field in fields(MetricsSnapshot)
    },
)

SENT = MetricsSnapshot(
    records_per_request=Summary(4, 10_000.0, 4_000.0),
    batch_size=Summary(8, 800_000.0, 120_000.0),
    record_queue_time_ms=Summary(8, 40.0, 9.0),
    request_latency_ms=Summary(4, 50.0, 20.25),
    produce_throttle_time_ms=Summary(4, 0.0, 0.0),
    uncompressed_bytes=1_000_000,
    compressed_bytes=310_000,
)


@given(VALUES, VALUES)
def test_a_merged_summary_equals_the_summary_of_all_values(one, other):
    """Merged summaries equal the summary of all values."""
    assert summary_of(one + other) == summary_of(one).merged(summary_of(other))


def test_an_empty_summary_has_no_average_or_maximum():
    """An empty summary has no average or maximum, and does not affect a merge."""
    assert Summary().average is None
    assert Summary().maximum is None
    assert Summary(2, 6.0, 5.0) == Summary().merged(Summary(2, 6.0, 5.0))
    assert 3.0 == Summary(2, 6.0, 5.0).average


@given(SNAPSHOTS, SNAPSHOTS, SNAPSHOTS)
def test_snapshots_merge_in_any_order(one, two, three):
    """Snapshots can be merged in any order."""
    assert MetricsSnapshot.merge([one, two, three]) == MetricsSnapshot.merge([three, one, two])
    assert one == MetricsSnapshot.merge([one])
    assert MetricsSnapshot() == MetricsSnapshot.merge([])


@pytest.mark.parametrize("name", [field.name for field in fields(MetricsSnapshot)])
def test_merging_combines_every_field(name):
    """Every field of a merged snapshot combines both values."""
    of_summary = isinstance(getattr(MetricsSnapshot(), name), Summary)
    one, other, both = (
        (Summary(1, 2.0, 2.0), Summary(1, 3.0, 3.0), Summary(2, 5.0, 3.0))
        if of_summary
        else (2, 3, 5)
    )
    merged = MetricsSnapshot(**{name: one}).merged(MetricsSnapshot(**{name: other}))
    assert MetricsSnapshot(**{name: both}) == merged


def test_a_merged_average_weighs_tasks_by_their_requests():
    """A merged average gives each task the weight of its requests."""
    slow = MetricsSnapshot(request_latency_ms=Summary(1, 100.0, 100.0))
    fast = MetricsSnapshot(request_latency_ms=Summary(9, 90.0, 12.0))
    assert 19.0 == slow.merged(fast).request_latency_ms.average


@given(SNAPSHOTS)
def test_a_snapshot_can_be_pickled_and_converted_to_json(snapshot):
    """A snapshot equals itself after pickling, and its dictionary is valid JSON."""
    assert snapshot == pickle.loads(pickle.dumps(snapshot))  # noqa: S301 -- our own bytes
    assert snapshot.as_dict() == json.loads(json.dumps(snapshot.as_dict(), allow_nan=False))


def test_a_snapshot_is_small():
    """A pickled snapshot takes less than 1 kB, since commit messages contain it."""
    assert len(pickle.dumps(SENT)) < 1000


def test_the_dictionary_has_kafkas_metric_names():
    """The dictionary has Kafka's metric names and the values since creation."""
    troubled = SENT.merged(
        MetricsSnapshot(
            record_retry_total=1,
            record_error_total=2,
            batch_split_total=3,
            buffer_exhausted_total=4,
            bufferpool_wait_time_ns=5,
            metadata_wait_time_ns=6,
            flush_time_ns=7,
        )
    )
    assert {
        "record-send-total": 10_000,
        "record-retry-total": 1,
        "record-error-total": 2,
        "request-total": 4,
        "records-per-request-avg": 2_500.0,
        "request-latency-avg": 12.5,
        "request-latency-max": 20.25,
        "record-queue-time-avg": 5.0,
        "record-queue-time-max": 9.0,
        "batch-size-avg": 100_000.0,
        "batch-size-max": 120_000.0,
        "batch-split-total": 3,
        "compression-rate-avg": 0.31,
        "produce-throttle-time-total": 0.0,
        "produce-throttle-time-max": 0.0,
        "buffer-exhausted-total": 4,
        "bufferpool-wait-time-ns-total": 5,
        "metadata-wait-time-ns-total": 6,
        "flush-time-ns-total": 7,
    } == troubled.as_dict()


def test_a_value_without_data_is_none():
    """A value without data is None, never NaN or a misleading zero."""
    empty = MetricsSnapshot().as_dict()
    assert empty["request-latency-avg"] is None
    assert empty["compression-rate-avg"] is None
    assert 0 == empty["record-send-total"]


def test_a_write_without_trouble_is_described_in_one_line():
    """A write without trouble is described in one line: requests, latency and compression."""
    assert (
        "4 requests of 2,500 records on average; answered in 12.5 ms on average, "
        "20.2 ms at most; compressed to 31%"
    ) == "\n".join(SENT.describe())


def test_trouble_is_described():
    """Waits, retries, failures and splits are described if there were any."""
    troubled = SENT.merged(
        MetricsSnapshot(
            produce_throttle_time_ms=Summary(1, 300.0, 300.0),
            bufferpool_wait_time_ns=1_500_000_000,
            record_retry_total=1_200,
            record_error_total=3,
            batch_split_total=2,
        )
    )
    assert [
        "waited 1.5 s for buffer memory, 0.3 s throttled by brokers",
        "1,200 records retried, 3 records failed, 2 batches split",
    ] == troubled.describe()[1:]


def test_without_acknowledgements_no_latency_is_described():
    """With acks=0, requests are described without a latency."""
    unanswered = MetricsSnapshot(records_per_request=Summary(1, 5.0, 5.0))
    assert ["1 request of 5 records"] == unanswered.describe()


@pytest.mark.parametrize(
    ("compressed_bytes", "expected"),
    [(99, "1 request of 1 record; compressed to 99%"), (100, "1 request of 1 record")],
)
def test_only_compression_that_saved_bytes_is_described(compressed_bytes, expected):
    """A record that compression made no smaller is described without it."""
    one = MetricsSnapshot(
        records_per_request=Summary(1, 1.0, 1.0),
        uncompressed_bytes=100,
        compressed_bytes=compressed_bytes,
    )
    assert [expected] == one.describe()


def test_a_write_without_requests_has_no_description():
    """A write without requests has no description."""
    assert [] == MetricsSnapshot().describe()


def test_a_difference_has_the_values_of_its_period():
    """A difference has the later values, and the maximum of the period that began before them."""
    before = MetricsSnapshot(
        request_latency_ms=Summary(2, 30.0, 20.0), batch_size=Summary(1, 5.0, 5.0)
    )
    after = MetricsSnapshot(
        request_latency_ms=Summary(3, 40.0, 10.0),
        batch_size=Summary(1, 5.0),
        record_retry_total=4,
    )
    assert MetricsSnapshot(
        request_latency_ms=Summary(1, 10.0, 10.0), record_retry_total=4
    ) == after.since(before)
    assert after == after.since(MetricsSnapshot())
