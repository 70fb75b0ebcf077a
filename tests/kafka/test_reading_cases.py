"""Our source reads the same rows as Spark's own source, whatever other clients have written."""

from __future__ import annotations

import pytest

from spark_kafka_sink.consumer.read_arrow import read_arrow
from tests.support.kafka import real_kafka
from tests.support.reading.comparison import OURS, THEIRS, Sources, check_equal
from tests.support.reading.topics import CASES, write_topics

pytestmark = pytest.mark.slow

#: What shows nothing about a broker's version runs on the newest one.
NEWEST = pytest.mark.parametrize("kafka", real_kafka.tested_versions()[:1], indirect=True)
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
#: The cases without a row to read, by isolation level.
EMPTY = {COMMITTED: {"all aborted"}, UNCOMMITTED: {"no records"}}


@pytest.fixture(scope="module")
def topics(kafka):
    """Yield the topics of all cases by the names of the cases."""
    written = write_topics(kafka)
    yield written
    kafka.delete_topics(written.values())


@pytest.fixture
def sources(spark_with_source, kafka):
    return Sources(spark_with_source, kafka.bootstrap_servers)


@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
def test_the_rows_of_every_case_are_those_of_sparks_own_source(sources, topics, level):
    """Schemas are equal, and no row is in one source only, if one job reads all topics."""
    cases = {
        topics[name]: name
        for name, case in CASES.items()
        if case.is_transactional or level == UNCOMMITTED
    }
    options = {
        "subscribe": ",".join(cases),
        "includeHeaders": "true",
        "kafka_isolation_level": level,
    }
    assert sources.check(**options) > 0
    read = sources.read(OURS, **options).select("topic").distinct().collect()
    assert set(cases.values()) - EMPTY[level] == {cases[row.topic] for row in read}


@NEWEST
def test_headers_are_left_out_by_default(sources, topics):
    """Without `includeHeaders` there are seven columns, in both sources."""
    assert 7 == len(sources.read(OURS, subscribe=topics["headers"]).columns)
    assert sources.check(subscribe=topics["headers"]) > 0


@NEWEST
def test_selected_columns_have_the_same_contents(sources, topics):
    """A schema selects columns in its own order, and the same rows are read."""
    topic = topics["librdkafka"]
    ours = (
        sources.reader(OURS, subscribe=topic)
        .schema("offset long, value binary, partition int, timestamp timestamp")
        .load()
    )
    theirs = sources.read(THEIRS, subscribe=topic).select(
        "offset", "value", "partition", "timestamp"
    )
    assert check_equal(ours, theirs) > 0


@NEWEST
@pytest.mark.parametrize("name", ["headers", "transactions"])
def test_read_arrow_reads_the_rows_of_sparks_own_source(sources, topics, kafka, name):
    """Without Spark, the same rows are read in the same types."""
    theirs = sources.read(
        THEIRS,
        subscribe=topics[name],
        includeHeaders="true",
        kafka_isolation_level=COMMITTED,
    )
    table = read_arrow(
        kafka.bootstrap_servers,
        topic=topics[name],
        columns=theirs.columns,
        include_headers=True,
        isolation_level=COMMITTED,
    ).read_all()
    assert check_equal(theirs.sparkSession.createDataFrame(table), theirs) > 0
