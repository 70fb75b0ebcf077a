"""Ranges read from an embedded broker that moves, loses and delays things."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest

from spark_kafka_sink.consumer.consumer_client import FetchCalls
from spark_kafka_sink.consumer.range_reader import DataLoss, PartitionRange, read_range
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.log.log_cleaner import clean
from spark_kafka_sink.errors import (
    BrokerError,
    CorruptRecordError,
    DataLossError,
    IllegalStateError,
    KafkaTimeoutError,
    SchemaError,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.list_offsets import EARLIEST_LOCAL_TIMESTAMP
from spark_kafka_sink.record.arrow.schema import arrow_schema
from spark_kafka_sink.testing import (
    AlterRecords,
    AlterResponse,
    AnswerError,
    CloseConnection,
    NeverAnswer,
    Throttle,
)
from tests.support.consumer.reading import (
    PATIENCE,
    VALUES,
    abort_a_transaction,
    delete_topic,
    fill,
    log_of,
    numbered,
    offsets_of,
    open_transaction,
    range_of,
    read_all,
    reading,
    values_of,
)
from tests.support.faults.fault_proxy import FaultProxy
from tests.support.faults.fault_rules import Action, Fault, Side
from tests.support.network.leaps import (
    MILLISECONDS,
    SECONDS,
    leap,
    leap_at_second_metadata,
    leap_once,
)

COUNT = 200
ALL = numbered(COUNT)


@pytest.fixture
def broker():
    """Yield a broker with a topic `t` of one partition that has `ALL`."""
    with DevBroker(topics={"t": 1}) as broker:
        fill(broker.bootstrap_servers, "t", ALL)
        yield broker


@pytest.fixture
def client(broker):
    """Yield a client of the broker."""
    with reading(broker.bootstrap_servers) as client:
        yield client


# --- rows


def test_a_range_has_the_records_between_its_offsets(client):
    """Records before the start and from the end on are left out, although their batches come."""
    which = replace(range_of(client), start=33, end=144)
    assert ALL[33:144] == read_all(client, which)


def test_no_more_than_100_mb_are_asked_for_at_once(broker):
    """Settings may allow more than a response of Kafka's can have."""
    seen = set()
    broker.on(ApiKey.FETCH, lambda request, _: seen.add(request.max_bytes))
    with reading(broker.bootstrap_servers, **{"fetch.max.bytes": 2**31 - 1}) as client:
        assert ALL == read_all(client, range_of(client))
    assert {104_857_600} == seen


def test_small_answers_make_a_whole(broker, client):
    """A range that takes many answers has every record once, in order."""
    fetches = broker.on(ApiKey.FETCH, lambda *_: None)
    batches = read_range(client, range_of(client), VALUES)

    assert list(range(COUNT)) == offsets_of(batches)
    assert fetches.seen > COUNT * 90 / 2_000


@pytest.mark.parametrize(("start", "end"), [(10, 10), (10, 5)])
def test_an_empty_range_sends_nothing(broker, client, start, end):
    """A range without offsets yields nothing, and no broker is asked."""
    which = replace(range_of(client), start=start, end=end)
    asked = broker.on(ApiKey.FETCH, lambda *_: None)

    assert [] == read_all(client, which)
    assert 0 == asked.seen


def test_the_setting_that_an_error_names_raises_the_limit(broker):
    """A batch that decompresses to too much is refused, unless the named setting allows it."""
    values = [bytes(10_000)] * 10
    settings = {"batch.size": 200_000, "compression.type": "zstd"}
    fill(broker.bootstrap_servers, "t", values, **settings)
    name = "max.uncompressed.batch.bytes"
    with reading(broker.bootstrap_servers, **{name: 5_000}) as client:
        which = replace(range_of(client), start=COUNT)
        with pytest.raises(CorruptRecordError, match=f"more than 5000 bytes: raise {name} to"):
            read_all(client, which)
    with reading(broker.bootstrap_servers, **{name: 200_000}) as client:
        assert values == read_all(client, which)


def test_a_column_that_records_do_not_have_is_an_error_at_once(client):
    """The schema is checked before the first record is asked for."""
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(SchemaError, match="there is no column 'price'"):
        read_range(client, range_of(client), pa.schema([("price", pa.int64())]))


