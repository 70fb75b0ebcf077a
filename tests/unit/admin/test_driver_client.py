"""The admin client against the embedded broker: any transactions, its own, and topics."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.admin.records import DataRecord, EndMarker, KeyValue
from spark_kafka_sink.admin.transaction_values import EndAnswer, EndOutcome, TransactionEnd
from spark_kafka_sink.admin.values import NewTopic
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import (
    AlterResponse,
    AnswerError,
    CloseConnection,
    NeverAnswer,
)
from spark_kafka_sink.errors import (
    BrokerError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
)
from spark_kafka_sink.exactly_once.ledger_entries import KeyOffsets
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.admin.late_calls import end_when_unreachable
from tests.support.consumer.reading import fill

PLACE = TopicPartition("data", 0)
TIMEOUT = 60.0


@pytest.fixture(params=[1, 2], ids=["tv1", "tv2"])
def broker(request):
    with DevBroker(
        topics={"data": 2}, transaction_version=request.param, auto_create_topics=False
    ) as started:
        started.transaction_version = request.param
        yield started


@pytest.fixture
def admin(broker):
    with _admin(broker) as client:
        yield client


def _admin(broker, **settings):
    return DriverClient(
        ProducerConfig.from_mapping(
            {"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 10, **settings}
        )
    )


def _init(admin, name, current=None):
    return admin.init_producer_id(
        name, transaction_timeout_ms=60_000, timeout=TIMEOUT, current=current
    )


def _write(admin, name, producer, *values, place=PLACE):
    records = [KeyValue(b"k", value) for value in values or (b"v",)]
    return admin.write_to_transaction(name, producer, place, records, now_ms=7, timeout=TIMEOUT)


def _open(admin, name):
    producer = _init(admin, name)
    _write(admin, name, producer)
    return producer


def _end(admin, name, producer, *, committed=True, rules=None):
    return admin.end_transaction(TransactionEnd(name, producer, committed, rules), timeout=TIMEOUT)


def _events(admin, place=PLACE, offset=0, *, markers_only=False):
    events = []
    end = admin.end_offset(place, timeout=TIMEOUT)
    while offset < end:
        chunk = admin.read_partition(place, offset, timeout=TIMEOUT, markers_only=markers_only)
        events += chunk.events
        offset = chunk.next_offset
    return events


# --- transactions of others


def test_only_transactions_that_the_caller_accepts_are_listed(admin):
    """Ids are listed with producer id and state; others are omitted, whatever the pattern."""
    producer = _open(admin, "orders.1")
    _open(admin, "orders.eu.1")
    listed = admin.list_transactions(
        lambda name: name == "orders.1", states=("Ongoing",), pattern="orders.*", timeout=TIMEOUT
    )
    assert [("orders.1", producer.producer_id, "Ongoing")] == listed


def test_a_pattern_is_applied_by_brokers_that_support_it(admin):
    """Version 2 of ListTransactions filters at the broker."""
    _open(admin, "orders.1")
    _open(admin, "other.1")
    names = {
        one.transactional_id
        for one in admin.list_transactions(lambda _: True, pattern="orders.*", timeout=TIMEOUT)
    }
    assert {"orders.1"} == names


def test_every_broker_must_list_its_transactions(broker, admin):
    """If a broker cannot list its transactions the listing fails, rather than being partial."""
    _open(admin, "orders.1")
    broker.on(ApiKey.LIST_TRANSACTIONS, AnswerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="ListTransactions"):
        admin.list_transactions(lambda _: True, timeout=TIMEOUT)


@pytest.mark.parametrize("api_key", [ApiKey.METADATA, ApiKey.FIND_COORDINATOR], ids=str)
def test_a_lost_connection_is_opened_again(broker, admin, api_key):
    """A broker that was restarted since the last call causes no error."""
    producers = {name: _open(admin, name) for name in ("orders.1", "orders.2")}
    broker.on(api_key, CloseConnection(), times=1)
    with _admin(broker) as other:
        other.list_transactions(lambda _: True, timeout=TIMEOUT)
        broker.on(api_key, CloseConnection(), times=1)
        listed = other.list_transactions(lambda _: True, timeout=TIMEOUT)
        assert set(producers) == {one.transactional_id for one in listed}
        described = other.describe_transactions(list(producers), timeout=TIMEOUT)
        assert producers == {name: one.producer for name, one in described.items()}


def test_a_state_that_an_older_broker_does_not_know_is_an_error(broker, admin):
    """A filter that the broker ignores would list too little, so it is an error."""
    older = AlterResponse(lambda it: replace(it, unknown_state_filters=("PrepareEpochFence",)))
    broker.on(ApiKey.LIST_TRANSACTIONS, older)
    with pytest.raises(KafkaError) as caught:
        admin.list_transactions(lambda _: True, states=("PrepareEpochFence",), timeout=TIMEOUT)
    assert "ListTransactions: the broker is too old for the states PrepareEpochFence" == str(
        caught.value
    )


def test_a_transaction_is_described_by_its_coordinator(admin):
    """Producer id, epoch, timeout and partitions are returned, and None for an unknown id."""
    producer = _open(admin, "orders.1")
    found = admin.describe_transactions(["orders.1", "nobody"], timeout=TIMEOUT)
    described = found["orders.1"]
    assert found["nobody"] is None
    assert (producer, "Ongoing", True) == (
        described.producer,
        described.state,
        described.is_open,
    )
    assert (60_000, (PLACE,)) == (described.timeout_ms, described.partitions)
    assert described.start_time_ms > 0


def test_an_id_without_a_transaction_has_no_start_time(admin):
    """A start of -1 on the wire means that nothing is open."""
    _init(admin, "orders.1")
    described = admin.describe_transactions(["orders.1"], timeout=TIMEOUT)["orders.1"]
    assert (None, False) == (described.start_time_ms, described.is_open)


def test_describing_follows_a_coordinator_that_has_moved(broker, admin):
    """NOT_COORDINATOR and a lost connection lead to another lookup."""
    producer = _open(admin, "orders.1")
    broker.on(ApiKey.DESCRIBE_TRANSACTIONS, AnswerError(ErrorCode.NOT_COORDINATOR), times=1)
    broker.on(ApiKey.DESCRIBE_TRANSACTIONS, CloseConnection(), times=1)
    found = admin.describe_transactions(["orders.1"], timeout=TIMEOUT)
    assert producer == found["orders.1"].producer


def test_describing_without_authorization_raises(broker, admin):
    """A missing authorization is not reported as an unknown id."""
    broker.on(
        ApiKey.DESCRIBE_TRANSACTIONS,
        AnswerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    )
    with pytest.raises(BrokerError, match=r"DescribeTransactions of .orders\.1."):
        admin.describe_transactions(["orders.1"], timeout=TIMEOUT)


def test_a_repeated_commit_succeeds_again(broker, admin):
    """A repeated commit is answered like the first one, however often it is sent."""
    producer = _open(admin, "orders.1")
    rules = broker.transaction_version
    for _ in range(2):
        assert EndOutcome.ENDED is _end(admin, "orders.1", producer, rules=rules).outcome


@pytest.mark.parametrize("first", [True, False], ids=["committed", "aborted"])
def test_ending_a_transaction_that_ended_the_other_way_is_an_error(admin, first):
    """INVALID_TXN_STATE says that the transaction is over, but not how it ended."""
    producer = _open(admin, "orders.1")
    _end(admin, "orders.1", producer, committed=first)
    answer = _end(admin, "orders.1", producer, committed=not first)
    assert EndAnswer(EndOutcome.REFUSED, ErrorCode.INVALID_TXN_STATE) == answer
    assert "refused with INVALID_TXN_STATE" == str(answer)


def test_ending_a_transaction_with_an_old_epoch_is_an_error(admin):
    """Ending with an old epoch does not affect a transaction begun since then."""
    old = _open(admin, "orders.1")
    new = _init(admin, "orders.1")
    _write(admin, "orders.1", new)
    answer = _end(admin, "orders.1", old)
    assert EndAnswer(EndOutcome.REFUSED, ErrorCode.PRODUCER_FENCED) == answer
    described = admin.describe_transactions(["orders.1"], timeout=TIMEOUT)["orders.1"]
    assert (new, True) == (described.producer, described.is_open)


def test_ending_a_transaction_of_an_unknown_id_is_an_error(admin):
    """An id that has expired has no open transaction."""
    answer = _end(admin, "orders.1", ProducerIdAndEpoch(5, 0))
    assert EndAnswer(EndOutcome.REFUSED, ErrorCode.INVALID_PRODUCER_ID_MAPPING) == answer


def test_an_end_waits_until_the_markers_are_written():
    """CONCURRENT_TRANSACTIONS is retried until the broker has ended the transaction."""
    with (
        DevBroker(topics={"data": 1}, transaction_marker_delay_ms=60) as broker,
        _admin(broker) as admin,
    ):
        producer = _open(admin, "orders.1")
        for _ in range(2):
            assert EndOutcome.ENDED is _end(admin, "orders.1", producer, rules=2).outcome
        assert [True] == [
            event.committed for event in _events(admin) if isinstance(event, EndMarker)
        ]


def test_every_transaction_is_ended_with_its_own_outcome(broker, admin):
    """A permanent error of one transaction does not keep the others from ending."""
    ends = [
        TransactionEnd(name, _open(admin, name), committed=True) for name in ("a.1", "a.2", "a.3")
    ]
    broker.on(
        ApiKey.END_TXN,
        lambda request, _: (
            AnswerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            if request.transactional_id == "a.2"
            else None
        ),
        expect=True,
    )
    first, second, third = admin.end_transactions(ends, timeout=TIMEOUT)
    assert (EndOutcome.ENDED, EndOutcome.ENDED) == (first.outcome, third.outcome)
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" == second.name


def test_ending_is_retried_after_a_lost_response(broker, admin):
    """The end is requested again, whether or not it was done before the connection was lost."""
    producer = _open(admin, "orders.1")
    broker.on(ApiKey.END_TXN, CloseConnection(handled=True), times=1)
    answer = _end(admin, "orders.1", producer, rules=broker.transaction_version)
    assert EndOutcome.ENDED is answer.outcome


def test_a_timeout_of_ending_is_an_error_with_its_cause(broker, admin, refuse_until_timeout):
    """A timeout is an error with its last cause, not a refusal."""
    producer = _open(admin, "orders.1")
    refuse_until_timeout(broker, admin, ApiKey.END_TXN, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    end = TransactionEnd("orders.1", producer, committed=True)
    with pytest.raises(KafkaTimeoutError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        admin.end_transaction(end, timeout=TIMEOUT)


def test_a_failed_coordinator_lookup_fails_all_ends(broker, admin, refuse_until_timeout):
    """Every end fails with the error."""
    refuse_until_timeout(
        broker, admin, ApiKey.FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    ends = [TransactionEnd(name, ProducerIdAndEpoch(1, 0), committed=True) for name in "ab"]
    answers = admin.end_transactions(ends, timeout=TIMEOUT)
    assert [KafkaTimeoutError] * 2 == [type(answer) for answer in answers]


def test_nothing_to_end_sends_no_request(broker, admin):
    """No request is sent without a transaction to end."""
    hook = broker.on(ApiKey.FIND_COORDINATOR, lambda *_: None)
    assert ([], 0) == (admin.end_transactions([], timeout=TIMEOUT), hook.seen)


# --- transactions of its own


def test_taking_over_an_id_aborts_its_transaction_and_fences(admin):
    """InitProducerId waits for the abort, and the previous producer cannot write any more."""
    old = _open(admin, "orders.1")
    new = _init(admin, "orders.1")
    assert old.epoch < new.epoch
    assert [False] == [event.committed for event in _events(admin) if isinstance(event, EndMarker)]
    with pytest.raises(ProducerFencedError):
        _write(admin, "orders.1", old)


def test_a_fenced_producer_cannot_bump_its_epoch(admin):
    """The current producer keeps the id, and a fenced one does not get it back (KIP-360)."""
    old = _init(admin, "orders.1")
    new = _init(admin, "orders.1", current=old)
    assert old.epoch < new.epoch
    _init(admin, "orders.1")
    with pytest.raises(ProducerFencedError):
        _init(admin, "orders.1", current=new)


def test_the_epoch_can_be_bumped_after_a_commit(broker, admin):
    """With TV2 the commit has bumped the epoch, even if the producer does not know that yet."""
    producer = _open(admin, "orders.1")
    _end(admin, "orders.1", producer, rules=broker.transaction_version)
    again = _init(admin, "orders.1", current=producer)
    _write(admin, "orders.1", again)
    assert EndOutcome.ENDED is _end(admin, "orders.1", again).outcome


def test_a_transaction_timeout_above_the_brokers_limit_is_rejected(admin):
    """The broker's error names the limit that was exceeded."""
    with pytest.raises(BrokerError, match=r"transaction\.max\.timeout\.ms"):
        admin.init_producer_id("orders.1", transaction_timeout_ms=900_001, timeout=TIMEOUT)


