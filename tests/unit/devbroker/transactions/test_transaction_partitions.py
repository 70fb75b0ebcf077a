"""Partitions of transactions in the embedded broker, timeouts, and delayed markers."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tests.support.devbroker.broker_requests import NOW
from tests.support.devbroker.transactional_client import (
    END_TV1,
    PRODUCE_TV1,
    PRODUCE_TV2,
    TRANSACTIONAL,
    TransactionalClient,
)
from tests.support.devbroker.transactions_of_devbroker import (
    BAD_STATE,
    BUSY,
    FENCED,
    LAST_EPOCH,
    NO_MAPPING,
    NOBODY,
    OK,
    began,
    client_of,
)

ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE


@pytest.fixture
def client():
    return client_of()


class TestPartitions:
    """The partitions of a transaction."""

    def test_a_partition_must_be_added_before_it_is_written_to(self):
        """TV1: INVALID_TXN_STATE up to Produce 10, TRANSACTION_ABORTABLE in 11."""
        client = client_of(0)
        _, identity = client.init()
        client.add(identity, 1)

        assert [(BAD_STATE, -1)] == client.produce(identity, 0, 0, version=10)
        assert [(ABORTABLE, -1)] == client.produce(identity, 0, 0, version=11)
        assert [(OK, 0)] == client.produce(identity, 0, 1, version=11)
        assert 0 == client.log().log_end_offset

    def test_writing_adds_the_partition(self, client):
        """TV2: the first batch for a partition begins the transaction or adds the partition."""
        identity = began(client)
        client.produce(identity, 0, 1)

        partitions = client.broker.cluster.transactions.find("x", 0).partitions

        assert {("t", 0), ("t", 1)} == partitions
        assert "Ongoing" == client.state()

    def test_all_partitions_are_added_or_none(self, client):
        """If one partition does not exist, the others are not added either."""
        _, identity = client.init()

        assert [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] == (
            client.add(identity, 0, 9)
        )
        assert "Empty" == client.state()

    def test_brokers_ask_about_many_transactions(self, client):
        """Since version 4 a request can add to one transaction and verify another."""
        other = TransactionalClient(client.broker, "y")
        identity, theirs = began(client), began(other)

        answer = client.ask(
            AddPartitionsToTxnRequest(
                transactions=tuple(
                    AddPartitionsToTxnTransaction(
                        transactional_id=name,
                        producer_id=producer_id,
                        producer_epoch=epoch,
                        verify_only=verify_only,
                        topics=(AddPartitionsToTxnTopic(name="t", partitions=(0, 1)),),
                    )
                    for name, (producer_id, epoch), verify_only in (
                        ("x", identity, True),
                        ("y", theirs, False),
                        ("z", identity, True),
                    )
                )
            ),
            5,
        )

        assert {"x": [OK, ABORTABLE], "y": [OK, OK], "z": [NO_MAPPING, NO_MAPPING]} == {
            result.transactional_id: [
                partition.partition_error_code
                for topic in result.topic_results
                for partition in topic.results_by_partition
            ]
            for result in answer.results_by_transaction
        }

    def test_a_write_outside_of_the_open_transaction_is_refused(self, client):
        """A producer with an open transaction cannot write outside of it."""
        identity = began(client)

        assert [(BAD_STATE, -1)] == client.produce(identity, 1, attributes=0)

    def test_batches_of_two_producers_are_refused(self, client):
        """A request has one transactional id, and so one producer."""
        _, identity = client.init()
        request = client.produce_request(identity, 0, 0)
        stranger = client.produce_request((identity[0] + 1, 0), 0, 1)
        (topic,) = request.topic_data
        (strange,) = stranger.topic_data
        mixed = type(request)(
            transactional_id="x",
            acks=-1,
            timeout_ms=1,
            topic_data=(
                type(topic)(name="t", partition_data=topic.partition_data + strange.partition_data),
            ),
        )

        answers = client.ask(mixed).responses[0].partition_responses

        assert [NO_MAPPING] * 2 == [answer.error_code for answer in answers]

    def test_no_batch_overtakes_the_first_one(self):
        """A later batch is not appended if an earlier one was refused (KIP-890)."""
        client = client_of(0)
        _, identity = client.init()
        assert [(ABORTABLE, -1)] == client.produce(identity, 0, version=PRODUCE_TV1)
        client.add(identity, 0)

        late = client.produce(identity, 1, version=PRODUCE_TV1)
        first = client.produce(identity, 0, version=PRODUCE_TV1)

        assert ([(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)], [(OK, 0)]) == (late, first)

    def test_a_transaction_of_tv2_begins_with_sequence_0(self, client):
        """Its epoch is new, so nothing can have been written before."""
        _, identity = client.init()

        assert [(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)] == client.produce(identity, 3)

    def test_a_repeated_batch_does_not_begin_a_transaction(self, client):
        """A duplicate gets the offset of the original."""
        identity = began(client)

        assert [(OK, 0)] == client.produce(identity, 0)
        assert 1 == client.log().log_end_offset

    def test_a_group_is_a_partition_of_the_offsets_topic(self, client):
        """Kafka stores a group's offsets in the partition that the hash of its name selects."""
        _, identity = client.init()

        assert OK == client.add_offsets(identity, "my-group")
        assert {("__consumer_offsets", 12)} == (
            client.broker.cluster.transactions.find("x", 0).partitions
        )
        assert "Ongoing" == client.state()


