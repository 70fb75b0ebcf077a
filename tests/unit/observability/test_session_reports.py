"""The reports that the session keeps, as the listener gets them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafka_sink.model import PartitionAcks, TopicPartition
from spark_kafka_sink.observability import SessionReports
from spark_kafka_sink.spark.report_store import ANSWER
from spark_kafka_sink.spark.sink.write_report import WriteReport

QUERY = "00000000-0000-0000-0000-000000000007"
ACKS = PartitionAcks(first_offset=10, last_offset=19, records=10, bytes=1000)


class Session:
    """A session whose data source answers with these reports."""

    def __init__(self, *reports):
        """Store the reports of the answer."""
        self._records = [report.to_record() for report in reports]
        self.asked: list[dict[str, Any]] = []

    @property
    def read(self):
        """Return a reader, which is this session, too."""
        return self

    def format(self, name):
        """Accept the name of the data source."""
        assert name == "pykafka"
        return self

    def option(self, _name, value):
        """Keep a request."""
        self.asked.append(json.loads(value))
        return self

    def load(self):
        """Return the answer."""
        metadata = {ANSWER: json.dumps(self._records)}
        return SimpleNamespace(schema={ANSWER: SimpleNamespace(metadata=metadata)})


def report(batch_id, *, replayed=False):
    return WriteReport(
        tasks=1,
        rows=10,
        partitions=((TopicPartition("t", 0), ACKS),),
        query_id=QUERY,
        batch_id=batch_id,
        replayed=replayed,
    )


@pytest.mark.parametrize(("is_replayed", "more"), [(False, {}), (True, {"replayed": True})])
def test_a_report_is_like_a_line_of_the_file(is_replayed, more):
    """The report of a micro-batch has what the file of reportPath has."""
    kept = report(7, replayed=is_replayed)
    session = Session(kept)

    assert {"query_id": QUERY, "batch_id": 7, **kept.as_dict(), **more} == (
        SessionReports(session)(QUERY, 7)
    )
    [asked] = session.asked
    assert (QUERY, 7, 1) == (asked["query_id"], asked["batch_id"], asked["limit"])


def test_a_query_of_another_sink_has_no_report():
    """Without a report the answer is None."""
    assert SessionReports(Session())(QUERY, 7) is None


def test_a_report_of_another_batch_is_not_taken_for_it():
    """An older version on the driver returns its newest report, which may be of a later batch."""
    assert SessionReports(Session(report(8)))(QUERY, 7) is None
