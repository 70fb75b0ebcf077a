"""Topics read into Arrow without Spark, from an embedded broker."""

from __future__ import annotations

import doctest
import gc
import math
import time
from datetime import UTC, datetime, timedelta

import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.consumer.read_arrow import read_arrow
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import BrokerError, ConfigError, DataLossError, NetworkError
from spark_kafka_sink.model import TopicPartition
from tests.support import leaks
from tests.support.consumer.reading import PATIENCE, fill, log_of, numbered
from tests.support.network.leaps import leap_at_search_for_anybody

ALL = numbered(20)
EXACTLY = "must name exactly the partitions that are read"
EITHER = "; -2 stands for the earliest offset; -1 stands for the latest offset"
BASE, SECOND = datetime(2026, 1, 1, tzinfo=UTC), timedelta(seconds=1)
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def broker():
    """Yield a broker with the topics `t` of two partitions and `u`, and `v`, which is empty."""
    with DevBroker(topics={"t": 2, "u": 1, "v": 1}) as broker:
        fill(broker.bootstrap_servers, "t", ALL)
        fill(broker.bootstrap_servers, "t", numbered(5, 100), partition=1)
        fill(broker.bootstrap_servers, "u", numbered(3, 200))
        yield broker


def read(broker: DevBroker, topic: object = "t", **more: object) -> list[bytes]:
    """Return the values that a call reads."""
    table = read_arrow(broker.bootstrap_servers, topic, columns=["value"], **more).read_all()
    return table.column("value").to_pylist()


def test_a_topic_is_read_partition_by_partition(broker):
    """All columns but the headers are read, in Spark's order."""
    table = read_arrow(broker.bootstrap_servers, "t").read_all()

    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert names == table.column_names
    assert [0] * 20 + [1] * 5 == table.column("partition").to_pylist()
    assert [*ALL, *numbered(5, 100)] == table.column("value").to_pylist()
    assert "headers" in read_arrow(broker.bootstrap_servers, "t", include_headers=True).schema.names


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        (["u", "t"], [*ALL, *numbered(5, 100), *numbered(3, 200)]),
        (ONE, numbered(5, 100)),
        ([TopicPartition("u", 0), ONE], [*numbered(5, 100), *numbered(3, 200)]),
        ([ZERO, "u"], [*ALL, *numbered(3, 200)]),
    ],
    ids=["topics", "partition", "partitions", "both"],
)
def test_topics_and_partitions_can_be_combined(broker, topic, expected):
    """Several topics, or partitions of them, are read one after the other."""
    assert expected == read(broker, topic)


def test_offsets_are_given_by_partition(broker):
    """A mapping has an offset for each partition; its keys may be their numbers."""
    assert [*ALL[3:10], *numbered(2, 101)] == read(
        broker, start={ZERO: 3, ONE: 1}, end={0: 10, 1: 3}
    )
    assert [*ALL[18:], *numbered(5, 100)] == read(broker, start={0: 18, 1: -2}, end={0: -1, 1: -1})


def test_times_select_records(broker):
    """A time selects the first record at or after it; without one, there is nothing to read."""
    now = datetime.now(UTC)
    assert len(ALL) + 5 == len(read(broker, start=now - timedelta(days=1), end="latest"))
    assert [] == read(broker, start=now + timedelta(days=1))
    assert [*ALL] == read(broker, start={0: now - timedelta(days=1), 1: 5}, end={0: -1, 1: 5})
    assert len(ALL) + 5 == len(read(broker, end=now + timedelta(days=1)))


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize(
    ("start", "end"),
    [
        (BASE + 2 * SECOND, BASE + SECOND),
        (BASE + 2 * SECOND, {0: 1}),
        ({0: 2}, BASE + SECOND),
        (BASE + 3 * SECOND, {0: 2}),
    ],
    ids=["times", "time and offset", "offset and time", "late time and offset"],
)
def test_an_end_before_the_start_is_an_error_of_the_call(broker, start, end, fail):
    """Times are compared once their offsets are known, whether or not losses are accepted."""
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for number in range(3):
            time_ms = int((BASE + number * SECOND).timestamp()) * 1000
            producer.send("v", b"", timestamp=time_ms)
    message = r"^v-0: start is offset (2|3), which is after the end, offset (1|2)$"
    with pytest.raises(ConfigError, match=message):
        read(broker, "v", start=start, end=end, fail_on_data_loss=fail)


@pytest.mark.parametrize(
    "early", [datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), datetime(1900, 1, 1, tzinfo=UTC)]
)
def test_times_before_1970_are_before_all_records(broker, early):
    """A negative timestamp is no time to Kafka: -1 stands for the latest offset, -2 for another."""
    assert read(broker) == read(broker, start=early)
    assert [] == read(broker, end=early)