def test_gaps_in_the_offsets_are_no_loss():
    """A range ends at its end offset, however many records compaction has removed."""
    with DevBroker() as broker:
        broker.create_topic("c", configs={"cleanup.policy": "compact"})
        fill(broker.bootstrap_servers, "c", ALL, key=b"the key")
        log = log_of(broker, "c")
        broker.call(lambda _: log.roll(0))
        broker.call(lambda _: clean(log, 0))
        with reading(broker.bootstrap_servers) as client:
            which = replace(range_of(client, "c"), start=0, end=COUNT)
            assert ALL[-1:] == read_all(client, which)


def test_a_range_may_hold_nothing_but_a_marker(broker, client):
    """The position after a transaction marker is past it, although it is not a record."""
    abort_a_transaction(broker.bootstrap_servers, [b"one"])
    which = replace(range_of(client), start=COUNT + 1)

    assert COUNT + 2 == which.end
    assert [] == read_all(client, which)


# --- transactions


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_aborted_records_are_left_out_of_committed_reads(broker, level):
    """Under read_committed the records of aborted transactions are skipped, and no others."""
    servers = broker.bootstrap_servers
    aborted, committed = numbered(60, start=1000), numbered(60, start=2000)
    abort_a_transaction(servers, aborted)
    fill(servers, "t", committed)
    with reading(servers, **{"isolation.level": level}) as client:
        which = range_of(client)
        expected = [*ALL, *([] if level == "read_committed" else aborted), *committed]

        assert expected == read_all(client, which)
        # 60 records, the marker, and 60 records.
        assert COUNT + 121 == which.end


def test_an_aborted_transaction_of_one_record_is_left_out(broker):
    """The transaction begins at the offset of its only record, and that is left out."""
    servers = broker.bootstrap_servers
    abort_a_transaction(servers, [b"aborted"])
    with reading(servers, **{"isolation.level": "read_committed"}) as client:
        assert ALL == read_all(client, range_of(client))


def test_an_open_transaction_ends_a_committed_range(broker):
    """The last stable offset is the latest one; beyond it, the error names the transaction."""
    servers = broker.bootstrap_servers
    with (
        open_transaction(servers, numbered(20)),
        reading(servers, **{"isolation.level": "read_committed"}) as client,
    ):
        which = range_of(client)
        assert COUNT == which.end
        assert ALL == read_all(client, which)
        asked_beyond = []

        def leap_after_an_answer(request, _):
            if request.topics[0].partitions[0].fetch_offset == COUNT:
                asked_beyond.append(request)
                # The client has handled the answer to the first of these requests.
                if len(asked_beyond) == 2:
                    leap(client)

        hook = broker.on(ApiKey.FETCH, leap_after_an_answer)
        with pytest.raises(KafkaTimeoutError, match=f"open transaction .* offset {COUNT} on"):
            read_all(client, replace(which, end=COUNT + 20), poll_timeout=SECONDS)
        hook.remove()
        with reading(servers) as uncommitted:
            assert COUNT + 20 == range_of(uncommitted).end
            assert [*ALL, *numbered(20)] == read_all(uncommitted, range_of(uncommitted))


# --- pace


@pytest.mark.usefixtures("small_batches")
def test_a_slow_consumer_holds_back_the_fetches(broker, client):
    """While the first answer is being consumed, only one more Fetch is sent."""
    which = range_of(client)
    fetches = broker.on(ApiKey.FETCH, lambda *_: None)
    batches = read_range(client, which, VALUES)
    first = next(batches)
    # A request that the broker answers after any Fetch that was sent before.
    range_of(client)

    assert ALL[:10] == values_of([first])
    assert 2 == fetches.seen
    batches.close()


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.usefixtures("small_batches")
def test_a_generator_may_be_closed_at_any_time(client, rounds):
    """After a reader was closed in the middle, another one reads the range as a whole."""
    batches = read_range(client, range_of(client), VALUES)
    for _ in range(rounds):
        next(batches)
    batches.close()

    assert ALL == read_all(client, range_of(client))