def test_records_are_written_and_read_with_their_markers(broker, admin):
    """Records are read with their producer id, followed by how their transaction ended."""
    producer = _init(admin, "orders.1")
    rules = _write(admin, "orders.1", producer, b"a", None)
    _end(admin, "orders.1", producer, rules=rules)
    *data, marker = _events(admin)
    assert broker.transaction_version == rules
    assert [(b"a", producer.producer_id), (None, producer.producer_id)] == [
        (event.record.value, event.transaction_of) for event in data
    ]
    assert (2, producer.producer_id, True) == (
        marker.offset,
        marker.producer_id,
        marker.committed,
    )


def test_a_lost_response_to_a_write_causes_no_duplicate(broker, admin):
    """The same batch is resent, and the broker recognizes it by its sequence number."""
    producer = _init(admin, "orders.1")
    broker.on(ApiKey.PRODUCE, CloseConnection(handled=True), times=1)
    _write(admin, "orders.1", producer, b"a")
    assert [b"a"] == [event.record.value for event in _events(admin)]


def test_records_that_fill_more_than_one_batch_are_all_written(admin):
    """Batches follow each other by their sequence numbers."""
    producer = _init(admin, "orders.1")
    values = [bytes([number]) * 400_000 for number in range(5)]
    _write(admin, "orders.1", producer, *values)
    assert values == [event.record.value for event in _events(admin)]


