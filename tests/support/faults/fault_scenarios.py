"""Tests of network faults that hit single requests and responses between producer and broker.

In each case every row is written once and in order, and the producer has counted each of them; or
the caller gets an error for the rows that are missing.

Modules that import these tests collect them: `tests/kafka` with a fixture `kafka_behind_proxy` of a
real Kafka, and `tests/unit` with one of the embedded broker, which takes a fraction of the time.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_kafka_sink.errors import DeliveryError, KafkaError
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.support.faults.fault_rules import Action, Fault, Side
from tests.support.kafka.real_kafka import wait_until
from tests.support.producer.producing import append_all, producer_for
from tests.support.record.numbered_rows import DIGITS, RowCheck, check_rows, read_numbers
from tests.support.record.text_rows import numbered_batches

ROWS = 30_000
NEVER_ANSWERED = {"acks": "0", "enable.idempotence": False, "linger.ms": 0}
#: Several times what the sockets and buffer.memory hold together.
STALLED_RECORDS = 2_000
STALLED_PADDING = bytes(4_000)
STALLED_MEMORY = 1_000_000
#: How often a test is tried whose short timeout may pass too early.
STALLED_ATTEMPTS = 10
PARTITIONS = 3
#: Small batches make many requests, and retries come soon. On a busy machine, rows wait for long in
#: the producer's memory.
SETTINGS = {
    "batch.size": 16_384,
    "compression.type": "none",
    "delivery.timeout.ms": 120_000,
    "retry.backoff.ms": 20,
    "reconnect.backoff.ms": 20,
}


@pytest.fixture
def topic(kafka_behind_proxy):
    name = kafka_behind_proxy.cluster.create_topic(PARTITIONS)
    yield name
    kafka_behind_proxy.cluster.delete_topics([name])


def settings_for(kafka, **settings):
    """Return settings that detect a silent peer within a test, but tolerate a busy one."""
    return {**SETTINGS, "request.timeout.ms": kafka.request_timeout_ms, **settings}


def write(kafka, topic, *, rows=ROWS, **settings):
    """Write numbered rows through the proxy; return the number of acknowledged rows."""
    with producer_for(kafka, **settings_for(kafka, **settings)) as producer:
        append_all(producer, numbered_batches(rows, batch_rows=1000), topic=topic)
        producer.flush()
        written = sum(acks.records for acks in producer.acks().values())
    # A delayed packet may reach the broker after its retry, even after the producer has closed.
    wait_until(lambda: not kafka.proxy.connection_count, seconds=30, what="the last packet")
    return written


def assert_nothing_lost(kafka, topic, fault, *, rows=ROWS, **settings):
    """Write under a fault; check that it struck, and that all rows are there once and in order."""
    kafka.proxy.arm(fault)
    assert rows == write(kafka, topic, rows=rows, **settings)
    numbers = read_numbers(kafka.cluster.bootstrap_servers, topic)
    assert RowCheck() == check_rows(numbers, rows)
    assert fault.times == kafka.proxy.strikes_of(fault)


def fault_id(fault):
    return f"{fault.action.value} {fault.side.value}".replace(" ", "-")


ANSWER_LOST = [
    Fault(side=Side.ANSWER, action=Action.SWALLOW, nth=3),
    Fault(side=Side.ANSWER, action=Action.RESET, nth=3),
    Fault(side=Side.ANSWER, action=Action.HANG, nth=3),
    Fault(side=Side.ANSWER, action=Action.CUT, nth=3),
]


@pytest.mark.both_versions
@pytest.mark.parametrize("fault", ANSWER_LOST, ids=fault_id)
def test_a_lost_response_duplicates_no_row(kafka_behind_proxy, topic, fault):
    """Batches that were appended and whose response was lost are not appended again."""
    assert_nothing_lost(kafka_behind_proxy, topic, fault)


@pytest.mark.parametrize("at", [0.01, 0.3, 0.99])
def test_a_truncated_response_duplicates_no_row(kafka_behind_proxy, topic, at):
    """It does not matter where in its frame a response ends."""
    fault = Fault(side=Side.ANSWER, action=Action.CUT, nth=4, at=at)
    assert_nothing_lost(kafka_behind_proxy, topic, fault)


def test_a_lost_first_response_duplicates_no_row(kafka_behind_proxy, topic):
    """A broker recognizes a retry even of the only batch that it has from a producer."""
    fault = Fault(side=Side.ANSWER, action=Action.SWALLOW)
    assert_nothing_lost(kafka_behind_proxy, topic, fault)


@pytest.mark.both_versions
def test_successive_lost_responses_duplicate_no_row(kafka_behind_proxy, topic):
    """Retries whose responses are lost as well are recognized like the first ones."""
    fault = Fault(side=Side.ANSWER, action=Action.SWALLOW, nth=5, times=6)
    assert_nothing_lost(kafka_behind_proxy, topic, fault)


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_a_lost_response_duplicates_no_row_whatever_is_in_flight(
    kafka_behind_proxy, topic, in_flight
):
    """Order and uniqueness hold for each number of requests in flight that idempotence allows."""
    settings = {"max.in.flight.requests.per.connection": in_flight}
    fault = Fault(side=Side.ANSWER, action=Action.CUT, nth=4, times=3)
    assert_nothing_lost(kafka_behind_proxy, topic, fault, **settings)


REQUEST_LOST = [
    Fault(side=Side.REQUEST, action=Action.SWALLOW, nth=3),
    Fault(side=Side.REQUEST, action=Action.RESET, nth=3),
    Fault(side=Side.REQUEST, action=Action.HANG, nth=3),
    Fault(side=Side.REQUEST, action=Action.CUT, nth=3, at=0.5),
    Fault(side=Side.REQUEST, action=Action.CUT, nth=3, at=0.0001),
    Fault(side=Side.REQUEST, action=Action.CUT, nth=3, at=0.9999),
]


@pytest.mark.both_versions
@pytest.mark.parametrize("fault", REQUEST_LOST, ids=lambda fault: f"{fault_id(fault)}-{fault.at}")
def test_a_lost_request_loses_no_row(kafka_behind_proxy, topic, fault):
    """A request that is lost in whole or in part is resent, and later ones wait for it."""
    assert_nothing_lost(kafka_behind_proxy, topic, fault)


LATE = [
    Fault(side=Side.ANSWER, action=Action.DELAY, nth=3, times=5, seconds=0.1),
    Fault(side=Side.ANSWER, action=Action.STALL, nth=3, times=5, seconds=0.1),
    Fault(side=Side.REQUEST, action=Action.DELAY, nth=3, times=5, seconds=0.1),
    Fault(side=Side.REQUEST, action=Action.STALL, nth=3, times=5, seconds=0.1),
    Fault(side=Side.ANSWER, action=Action.SPLIT, nth=2, times=20),
    Fault(side=Side.REQUEST, action=Action.SPLIT, nth=2, times=5),
    Fault(side=Side.ANSWER, action=Action.MERGE, nth=2, times=20, seconds=0.05),
    Fault(side=Side.REQUEST, action=Action.MERGE, nth=2, times=20, seconds=0.05),
]


@pytest.mark.parametrize("fault", LATE, ids=fault_id)
def test_slow_split_and_merged_packets_are_read_correctly(kafka_behind_proxy, topic, fault):
    """Data that is late, in pieces, or merged with the next frame is read correctly."""
    assert_nothing_lost(kafka_behind_proxy, topic, fault, **{"request.timeout.ms": 15_000})
    connections = {strike.connection for strike in kafka_behind_proxy.proxy.strikes}
    assert 1 == len(connections)


@pytest.mark.parametrize("times_timeout", [1.03, 1.67], ids=["just-later", "later"])
@pytest.mark.parametrize("action", [Action.DELAY, Action.STALL], ids=lambda action: action.value)
@pytest.mark.parametrize("side", Side, ids=lambda side: side.value)
def test_a_response_after_the_request_timeout_duplicates_no_row(
    kafka_behind_proxy, topic, side, action, times_timeout
):
    """A request that timed out after request.timeout.ms may still arrive, as its retry does."""
    seconds = times_timeout * kafka_behind_proxy.request_timeout_ms / 1000
    fault = Fault(side=side, action=action, nth=3, seconds=seconds)
    assert_nothing_lost(kafka_behind_proxy, topic, fault)


NONSENSE = [
    Fault(side=Side.ANSWER, action=Action.GARBLE, nth=3, times=3),
    Fault(side=Side.ANSWER, action=Action.WRONG_CORRELATION_ID, nth=3, times=3),
    Fault(side=Side.ANSWER, action=Action.REPEAT, nth=3, times=3),
    Fault(side=Side.ANSWER, action=Action.WRONG_SIZE, nth=3, size=-1),
    Fault(side=Side.ANSWER, action=Action.WRONG_SIZE, nth=3, size=0),
    Fault(side=Side.ANSWER, action=Action.WRONG_SIZE, nth=3, size=7),
    Fault(side=Side.ANSWER, action=Action.WRONG_SIZE, nth=3, size=2**31 - 1),
    Fault(side=Side.ANSWER, action=Action.WRONG_SIZE, nth=3, size=100_000),
]


@pytest.mark.parametrize("fault", NONSENSE, ids=lambda fault: f"{fault_id(fault)}-{fault.size}")
def test_an_invalid_response_duplicates_no_row(kafka_behind_proxy, topic, fault):
    """An invalid response ends the connection, and its batches are resent on the next one."""
    assert_nothing_lost(kafka_behind_proxy, topic, fault)


@pytest.mark.both_versions
def test_a_batch_corrupted_in_transit_is_sent_again(kafka_behind_proxy):
    """The CRC detects a flipped bit in the records, and the batch is resent."""
    kafka = kafka_behind_proxy
    # With one partition, the middle of a request lies within the records, which the CRC covers.
    topic = kafka.cluster.create_topic(1)
    fault = Fault(side=Side.REQUEST, action=Action.GARBLE, nth=3, times=2)
    assert_nothing_lost(kafka, topic, fault)
    kafka.cluster.delete_topics([topic])


BEFORE_WRITING = [ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID]
ENDS = [Action.SWALLOW, Action.RESET, Action.HANG, Action.CUT, Action.GARBLE]


@pytest.mark.parametrize("api_key", BEFORE_WRITING, ids=lambda api_key: api_key.name)
@pytest.mark.parametrize("action", ENDS, ids=lambda action: action.value)
def test_requests_before_the_first_write_are_retried(kafka_behind_proxy, topic, api_key, action):
    """ApiVersions, Metadata and InitProducerId requests are retried until they are answered."""
    fault = Fault(side=Side.ANSWER, action=action, api_key=api_key, times=2)
    settings = {"socket.connection.setup.timeout.ms": 1000}
    if action is Action.HANG:
        fault = Fault(side=Side.ANSWER, action=action, api_key=api_key)
    assert_nothing_lost(kafka_behind_proxy, topic, fault, rows=2000, **settings)


@pytest.mark.both_versions
def test_an_outage_loses_and_duplicates_no_row(kafka_behind_proxy, topic):
    """While no broker is reachable the rows wait, and are then sent in order."""
    kafka = kafka_behind_proxy

    def outage():
        for _ in range(3):
            kafka.proxy.refuse()
            time.sleep(0.4)
            kafka.proxy.accept()
            time.sleep(0.2)

    rows = 200_000
    kafka.proxy.arm(fault := Fault(side=Side.ANSWER, action=Action.DELAY, nth=3, seconds=0.01))
    thread = threading.Thread(target=outage, daemon=True)

    def batches():
        for i, batch in enumerate(numbered_batches(rows, batch_rows=1000)):
            if i == 20:
                thread.start()
            yield batch

    with producer_for(kafka, **settings_for(kafka)) as producer:
        append_all(producer, batches(), topic=topic)
        thread.join()
        producer.flush()
    assert RowCheck() == check_rows(read_numbers(kafka.cluster.bootstrap_servers, topic), rows)
    assert 1 == kafka.proxy.strikes_of(fault)


@pytest.mark.both_versions
@pytest.mark.parametrize("action", [Action.HANG, Action.SWALLOW], ids=lambda action: action.value)
def test_missing_responses_are_an_error_within_the_delivery_timeout(kafka_behind_proxy, action):
    """After delivery.timeout.ms the caller gets an error, and no row is duplicated or reordered."""
    kafka = kafka_behind_proxy
    fault = Fault(side=Side.ANSWER, action=action, nth=4, times=1_000_000)
    topics = []
    # On a machine that stalls, the rows may expire before the first response is missing.
    while len(topics) < STALLED_ATTEMPTS and not kafka.proxy.strikes:
        kafka.disarm()
        kafka.proxy.arm(fault)
        topics.append(kafka.cluster.create_topic(PARTITIONS))
        fail_to_write(kafka, topics[-1])
        found = check_rows(read_numbers(kafka.cluster.bootstrap_servers, topics[-1]), ROWS)
        assert RowCheck(lost=found.lost) == found
    assert kafka.proxy.strikes
    kafka.cluster.delete_topics(topics)


def fail_to_write(kafka, topic):
    """Write rows until delivery.timeout.ms; check the error."""
    started = time.monotonic()
    # This is enough for three requests.
    settings = settings_for(kafka, **{"delivery.timeout.ms": 3 * kafka.request_timeout_ms})
    producer = producer_for(kafka, **settings)

    def write_all():
        append_all(producer, numbered_batches(ROWS, batch_rows=1000), topic=topic)
        producer.flush()

    with pytest.raises(DeliveryError, match=rf"{topic}-\d.*delivery\.timeout\.ms"):
        write_all()
    # Long before the default of two minutes.
    assert time.monotonic() - started < 60
    with pytest.raises(KafkaError):
        producer.close()


def _unsent_bytes(producer):
    """Count the bytes that were passed to connections and that no socket has accepted yet."""
    return sum(
        memoryview(buffer).nbytes
        for connection in list(producer._core._client._connections.values())
        for request in list(connection._outgoing)
        for buffer in list(request.buffers)
    )


def test_a_broker_that_stops_reading_costs_at_most_buffer_memory(kafka_behind_proxy, topic):
    """Even with acks=0 it takes at most buffer.memory, and no failed record arrives later."""
    kafka = kafka_behind_proxy
    seconds = 3 * kafka.request_timeout_ms / 1000
    kafka.proxy.arm(Fault(side=Side.REQUEST, action=Action.STALL, times=1_000, seconds=seconds))
    settings = settings_for(
        kafka,
        **NEVER_ANSWERED,
        **{
            "buffer.memory": STALLED_MEMORY,
            "delivery.timeout.ms": 2 * kafka.request_timeout_ms,
            # A socket whose buffer grows might take all records.
            "send.buffer.bytes": 131_072,
        },
    )
    unsent = []
    with producer_for(kafka, **settings) as producer:
        futures = []
        for number in range(STALLED_RECORDS):
            futures.append(producer.send(topic, b"%0*d" % (DIGITS, number) + STALLED_PADDING))
            unsent.append(_unsent_bytes(producer))
        errors = [future.exception(60) for future in futures]
        kafka.proxy.disarm()
    wait_until(lambda: not kafka.proxy.connection_count, seconds=120, what="the last packet")
    failed = {number for number, error in enumerate(errors) if error is not None}
    read = read_numbers(kafka.cluster.bootstrap_servers, topic).values()
    assert failed
    assert set() == failed & {int(number) for numbers in read for number in numbers}
    assert 0 < max(unsent) <= STALLED_MEMORY
    assert any("stopped reading" in str(error) for error in errors)


def test_without_idempotence_a_lost_response_loses_no_row(kafka_behind_proxy, topic):
    """With enable.idempotence=false a retry may duplicate rows, and still loses none."""
    kafka = kafka_behind_proxy
    fault = Fault(side=Side.ANSWER, action=Action.SWALLOW, nth=3)
    kafka.proxy.arm(fault)
    write(kafka, topic, **{"enable.idempotence": False})
    found = check_rows(read_numbers(kafka.cluster.bootstrap_servers, topic), ROWS)
    assert (0, 0) == (found.lost, found.foreign)
    assert found.duplicated > 0
    assert 1 == kafka.proxy.strikes_of(fault)


@pytest.mark.both_versions
def test_a_broker_that_forgot_batches_gets_no_batch_twice(kafka_behind_proxy):
    """A batch that a restarted broker no longer recognizes is there once, or there is an error."""
    # Kafka remembers a producer's last five batches, but only the last one across a restart
    # (ProducerStateManager's snapshot): retries of the others look out of order to it.
    kafka = kafka_behind_proxy
    topic = kafka.cluster.create_topic(1)
    (broker,) = kafka.cluster.brokers
    fault = Fault(side=Side.ANSWER, action=Action.HANG, nth=10)
    kafka.proxy.arm(fault)

    def restart():
        assert kafka.proxy.rules.wait_for(bool, 30)
        # By then all five requests in flight have reached the broker, and none is answered.
        time.sleep(0.5)
        kafka.proxy.refuse()
        broker.stop()
        broker.start()
        kafka.cluster.wait_until_ready()
        kafka.proxy.accept()

    with ThreadPoolExecutor(1) as executor:
        restarted = executor.submit(restart)
        try:
            write(kafka, topic, **{"request.timeout.ms": 5_000})
        except DeliveryError as error:
            failed = str(error)
        else:
            failed = None
        restarted.result()
    found = check_rows(read_numbers(kafka.cluster.bootstrap_servers, topic), ROWS)
    if failed is None:
        assert RowCheck() == found
    else:
        assert topic in failed
        assert RowCheck(lost=found.lost) == found
    assert 1 == kafka.proxy.strikes_of(fault)
    kafka.cluster.delete_topics([topic])


TRANSACTION_FAULTS = [
    Fault(side=side, action=action, api_key=api_key, nth=nth)
    for api_key, nth in ((ApiKey.END_TXN, 3), (ApiKey.PRODUCE, 7), (ApiKey.INIT_PRODUCER_ID, 1))
    for side, action in (
        (Side.ANSWER, Action.SWALLOW),
        (Side.ANSWER, Action.HANG),
        (Side.ANSWER, Action.GARBLE),
        (Side.REQUEST, Action.CUT),
    )
]


@pytest.mark.both_versions
@pytest.mark.parametrize(
    "fault", TRANSACTION_FAULTS, ids=lambda fault: f"{fault.api_key.name}-{fault_id(fault)}"
)
def test_only_committed_transactions_are_read(kafka_behind_proxy, topic, fault):
    """Whatever is lost on the way, a consumer reads the committed rows once and no aborted row."""
    kafka = kafka_behind_proxy
    kafka.proxy.arm(fault)
    committed = 0
    settings = settings_for(kafka, **{"transactional.id": topic, "transaction.timeout.ms": 30_000})
    with producer_for(kafka, **settings) as producer:
        producer.init_transactions()
        for number in range(10):
            producer.begin_transaction()
            # Aborted rows have numbers that no committed row has.
            is_committed = number % 3 != 2
            first = committed if is_committed else ROWS
            batches = numbered_batches(first + 1000, first=first, batch_rows=250)
            append_all(producer, batches, topic=topic)
            if is_committed:
                producer.commit_transaction()
                committed += 1000
            else:
                producer.flush()
                producer.abort_transaction()
    kafka.cluster.wait_for_markers(topic)
    found = check_rows(read_numbers(kafka.cluster.bootstrap_servers, topic), committed)
    assert RowCheck() == found
    assert 1 == kafka.proxy.strikes_of(fault)
