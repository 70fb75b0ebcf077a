"""What poll, poll_arrow and iteration return."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest

from spark_kafka_sink.consumer.assignors.range_assignor import RangeAssignor
from spark_kafka_sink.consumer.interceptors import ConsumerInterceptor
from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecords
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import (
    BrokerError,
    CorruptRecordError,
    SchemaError,
    SerializationError,
)
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.testing import (
    AlterRecords,
    AlterResponse,
    AnswerError,
    ApiKey,
    ErrorCode,
    NeverAnswer,
)
from tests.support.consumer.embedded_consuming import (
    GROUP,
    NEVER_MS,
    PATIENCE,
    consuming,
    poll_until,
    take,
    tp,
    values,
)
from tests.support.consumer.many_headers import check_polls, write_many_headers
from tests.support.consumer.reading import fill, numbered, open_transaction, send


@pytest.fixture
def broker():
    """Return a broker with topic `t` of two partitions, of which 0 has 100 records."""
    with DevBroker(topics={"t": 2}) as broker:
        fill(broker.bootstrap_servers, "t", numbered(100))
        yield broker


def test_a_poll_returns_at_most_max_poll_records(broker):
    """In the order of their offsets, and all of them in the end."""
    with consuming(broker, max_poll_records=7) as consumer:
        consumer.assign([tp()])
        got = []
        while len(got) < 100:
            records = consumer.poll(PATIENCE)
            assert 1 <= records.count <= 7
            got += records[tp()]
            assert got[-1].offset + 1 == consumer.position(tp())
            assert got[-1].offset + 1 == records.next_offsets[tp()].offset
    assert numbered(100) == values(got)
    assert list(range(100)) == [record.offset for record in got]


@pytest.mark.parametrize("as_arrow", [False, True])
def test_a_poll_returns_as_many_headers_as_fit_into_memory(broker, as_arrow):
    """A record of a few hundred bytes may have headers that take hundreds of megabytes."""
    write_many_headers(broker.bootstrap_servers, tp(1))
    with consuming(broker) as consumer:
        check_polls(consumer, tp(1), as_arrow=as_arrow)


def test_a_poll_of_arrow_takes_what_fits_of_each_partition(broker, monkeypatch):
    """What does not fit comes with the next polls, without gaps or repetition."""
    fill(broker.bootstrap_servers, "t", numbered(100), partition=1)
    with consuming(broker) as consumer:
        monkeypatch.setattr(consumer._polls._decoders, "poll_bytes", 1)
        monkeypatch.setattr(consumer._polls._decoders, "_max_rows", 7)
        consumer.assign([tp(0), tp(1)])
        got = {0: [], 1: []}
        while sum(map(len, got.values())) < 200:
            table = consumer.poll_arrow(PATIENCE)
            assert 1 <= table.num_rows <= 7
            for row in table.to_pylist():
                got[row["partition"]].append(row["value"])
            assert [len(got[0]), len(got[1])] == [
                consumer.position(tp(0)),
                consumer.position(tp(1)),
            ]
    assert {0: numbered(100), 1: numbered(100)} == got


def test_partitions_take_turns(broker):
    """None is starved by another one that has more records."""
    fill(broker.bootstrap_servers, "t", numbered(100), partition=1)
    with consuming(broker, max_poll_records=10, max_partition_fetch_bytes=1000) as consumer:
        consumer.assign([tp(0), tp(1)])
        got = take(consumer, 60)
    counts = [sum(record.partition == number for record in got) for number in (0, 1)]
    assert min(counts) >= 20


def test_polls_without_a_timeout_make_progress(broker):
    """They join, look positions up and fetch."""
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t")
        got, deadline = [], time.monotonic() + PATIENCE
        while len(got) < 100 and time.monotonic() < deadline:
            got += consumer.poll(0).get(tp(), [])
            time.sleep(0.001)
    assert numbered(100) == values(got)


def test_a_poll_without_records_returns_in_time(broker):
    """It is empty, and comes after as long as the poll was told to wait."""
    with consuming(broker) as consumer:
        consumer.assign([tp(1)])
        begin = time.monotonic()
        records = consumer.poll(0.3)
        assert 0.25 < time.monotonic() - begin < PATIENCE
        assert records.is_empty
        assert {} == records


def test_iteration_yields_records_in_order(broker):
    """It waits for more."""
    with consuming(broker) as consumer:
        consumer.assign([tp()])
        assert numbered(100) == [record.value for record in itertools.islice(consumer, 100)]


def test_a_new_iteration_goes_on_where_the_last_one_ended(broker):
    """No record that was fetched with others is skipped."""
    with consuming(broker) as consumer:
        consumer.assign([tp()])
        first = [record.value for record in itertools.islice(consumer, 3)]
        assert 3 == consumer.position(tp())
        rest = [record.value for record in itertools.islice(consumer, 97)]
    assert numbered(100) == first + rest


def test_an_arrow_poll_returns_what_was_fetched(broker):
    """max.poll.records does not apply; without records the table is empty."""
    with consuming(broker, max_poll_records=1) as consumer:
        consumer.assign([tp()])
        offsets = []
        while len(offsets) < 100:
            table = consumer.poll_arrow(PATIENCE, columns=["offset", "value"])
            assert ["offset", "value"] == table.column_names
            offsets += table.column("offset").to_pylist()
        assert list(range(100)) == offsets
        assert 100 == consumer.position(tp())
        empty = consumer.poll_arrow(0)
        assert 0 == empty.num_rows
        assert ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"] == (
            empty.column_names
        )
        with pytest.raises(SchemaError):
            consumer.poll_arrow(0, columns=["wrong"])


def test_headers_are_returned_in_both_forms(broker):
    """Keys may repeat, and values may be missing."""
    headers = [("a", b"1"), ("a", b"2"), ("b", None)]
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        send(producer, "t", [b"with"], partition=1, headers=headers)
    with consuming(broker) as consumer:
        consumer.assign([tp(1)])
        [record] = take(consumer, 1)
        assert headers == [tuple(header) for header in record.headers]
        consumer.seek(tp(1), 0)
        table = consumer.poll_arrow(PATIENCE, include_headers=True)
        [found] = table.column("headers").to_pylist()
        assert headers == [(each["key"], each["value"]) for each in found]


def test_both_kinds_of_poll_can_be_mixed(broker):
    """Each goes on behind the other, in the middle of a batch too."""
    with consuming(broker, max_poll_records=3) as consumer:
        consumer.assign([tp()])
        got = values(take(consumer, 3))
        while len(got) < 100:
            got += consumer.poll_arrow(PATIENCE, columns=["value"]).column("value").to_pylist()
            got += [record.value for record in consumer.poll(0).get(tp(), [])]
        consumer.poll(0)
    assert numbered(100) == got


def test_a_paused_partition_is_kept(broker):
    """Its records are returned after resume, each once; the other goes on."""
    with consuming(broker, max_poll_records=5) as consumer:
        consumer.assign([tp(0), tp(1)])
        got = take(consumer, 5)
        consumer.pause([tp()])
        assert frozenset({tp()}) == consumer.paused()
        fill(broker.bootstrap_servers, "t", [b"other"], partition=1)
        assert [b"other"] == values(take(consumer, 1))
        assert consumer.poll(0.1).is_empty
        consumer.resume([tp()])
        got += take(consumer, 100 - len(got))
    assert numbered(100) == values(got)


def extend_forever(got, poll):
    """Add what `poll` returns, until it raises; for a while at most."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        got += poll()