# --- topics and their contents


def test_a_topic_is_created_once(admin):
    """Creating a topic again returns False, and its settings can be read."""
    topic = NewTopic("ledger", 1, 1, {"cleanup.policy": "compact"})
    assert (True, False) == (
        admin.create_topic(topic, timeout=TIMEOUT),
        admin.create_topic(topic, timeout=TIMEOUT),
    )
    assert "compact" == admin.topic_configs("ledger", timeout=TIMEOUT)["cleanup.policy"]
    assert 1 == admin.partition_count("ledger", timeout=TIMEOUT)


def test_an_invalid_topic_is_rejected_with_the_brokers_message(admin):
    """Only the broker knows what is wrong with a topic."""
    with pytest.raises(BrokerError, match="the broker said"):
        admin.create_topic(NewTopic("ledger", 0, 1), timeout=TIMEOUT)


def test_describing_a_missing_topic_fails_at_once(admin):
    """A missing topic is neither waited for nor created."""
    with pytest.raises(BrokerError) as raised:
        admin.topic_configs("nothing", timeout=TIMEOUT)
    assert "UNKNOWN_TOPIC_OR_PARTITION" == raised.value.name


def test_offsets_include_the_log_start_and_the_high_watermark(broker, admin):
    """The high watermark includes open transactions; the start moves when records are deleted."""
    _open(admin, "orders.1")
    assert (0, 1) == (
        admin.start_offset(PLACE, timeout=TIMEOUT),
        admin.end_offset(PLACE, timeout=TIMEOUT),
    )