class TestTimeouts:
    """The end of a transaction that exceeds its timeout."""

    @pytest.mark.parametrize(
        ("transaction_version", "commit", "abort"),
        [(2, BAD_STATE, OK), (0, FENCED, FENCED)],
    )
    def test_a_transaction_that_takes_too_long_is_aborted(self, transaction_version, commit, abort):
        """The producer is informed in the response to its next request."""
        client = client_of(transaction_version)
        identity = began(client, version=transaction_version)
        client.now = NOW + 70

        assert 2 == client.latest()
        assert "CompleteAbort" == client.state()
        assert [] == client.read_committed()
        version = 5 if transaction_version == 2 else END_TV1
        assert commit == client.end(identity, committed=True, version=version)[0]
        assert abort == client.end(identity, committed=False, version=version)[0]

    def test_timeouts_are_checked_every_ten_seconds(self, client):
        """A transaction may exceed its timeout by that interval; the next check is scheduled."""
        began(client)

        assert NOW + 70 == client.broker.tick(NOW + 60)
        assert "Ongoing" == client.state()
        assert None is client.broker.tick(NOW + 70)
        assert "CompleteAbort" == client.state()

    def test_a_transaction_that_ended_in_time_is_left_alone(self, client):
        """The next transaction has its own timeout."""
        identity = began(client)
        client.now = NOW + 30
        _, following = client.end(identity, committed=True)
        client.produce(following, 0)

        client.broker.tick(NOW + 70)
        assert "Ongoing" == client.state()
        client.broker.tick(NOW + 100)
        assert "CompleteAbort" == client.state()


class TestMarkersThatTakeTime:
    """Markers with `transaction_marker_delay_ms`, as between Kafka's brokers."""

    @pytest.fixture
    def client(self):
        """Return a client of a cluster whose markers take 50 ms."""
        return client_of(transaction_marker_delay_ms=50)

    def test_the_end_is_answered_before_the_markers_are_written(self, client):
        """Nothing is visible yet, and repeating the request is CONCURRENT_TRANSACTIONS."""
        identity = began(client)

        answer = client.end(identity, committed=True)

        assert (OK, (0, 1)) == answer
        assert "PrepareCommit" == client.state()
        assert 0 == client.latest()
        assert (BUSY, NOBODY) == client.end(identity, committed=True)
        assert (BAD_STATE, NOBODY) == client.end(identity, committed=False)
        assert (BUSY, NOBODY) == client.init()
        client.now += 0.05
        assert answer == client.end(identity, committed=True)
        assert 2 == client.latest()

    def test_the_next_transaction_waits(self, client):
        """Meanwhile AddPartitionsToTxn is refused, and Produce 12 waits up to 100 ms."""
        identity = began(client)
        _, following = client.end(identity, committed=True)
        assert [BUSY] == client.add(following, 0)

        request = client.produce_request(following, 0)
        arrived = client.now
        waiting = client.ask(request, PRODUCE_TV2)
        assert isinstance(waiting, Delayed)
        client.now = waiting.until
        assert isinstance(client.ask(request, PRODUCE_TV2, arrived=arrived), Delayed)
        client.now = arrived + 0.06
        answer = client.ask(request, PRODUCE_TV2, arrived=arrived)

        assert OK == answer.responses[0].partition_responses[0].error_code

    def test_a_write_waits_for_100_milliseconds_at_most(self):
        """After 100 ms it is CONCURRENT_TRANSACTIONS."""
        client = client_of(transaction_marker_delay_ms=500)
        identity = began(client)
        _, following = client.end(identity, committed=True)
        arrived = client.now
        client.now += 0.1

        answer = client.ask(client.produce_request(following, 0), PRODUCE_TV2, arrived=arrived)

        assert BUSY == answer.responses[0].partition_responses[0].error_code

    def test_old_clients_get_a_retriable_code(self):
        """Up to Produce 11 a busy coordinator is NOT_ENOUGH_REPLICAS."""
        client = client_of(0, transaction_marker_delay_ms=50)
        identity = began(client, version=1)
        client.end(identity, committed=True, version=END_TV1)

        refused = client.produce(identity, 1, 1, version=PRODUCE_TV1)

        assert [(ErrorCode.NOT_ENOUGH_REPLICAS, -1)] == refused
        assert BUSY == client.end(identity, committed=True, version=END_TV1)[0]
        assert BAD_STATE == client.end(identity, committed=False, version=END_TV1)[0]

    def test_a_new_epoch_at_the_end_is_returned_at_once(self, client):
        """The response has the new producer id while the last epoch's markers are being written."""
        identity = began(client)
        client.broker.cluster.transactions.find("x", 0).producer_epoch = LAST_EPOCH - 1

        code, following = client.end((identity[0], LAST_EPOCH - 1), committed=True)

        assert (OK, 0) == (code, following[1])
        assert (identity[0], LAST_EPOCH) == client.identity()
        client.broker.tick(NOW + 1)
        assert following == client.identity()


def test_markers_that_a_partition_refuses_leave_the_transaction_as_it_is(client, caplog):
    """A partition with a newer epoch of the producer does not accept the markers."""
    identity = began(client)
    client.produce((identity[0], 7), 0, 1, attributes=0)
    client.produce(identity, 0, 2)
    client.broker.cluster.transactions.find("x", 0).partitions.add(TopicPartition("t", 1))

    client.end(identity, committed=True)

    assert "PrepareCommit" == client.state()
    assert "cannot write the markers of x" in caplog.text


def test_a_transaction_needs_no_markers_in_deleted_topics(client):
    """Partitions of deleted topics are skipped."""
    identity = began(client)
    client.broker.cluster.transactions.find("x", 0).partitions.add(TopicPartition("gone", 0))

    assert OK == client.end(identity, committed=True)[0]
    assert "CompleteCommit" == client.state()


def test_a_batch_with_no_producer_is_not_asked_about(client):
    """The transactional flag alone does not begin a transaction."""
    assert [(OK, 0)] == client.produce((-1, -1), -1, attributes=TRANSACTIONAL)
    assert None is client.state()