def damaged(offset):
    """Return a fault that damages the batch with this offset."""

    def alter(records):
        batches, rest = [], bytes(records)
        while rest:
            size = 12 + int.from_bytes(rest[8:12], "big")
            batch, rest = rest[:size], rest[size:]
            first, delta = int.from_bytes(batch[:8], "big"), int.from_bytes(batch[23:27], "big")
            is_damaged = first <= offset <= first + delta
            batches.append(batch[:-1] + bytes([batch[-1] ^ is_damaged]))
        return b"".join(batches)

    return AlterRecords(alter, [("t", 0)])


@pytest.mark.parametrize("arrow", [False, True])
def test_a_damaged_batch_is_raised_in_its_place(broker, arrow):
    """The records before it come first; the error names its place; a seek passes it."""
    broker.on(ApiKey.FETCH, damaged(25))
    with consuming(broker) as consumer:
        consumer.assign([tp()])

        def poll():
            if arrow:
                return consumer.poll_arrow(PATIENCE, columns=["value"]).column("value").to_pylist()
            return [record.value for record in consumer.poll(PATIENCE).get(tp(), [])]

        got = []
        with pytest.raises(CorruptRecordError) as caught:
            extend_forever(got, poll)
        assert numbered(100)[: len(got)] == got
        assert 10 < len(got) <= 25
        assert len(got) == consumer.position(tp())
        for part in ("'t'", "partition 0", f"offset {len(got)}"):
            assert part in str(caught.value)
        with pytest.raises(CorruptRecordError):
            poll()
        consumer.seek(tp(), 50)
        assert numbered(100)[50] == poll()[0]