@pytest.mark.parametrize("offset", [0, 1])
def test_a_log_is_read_and_its_end_asked_for_at_once(admin, offset):
    """The end includes open transactions, and what is read need not reach it."""
    _open(admin, "orders.1")
    sink = KeyOffsets([b"k"])
    assert (1, 1) == admin.read_log_and_end(PLACE, offset, sink, timeout=TIMEOUT)


def test_transactions_are_described_and_listed_at_once(admin):
    """One call describes some transactions, and lists those that are open."""
    producer = _open(admin, "orders.1")
    described, listed = admin.describe_and_list(
        ["orders.1", "orders.2"], lambda name: name.startswith("orders"), timeout=TIMEOUT
    )
    assert {"orders.1": producer, "orders.2": None} == {
        name: found and found.producer for name, found in described.items()
    }
    assert ["orders.1"] == [listing.transactional_id for listing in listed]


def test_markers_can_be_read_without_records(admin):
    """Records are skipped without being decoded."""
    _end(admin, "orders.1", _open(admin, "orders.1"))
    [marker] = _events(admin, markers_only=True)
    assert 1 == marker.offset


def test_reading_can_begin_within_a_batch(admin):
    """A fetched batch is complete, and records before the offset are left out."""
    producer = _init(admin, "orders.1")
    _write(admin, "orders.1", producer, b"a", b"b", b"c")
    [event] = _events(admin, offset=2)
    assert isinstance(event, DataRecord)
    assert (2, b"c") == (event.record.offset, event.record.value)