def test_a_time_within_a_millisecond_is_rounded_up(broker):
    """A record has whole milliseconds, and one before the time is not read."""
    whole = datetime(2026, 1, 1, tzinfo=UTC)
    first = int(whole.timestamp()) * 1000
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for number in range(2):
            producer.send("v", b"%d" % number, timestamp=first + number)
    start = whole + timedelta(microseconds=1)
    assert [b"1"] == read(broker, "v", start=start)
    assert [b"0"] == read(broker, "v", start=whole, end=start)


def test_later_records_are_not_read(broker):
    """The ends are those of the call, not of the time when the result is iterated."""
    reader = read_arrow(broker.bootstrap_servers, "u", columns=["value"])
    fill(broker.bootstrap_servers, "u", [b"later"])

    assert numbered(3, 200) == reader.read_all().column("value").to_pylist()


def test_settings_are_given_by_keyword_or_by_name(broker):
    """Underscores stand for dots; both ways reach the consumer's configuration."""
    assert ALL == read(broker, ZERO, max_partition_fetch_bytes=2_000, settings={"client.id": "me"})
    with pytest.raises(ConfigError, match=r"client\.id is given twice"):
        read(broker, settings={"client.id": "a"}, client_id="b")
    with pytest.raises(ConfigError, match=r"isolation\.level"):
        read(broker, isolation_levle="read_committed")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"start": {0: 0}},
            f"start {EXACTLY}, but it lacks t-1{EITHER}",
        ),
        (
            {"end": {0: 0, 1: 0, 2: 0}},
            f"end {EXACTLY}, but the read does not cover t-2",
        ),
        ({"start": {0: 21, 1: 0}}, "t-0: start is offset 21, which is after the end, offset 20"),
    ],
)
def test_offsets_that_the_topic_does_not_have_are_an_error_of_the_call(broker, more, message):
    """The error names the argument and the partitions."""
    with pytest.raises(ConfigError) as caught:
        read(broker, **more)
    assert message == str(caught.value)


def test_a_read_may_wait_without_limit(broker):
    """The limit of a wait without progress may be infinite, or longer than a thread can wait."""
    assert ALL == read(broker, ZERO, poll_timeout=math.inf)
    assert ALL == read(broker, ZERO, poll_timeout=10**15)


def test_brokers_at_whose_addresses_nothing_listens_end_the_call_soon(unused_port, monkeypatch):
    """The call does not wait for default.api.timeout.ms then, and the error names the address."""
    leap_at_search_for_anybody(monkeypatch)
    began = time.monotonic()
    with pytest.raises(NetworkError, match=f"^no broker answered through 127.0.0.1:{unused_port}"):
        read_arrow(f"127.0.0.1:{unused_port}", "t", default_api_timeout_ms=int(4e3 * PATIENCE))
    assert time.monotonic() - began < PATIENCE


def test_a_missing_topic_is_an_error_that_suggests_names(monkeypatch):
    """The error names topics with similar names."""
    monkeypatch.setattr("spark_kafka_sink.consumer.offsets.offset_calls.FINAL_SECONDS", 0.2)
    with DevBroker(topics={"orders": 1}) as broker, pytest.raises(BrokerError, match="'orders'"):
        read_arrow(broker.bootstrap_servers, "order")


def test_deleted_records_fail_the_read_or_are_skipped(broker, caplog):
    """A loss is an error of the iteration, or a warning."""
    log = log_of(broker)
    strict, lenient = (
        read_arrow(broker.bootstrap_servers, ZERO, fail_on_data_loss=fails)
        for fails in (True, False)
    )
    broker.call(lambda _: log.delete_records(5))

    with pytest.raises(DataLossError, match="t-0: offset 0 cannot be read"):
        strict.read_all()
    assert 15 == lenient.read_all().num_rows
    assert (
        "t-0: 5 offsets are lost: offset 0 was wanted, and offset 5 is the next that there is: "
        in caplog.text
    )


def test_nothing_is_left_behind(broker):
    """A result that is not iterated, or dropped in the middle, keeps no thread."""
    before = leaks.look()
    unread = read_arrow(broker.bootstrap_servers, "t")
    assert [] == leaks.left_since(before)
    begun = read_arrow(broker.bootstrap_servers, "t", max_partition_fetch_bytes=1)
    assert begun.read_next_batch().num_rows
    del begun, unread
    gc.collect()
    assert [] == leaks.left_since(before)


def test_the_example_runs(broker):
    """The example of the docstring prints the output that it shows."""
    text = (read_arrow.__doc__ or "").replace("localhost:9092", broker.bootstrap_servers)
    names = {"KafkaProducer": KafkaProducer, "read_arrow": read_arrow}
    example = doctest.DocTestParser().get_doctest(text, names, "read_arrow", None, None)

    assert 0 == doctest.DocTestRunner(verbose=False).run(example).failed