def test_a_value_that_cannot_be_deserialized_is_raised_in_its_place(broker):
    """The records before it come first; a seek passes it, and its data are not in the error."""
    with consuming(broker, value_deserializer=refuse_41) as consumer:
        consumer.assign([tp()])
        got = []
        with pytest.raises(SerializationError, match="offset 41") as caught:
            extend_forever(got, lambda: consumer.poll(PATIENCE).get(tp(), []))
        assert list(range(41)) == [record.value for record in got]
        assert "x" * 10 not in str(caught.value)
        assert isinstance(caught.value.__cause__, ValueError)
        assert 41 == consumer.position(tp())
        with pytest.raises(SerializationError, match="offset 41"):
            consumer.poll(PATIENCE)
        consumer.seek(tp(), 42)
        assert 42 == consumer.poll(PATIENCE)[tp()][0].value


def refuse_41(data, topic):
    """Read the number, unless it is 41."""
    number = int(data.split()[0])
    if number == 41:
        raise ValueError(data)
    return number


class Noting(ConsumerInterceptor):
    """An interceptor that passes every second record, and notes commits."""

    commits = ()

    def on_consume(self, records):
        """Drop records with odd offsets."""
        return ConsumerRecords(
            {each: [it for it in some if it.offset % 2 == 0] for each, some in records.items()},
            records.next_offsets,
        )

    def on_commit(self, offsets):
        """Record the offsets."""
        Noting.commits = (*Noting.commits, dict(offsets))


class Failing(ConsumerInterceptor):
    """An interceptor that always raises."""

    def on_consume(self, records):
        """Raise."""
        raise ValueError("broken")


def test_interceptors_see_records_and_commits(broker, caplog):
    """One that raises is logged and skipped; positions are those of all records."""
    Noting.commits = ()
    with consuming(broker, interceptor_classes=[Failing, Noting], **GROUP) as consumer:
        consumer.assign([tp()])
        assert list(range(0, 100, 2)) == [record.offset for record in take(consumer, 50)]
        assert 100 == consumer.position(tp())
        consumer.commit({tp(): 9})
    assert 9 == Noting.commits[0][tp()].offset
    assert "Failing.on_consume failed" in caplog.text


class Raising(RangeAssignor):
    """An assignor that raises the first two times."""

    calls = 0

    def assign(self, metadata, group_subscription):
        """Raise, or assign."""
        Raising.calls += 1
        if Raising.calls <= 2:
            raise ValueError("no plan")
        return super().assign(metadata, group_subscription)


def test_an_assignor_that_raises_is_asked_again(broker):
    """Its error is raised by poll; the next poll joins again."""
    Raising.calls = 0
    settings = {**GROUP, "partition.assignment.strategy": [Raising]}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t")
        for _ in range(2):
            with pytest.raises(ValueError, match="no plan"):
                poll_until(consumer, lambda: False)
        assert numbered(100) == values(take(consumer, 100))


def test_the_position_passes_an_aborted_transaction_at_the_end(broker):
    """A reader of committed records returns none of its records, and arrives at the end."""
    with open_transaction(broker.bootstrap_servers, numbered(5)):
        pass
    with consuming(broker, isolation_level="read_committed") as consumer:
        consumer.assign([tp()])
        assert numbered(100) == values(take(consumer, 100))
        poll_until(consumer, lambda: 106 == consumer.position(tp()))
        assert {tp(): 106} == consumer.end_offsets([tp()])
        consumer.seek(tp(), 100)
        deadline = time.monotonic() + PATIENCE
        while consumer.position(tp()) < 106 and time.monotonic() < deadline:
            assert 0 == consumer.poll_arrow(0.1).num_rows
        assert 106 == consumer.position(tp())
    with consuming(broker) as consumer:
        consumer.assign([tp()])
        assert 105 == len(take(consumer, 105))