def test_reading_past_the_end_is_an_error(admin):
    """An offset beyond the log is an error, not an empty response."""
    with pytest.raises(BrokerError) as raised:
        admin.read_partition(PLACE, 9, timeout=TIMEOUT)
    assert "OFFSET_OUT_OF_RANGE" == raised.value.name


# --- retries, and the end


@pytest.mark.parametrize(
    "fault", [CloseConnection(), AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)], ids=str
)
def test_retriable_errors_are_retried(broker, admin, fault):
    """After a lost connection or with an outdated leader, the leader is looked up again."""
    hook = broker.on(ApiKey.LIST_OFFSETS, fault, times=2)
    assert (0, 2) == (admin.end_offset(PLACE, timeout=TIMEOUT), hook.fired)


def test_a_missing_leader_is_looked_up_again(broker, admin):
    """A broker that has just started has no leader for a moment."""
    partition = broker.call(lambda it: it.cluster.partition(PLACE))
    led = partition.leadership
    partition.leadership = replace(led, leader_id=-1)
    leader_ids = []

    def elect(*_):
        leader_ids.append(partition.leader_id)
        if len(leader_ids) > 1:
            partition.leadership = led

    broker.on(ApiKey.METADATA, elect)
    assert 0 == admin.end_offset(PLACE, timeout=TIMEOUT)
    assert [-1, -1] == leader_ids[:2]


def test_a_coordinator_lookup_timeout_names_the_call(broker, admin, refuse_until_timeout):
    """The error names the call and quotes the broker's error."""
    refuse_until_timeout(
        broker, admin, ApiKey.FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
    expected = r"FindCoordinator of 'orders\.1'.*COORDINATOR_NOT_AVAILABLE"
    with pytest.raises(KafkaTimeoutError, match=expected):
        _init(admin, "orders.1")


def test_a_permanent_coordinator_error_raises_at_once(broker, admin):
    """A missing authorization is not retried."""
    broker.on(ApiKey.FIND_COORDINATOR, AnswerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match=r"FindCoordinator of 'orders\.1'"):
        _init(admin, "orders.1")


def test_a_call_to_an_unavailable_broker_ends_in_time(unused_port, monkeypatch):
    """The call ends in time although no broker answers."""
    config = ProducerConfig.from_mapping({"bootstrap.servers": f"127.0.0.1:{unused_port}"})
    end_when_unreachable(monkeypatch)
    with DriverClient(config) as admin, pytest.raises(KafkaError, match="no broker"):
        admin.transaction_version(timeout=TIMEOUT)


def test_closed_connections_are_opened_again(broker, admin):
    """Connections that ended between two calls are opened again."""
    admin.end_offset(PLACE, timeout=TIMEOUT)
    broker.stop()
    broker.start()
    assert 0 == admin.end_offset(PLACE, timeout=TIMEOUT)


def test_a_call_on_a_closed_client_is_an_error(broker):
    """A call on a closed client raises an error, and closing it twice has no effect."""
    admin = _admin(broker)
    admin.close()
    admin.close()
    with pytest.raises(IllegalStateError, match="closed"):
        admin.end_offset(PLACE, timeout=TIMEOUT)


def test_close_beside_a_running_call_leaves_no_connection(broker):
    """The call ends with the error of a closed client, and its connection is closed."""
    has_begun = threading.Event()

    def hang(*_):
        has_begun.set()
        return NeverAnswer()

    broker.on(ApiKey.LIST_OFFSETS, hang, expect=True)
    admin = _admin(broker)
    with ThreadPoolExecutor() as beside:
        call = beside.submit(admin.end_offset, PLACE, timeout=TIMEOUT)
        assert has_begun.wait(TIMEOUT)
        admin.close()
        with pytest.raises(IllegalStateError, match="closed"):
            call.result(TIMEOUT)
    [server] = broker._server._servers.values()
    broker._thread.wait_for(server._drained.wait)


def test_a_partition_that_is_not_stable_yet_is_waited_for(broker, admin):
    """It is asked again until its last stable offset has come so far."""

    def at_its_start(response):
        (topic,) = response.topics
        partitions = tuple(replace(each, offset=0) for each in topic.partitions)
        return replace(response, topics=(replace(topic, partitions=partitions),))

    fill(broker.bootstrap_servers, "data", [b"one"])
    hook = broker.on(ApiKey.LIST_OFFSETS, AlterResponse(at_its_start), times=3)
    assert set() == admin.wait_until_stable({PLACE: 1}, patience=TIMEOUT, timeout=TIMEOUT)
    assert 3 == hook.fired