@pytest.mark.usefixtures("small_batches")
def test_several_ranges_are_read_at_once(client):
    """Readers of one client do not disturb each other."""
    readers = [read_range(client, range_of(client), VALUES) for _ in range(3)]
    found = [[], [], []]
    for batches in zip(*readers, strict=True):
        for number, batch in enumerate(batches):
            found[number] += values_of([batch])

    assert [ALL, ALL, ALL] == found


def test_a_closed_client_ends_its_readers(broker):
    """A reader whose client is closed raises an error."""
    with reading(broker.bootstrap_servers) as client:
        batches = read_range(client, range_of(client), VALUES)
    with pytest.raises(IllegalStateError, match="closed"):
        list(batches)


# --- faults


@pytest.mark.parametrize(
    "fault",
    [
        CloseConnection(),
        CloseConnection(handled=True),
        Throttle(0.05),
        AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        AnswerError(ErrorCode.OFFSET_NOT_AVAILABLE),
        AnswerError(ErrorCode.UNKNOWN_LEADER_EPOCH),
        AnswerError(ErrorCode.UNKNOWN_TOPIC_ID),
        AnswerError(ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
    ids=repr,
)
def test_a_fault_in_the_middle_loses_and_repeats_nothing(broker, client, fault):
    """Whatever happens to some of the answers, each record is read once, in order."""
    which = range_of(client)
    hook = broker.on(
        ApiKey.FETCH, lambda _, context: fault if context.number % 3 == 2 else None, times=4
    )

    assert ALL == read_all(client, which)
    assert 4 == hook.fired


@pytest.mark.parametrize("action", [Action.SWALLOW, Action.RESET, Action.CUT, Action.SPLIT])
def test_a_damaged_stream_loses_and_repeats_nothing(broker, action):
    """If the connection breaks within an answer, the Fetch is sent again."""
    fault = Fault(side=Side.ANSWER, action=action, api_key=ApiKey.FETCH, nth=3)
    with FaultProxy([fault]) as proxy:
        broker.call(lambda it: it.advertise(*_split(proxy.address), listener="PLAINTEXT"))
        proxy.connect_to(f"127.0.0.1:{broker.port}")
        with reading(proxy.address) as client:
            assert ALL == read_all(client, range_of(client))
        assert 1 == proxy.strikes_of(fault)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def test_a_broker_that_never_answers_is_asked_over_another_connection(broker):
    """An answer that does not come within request.timeout.ms is asked for again."""
    hook = broker.on(ApiKey.FETCH, NeverAnswer(), times=1)
    settings = {"request.timeout.ms": 300, "fetch.max.wait.ms": 50}
    with reading(broker.bootstrap_servers, **settings) as client:
        assert ALL == read_all(client, range_of(client))
    assert 1 == hook.fired


def test_no_answer_at_all_ends_in_an_error(broker, client):
    """The error names the partition, the offset and what was last seen."""
    which = range_of(client)
    broker.on(ApiKey.FETCH, NeverAnswer())
    # The request has to be sent by then.
    with pytest.raises(KafkaTimeoutError, match=r"t-0: no progress within 4 s at offset 0") as it:
        read_all(client, which, poll_timeout=4)
    assert "no answer yet to Fetch from offset 0" in str(it.value)


def test_an_absent_broker_is_named_in_the_error(monkeypatch):
    """The error says why there are no metadata, not only that there are none."""
    refresh = FetchCalls.refresh

    def refresh_until_refused(*given):
        # Not while the end of the connection is the last error that the reader has seen.
        leap_once(client, lambda: "Connection refused" in str(client._client.last_error))
        return refresh(*given)

    monkeypatch.setattr(FetchCalls, "refresh", refresh_until_refused)
    # A leap does not end an attempt to connect, which would have another cause.
    settings = {
        "socket.connection.setup.timeout.ms": 5 * MILLISECONDS,
        "socket.connection.setup.timeout.max.ms": 5 * MILLISECONDS,
    }
    with ExitStack() as running:
        broker = running.enter_context(DevBroker(topics={"t": 1}))
        fill(broker.bootstrap_servers, "t", ALL)
        with reading(broker.bootstrap_servers, **settings) as client:
            which = range_of(client)
            running.close()
            with pytest.raises(KafkaTimeoutError, match=r"Last seen: .*Connection refused"):
                read_all(client, which, poll_timeout=SECONDS)


def test_a_topic_that_may_not_be_read_fails_at_once(broker, client):
    """The error names the missing right."""
    which = range_of(client)
    broker.on(ApiKey.FETCH, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="Grant this user READ on the topic"):
        read_all(client, which)


def test_leaders_that_move_in_mid_range_lose_and_repeat_nothing():
    """The reader goes to each new leader."""
    with DevBroker(brokers=3, topics={"t": 1}) as cluster:
        fill(cluster.bootstrap_servers, "t", ALL)
        moves = []

        def move(_, context):
            if context.number in {2, 4, 6}:
                target = context.node_id % 3 + 1
                moves.append(threads.submit(cluster.move_leader, "t", 0, target))

        # No move may be left when the brokers stop.
        with ThreadPoolExecutor(3) as threads, reading(cluster.bootstrap_servers) as client:
            which = range_of(client)
            cluster.on(ApiKey.FETCH, move)
            assert ALL == read_all(client, which)
        assert moves
        for done in moves:
            done.result()


def test_a_stopped_leader_is_replaced():
    """If the leader stops, the reader goes on at the next one."""
    with DevBroker(brokers=3, topics={"t": 1}) as cluster:
        fill(cluster.bootstrap_servers, "t", ALL)
        with reading(cluster.bootstrap_servers) as client:
            which = range_of(client)
            cluster.stop(cluster.leader("t"))
            assert ALL == read_all(client, which)


# --- remote storage


class _RemoteStorage:
    """Remote storage of a broker (KIP-405) with the records before `LOCAL_START`.

    While it is slow, the broker returns none of them, and the usual offsets.
    """

    LOCAL_START = 120

    def __init__(self, broker, *, empty_answers=None):
        """Make the storage slow for so many answers, or for ever."""
        self.fetches = broker.on(ApiKey.FETCH, self._fetch, times=empty_answers)
        self.lookups = broker.on(ApiKey.LIST_OFFSETS, self._look_up)

    def _fetch(self, request, _):
        [asked] = request.topics[0].partitions
        return AlterRecords(lambda _: b"") if asked.fetch_offset < self.LOCAL_START else None

    def _look_up(self, request, _):
        [asked] = request.topics[0].partitions
        is_local = asked.timestamp == EARLIEST_LOCAL_TIMESTAMP
        return AlterResponse(self._with_local_start) if is_local else None

    def _with_local_start(self, response):
        [topic] = response.topics
        [found] = topic.partitions
        found = replace(found, offset=self.LOCAL_START)
        return replace(response, topics=(replace(topic, partitions=(found,)),))


def test_remote_storage_is_waited_for(broker, client):
    """As long as remote storage returns nothing, its records are not taken for deleted ones."""
    which = range_of(client)
    storage = _RemoteStorage(broker, empty_answers=7)

    assert ALL == read_all(client, which)
    # Every second empty answer in a row is a reason to look where the broker's own disk begins.
    assert (7, 3) == (storage.fetches.fired, storage.lookups.fired)


def test_remote_storage_that_never_answers_is_named_in_the_error(broker, client):
    """The error says where the broker's own disk begins; from there on everything can be read."""
    which = range_of(client)
    leaps = []

    def leap_after_a_look_up(*_):
        # The client has handled the answer by the next Fetch.
        if storage.lookups.fired and not leaps:
            leaps.append(leap(client))

    # The hooks after one that acts are not called.
    broker.on(ApiKey.FETCH, leap_after_a_look_up)
    storage = _RemoteStorage(broker)
    with pytest.raises(
        KafkaTimeoutError,
        match=r"at offset 0; the range ends at offset 200\. "
        r".*Records from offset 0 on are in remote storage.* at offset 120$",
    ):
        read_all(client, which, poll_timeout=SECONDS)

    assert ALL[120:] == read_all(client, replace(which, start=120))


# --- data loss


class _Losses(list):
    """The losses that a reader has reported."""

    def read(self, client, which) -> list[bytes]:
        """Return the values of a range although some of it is lost."""
        return read_all(client, which, fail_on_data_loss=False, on_data_loss=self.append)


def test_deleted_records_are_a_loss(broker, client):
    """Records that retention has removed are an error, or are skipped and reported."""
    which = range_of(client)
    log = log_of(broker)
    broker.call(lambda _: log.delete_records(50))
    losses = _Losses()

    assert ALL[50:] == losses.read(client, which)
    assert [DataLoss("t", 0, 0, 50, 50, losses[0].reason)] == losses
    with pytest.raises(DataLossError, match=r"t-0: offset 0 cannot be read.*50 offsets") as it:
        read_all(client, which)
    assert (0, 50, 50) == (it.value.wanted, it.value.available, it.value.lost)


@pytest.mark.parametrize(
    "fault", [AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER), CloseConnection()], ids=repr
)
def test_the_bounds_of_a_log_are_asked_for_until_they_are_known(broker, client, fault):
    """What is lost is known only when a broker has answered ListOffsets without an error."""
    which = range_of(client)
    log = log_of(broker)
    broker.call(lambda _: log.delete_records(50))
    hook = broker.on(ApiKey.LIST_OFFSETS, fault, times=2)
    losses = _Losses()

    assert ALL[50:] == losses.read(client, which)
    assert [(0, 50, 50)] == [(it.wanted, it.available, it.lost) for it in losses]
    assert 2 == hook.fired


def test_records_deleted_under_the_reader_are_a_loss(broker, client):
    """Retention may overtake a reader in the middle of its range."""
    which = range_of(client)
    log = log_of(broker)
    broker.on(
        ApiKey.FETCH, lambda _, context: log.delete_records(150) if context.number == 3 else None
    )
    losses = _Losses()
    found = losses.read(client, which)

    assert [*ALL[: losses[0].wanted], *ALL[150:]] == found
    assert (150, 150 - losses[0].wanted) == (losses[0].available, losses[0].lost)


def test_a_truncated_log_is_a_loss(broker, client):
    """A log that now ends within the range is an error, or the rest is reported as lost."""
    which = range_of(client)
    log = log_of(broker)
    broker.call(lambda _: log.truncate_to(100))
    end = log.high_watermark
    losses = _Losses()

    assert ALL[:end] == losses.read(client, which)
    assert [(COUNT, end, COUNT - end)] == [(it.wanted, it.available, it.lost) for it in losses]
    with pytest.raises(DataLossError, match=f"the log ends at offset {end}"):
        read_all(client, which)


def test_a_log_that_ends_before_the_range_is_a_loss(broker, client):
    """A start beyond the end of the log is an error, or all of the range is lost."""
    which = replace(range_of(client), start=COUNT + 10, end=COUNT + 30)
    losses = _Losses()

    assert [] == losses.read(client, which)
    assert [(COUNT + 10, COUNT, 20)] == [(it.wanted, it.available, it.lost) for it in losses]


def test_a_deleted_topic_is_a_loss(broker, client):
    """A topic that no longer exists is an error that says so, or all of the range is lost."""
    which = range_of(client)
    delete_topic(broker)
    losses = _Losses()

    leap_at_second_metadata(broker, client)
    assert [] == losses.read(client, which)
    assert [(COUNT, "the topic no longer exists")] == [(it.lost, it.reason) for it in losses]


def test_a_topic_made_again_is_never_read_in_place_of_the_old_one(broker, client):
    """A new topic of the same name is another one, even if it has the offsets of the range."""
    which = range_of(client)
    delete_topic(broker)
    broker.create_topic("t")
    fill(broker.bootstrap_servers, "t", numbered(COUNT, start=1000))
    losses = _Losses()

    leap_at_second_metadata(broker, client)
    assert [] == losses.read(client, which)
    assert [COUNT] == [it.lost for it in losses]
    leap_at_second_metadata(broker, client)
    with pytest.raises(DataLossError, match="the topic was deleted and recreated"):
        read_all(client, which)


def test_a_partition_that_never_existed_is_a_loss(broker, client):
    """A partition beyond those of the topic is an error that names their number."""
    leap_at_second_metadata(broker, client)
    which = PartitionRange("t", 7, 0, 10)
    with pytest.raises(DataLossError, match=r"the topic has 1 partition\. "):
        list(read_range(client, which, arrow_schema(["value"]), poll_timeout=PATIENCE))