def test_an_open_transaction_is_not_read(broker):
    """Nor what is behind it, until it ends."""
    with consuming(broker, isolation_level="read_committed") as consumer:
        consumer.assign([tp()])
        with open_transaction(broker.bootstrap_servers, numbered(5)):
            fill(broker.bootstrap_servers, "t", [b"behind"])
            assert 100 == len(take(consumer, 100))
            assert consumer.poll(0.2).is_empty
            assert {tp(): 100} == consumer.end_offsets([tp()])
        assert [b"behind"] == values(take(consumer, 1))


def test_questions_about_offsets_and_partitions(broker):
    """They need no assignment."""
    with consuming(broker) as consumer:
        both = [tp(0), tp(1)]
        assert {tp(0): 0, tp(1): 0} == consumer.beginning_offsets(both)
        assert {tp(0): 100, tp(1): 0} == consumer.end_offsets(both)
        assert {tp(0): 0, tp(1): None} == consumer.offsets_for_times({tp(0): 0, tp(1): 0})
        assert [("t", 0), ("t", 1)] == [
            (it.topic, it.partition) for it in consumer.partitions_for("t")
        ]
        assert {} == consumer.end_offsets([])


@pytest.mark.parametrize(
    "code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION]
)
def test_an_error_of_the_topic_is_raised(broker, code):
    """By each poll while it lasts, naming the topic; afterwards reading goes on."""

    def refuse(response):
        return replace(
            response,
            topics=tuple(replace(each, error_code=code, partitions=()) for each in response.topics),
        )

    broker.on(ApiKey.METADATA, AlterResponse(refuse), times=2)
    with consuming(broker) as consumer:
        consumer.assign([tp()])
        with pytest.raises(BrokerError, match=f"'t'.*{code.name}"):
            poll_until(consumer, lambda: False)
        got, deadline = [], time.monotonic() + PATIENCE
        while len(got) < 100 and time.monotonic() < deadline:
            try:
                got += consumer.poll(0.1).get(tp(), [])
            except BrokerError:
                continue
        assert 100 == len(got)


def test_a_slow_answer_of_one_broker_does_not_stop_the_other():
    """Each broker has a fetch of its own."""
    with DevBroker(topics={"t": 2}, brokers=2) as broker:
        one = broker.leader("t", 0)
        assert one != broker.leader("t", 1)
        for number in (0, 1):
            fill(broker.bootstrap_servers, "t", numbered(3), partition=number)

        def ignore(_, context):
            return NeverAnswer() if context.node_id == one else None

        hook = broker.on(ApiKey.FETCH, ignore)
        with consuming(broker, request_timeout_ms=NEVER_MS) as consumer:
            consumer.assign([tp(0), tp(1)])
            assert {1} == {record.partition for record in take(consumer, 3)}
            poll_until(consumer, lambda: hook.fired)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_an_error_of_a_fetch_session_is_mended(broker, code):
    """A new session begins, and no record is lost or read twice."""
    with consuming(broker, max_poll_records=10, max_partition_fetch_bytes=1000) as consumer:
        consumer.assign([tp()])
        got = take(consumer, 20)
        hook = broker.on(ApiKey.FETCH, AnswerError(code), times=2)
        got += take(consumer, 100 - len(got))
        assert 2 == hook.fired
    assert numbered(100) == values(got)


def test_a_small_limit_does_not_stop_reading(broker):
    """A batch that is larger than the limits is returned whole."""
    fill(broker.bootstrap_servers, "t", [b"y" * 5000], partition=1, **{"batch.size": 10_000})
    with consuming(broker, max_partition_fetch_bytes=100, fetch_max_bytes=100) as consumer:
        consumer.assign([tp(1)])
        assert [b"y" * 5000] == values(take(consumer, 1))
