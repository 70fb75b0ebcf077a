"""Transactions in the embedded broker: visibility, epochs, and how they end."""

from __future__ import annotations

import pytest

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.decode import decode_control_record, decode_record_batch
from tests.support.devbroker.broker_requests import NOW
from tests.support.devbroker.transactional_client import END_TV1, PRODUCE_TV1, TransactionalClient
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

OLD_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.fixture
def client():
    return client_of()


class TestVisibility:
    """What consumers see of a transaction."""

    def test_records_of_an_open_transaction_are_hidden(self, client):
        """Until it ends, read_committed stops where the transaction began."""
        began(client)

        answer = client.fetch()

        assert (1, 0) == (answer.high_watermark, answer.last_stable_offset)
        assert b"" == bytes(answer.records)
        assert (0, 1) == (client.latest(), client.latest(isolation_level=0))

    def test_records_of_an_open_transaction_are_visible_to_read_uncommitted(self, client):
        """read_uncommitted returns everything at once, without a list of aborted transactions."""
        began(client)

        answer = client.fetch(isolation_level=0)

        assert b"" != bytes(answer.records)
        assert None is answer.aborted_transactions

    def test_a_commit_shows_all_partitions(self, client):
        """After a commit the records are visible, and each partition ends with a marker."""
        identity = began(client)
        client.produce(identity, 0, 2, value=b"w")

        client.end(identity, committed=True)

        assert [[b"v"], [], [b"w"]] == [client.read_committed(p) for p in range(3)]
        assert [2, 0, 2] == [client.latest(partition=p) for p in range(3)]

    def test_an_abort_hides_the_records(self, client):
        """After an abort the response lists the transaction, and its records are skipped."""
        identity = began(client)

        client.end(identity, committed=False)

        (aborted,) = client.fetch().aborted_transactions
        assert (identity[0], 0) == (aborted.producer_id, aborted.first_offset)
        assert [] == client.read_committed()
        assert 2 == client.latest()

    def test_an_older_transaction_hides_what_lies_behind_its_first_record(self, client):
        """The last stable offset is the first offset of the oldest open transaction."""
        first, second = client, TransactionalClient(client.broker, "y")
        one, two = began(first), began(second)

        second.end(two, committed=True)
        hidden = second.latest()
        first.end(one, committed=True)

        assert (0, 4) == (hidden, second.latest())

    def test_a_transaction_that_is_read_around_is_not_listed(self, client):
        """Only transactions with records in the fetched range are listed."""
        identity = began(client)
        _, identity = client.end(identity, committed=False)
        client.produce(identity, 0, value=b"good")
        client.end(identity, committed=True)

        assert () == client.fetch(2).aborted_transactions
        assert 1 == len(client.fetch(1).aborted_transactions)
        assert [b"good"] == client.read_committed()

    @pytest.mark.parametrize("committed", [True, False])
    def test_the_marker_says_how_it_ended(self, client, committed):
        """The last batch is a control batch with its type and the coordinator epoch."""
        identity = began(client)
        client.end(identity, committed=committed)

        marker = decode_record_batch(list(client.log().batches())[-1])

        assert (True, True, -1, identity[0]) == (
            marker.header.is_control,
            marker.header.is_transactional,
            marker.header.base_sequence,
            marker.header.producer_id,
        )
        assert (int(committed), 0) == (
            decode_control_record(marker.records[0]).type,
            decode_control_record(marker.records[0]).coordinator_epoch,
        )

    def test_the_end_wakes_readers(self, client):
        """A fetch that waits for stable records is notified of the markers."""
        identity = began(client)
        client.broker.cluster.take_changed()

        client.end(identity, committed=True)

        assert {("t", 0)} == client.broker.cluster.take_changed()


class TestEpochs:
    """Which producer may continue."""

    def test_a_new_producer_gets_epoch_0(self, client):
        """The first producer to use a transactional id gets a new producer id."""
        assert (OK, (0, 0)) == client.init()
        assert "Empty" == client.state()

    def test_the_next_producer_fences_the_first(self, client):
        """A second InitProducerId bumps the epoch and fences the first producer."""
        _, first = client.init()
        _, second = client.init()

        assert (first[0], 1) == second
        assert [(OLD_EPOCH, -1)] == client.produce(first, 0)
        assert (FENCED, NOBODY) == client.end(first, committed=True)
        assert [FENCED] == client.add(first, 0)

    @pytest.mark.parametrize(
        ("api", "version", "expected"),
        [
            ("add", 0, [OLD_EPOCH]),
            ("add", 1, [OLD_EPOCH]),
            ("add", 2, [FENCED]),
            ("add_offsets", 1, OLD_EPOCH),
            ("add_offsets", 2, FENCED),
            ("end", 1, (OLD_EPOCH, NOBODY)),
            ("end", 2, (FENCED, NOBODY)),
            ("init", 3, (OLD_EPOCH, NOBODY)),
            ("init", 4, (FENCED, NOBODY)),
        ],
    )
    def test_old_clients_get_the_older_code_for_fencing(self, client, api, version, expected):
        """Before PRODUCER_FENCED was added, the code was INVALID_PRODUCER_EPOCH (KIP-588)."""
        _, first = client.init()
        client.init()
        calls = {
            "add": lambda: client.add(first, 0, version=version),
            "add_offsets": lambda: client.add_offsets(first, "g", version=version),
            "end": lambda: client.end(first, committed=True, version=version),
            "init": lambda: client.init(first, version=version),
        }

        assert expected == calls[api]()

    @pytest.mark.parametrize("transaction_version", [0, 2])
    def test_the_open_transaction_of_a_fenced_producer_is_aborted(self, transaction_version):
        """InitProducerId aborts it and must be retried, and then bumps the epoch once more."""
        client = client_of(transaction_version)
        identity = began(client, version=transaction_version)

        assert (BUSY, NOBODY) == client.init()
        assert "CompleteAbort" == client.state()
        assert (OK, (identity[0], 2)) == client.init()
        assert [] == client.read_committed()

    def test_a_producer_can_bump_its_own_epoch(self, client):
        """A producer that sends its identity gets the next epoch, and the same one in a repeat."""
        _, identity = client.init()

        assert (OK, (0, 1)) == client.init(identity)
        assert (OK, (0, 1)) == client.init(identity)
        assert (OK, (0, 2)) == client.init((0, 1))
        assert (FENCED, NOBODY) == client.init(identity)

    def test_a_producer_that_names_a_foreign_id_is_fenced(self, client):
        """The producer id is neither the current nor the previous one of the transactional id."""
        client.init()

        assert (FENCED, NOBODY) == client.init((77, 0))

    def test_used_up_epochs_bring_a_new_producer_id(self, client):
        """The last epoch is never handed out, since it is reserved for fencing."""
        _, (producer_id, _) = client.init()
        client.broker.cluster.transactions.find("x", 0).producer_epoch = LAST_EPOCH - 1

        code, (new_id, epoch) = client.init((producer_id, LAST_EPOCH - 1))

        assert (OK, True, 0) == (code, new_id > producer_id, epoch)
        # The response was lost: the producer repeats its request with the old identity.
        assert (OK, (new_id, 0)) == client.init((producer_id, LAST_EPOCH - 1))

    @pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
    def test_a_timeout_beyond_the_broker_s_is_refused(self, client, timeout_ms):
        """transaction.max.timeout.ms is the upper bound."""
        expected = (ErrorCode.INVALID_TRANSACTION_TIMEOUT, NOBODY)

        assert expected == client.init(timeout_ms=timeout_ms)
        assert None is client.state()

    def test_an_id_is_forgotten_after_a_week(self, client):
        """A transactional id without a transaction expires."""
        client.init()
        client.now = NOW + 7 * 24 * 3600

        assert None is client.state()
        assert (OK, (1, 0)) == client.init()

    def test_an_empty_transactional_id_is_refused(self, client):
        """Every API for transactions refuses an empty transactional id."""
        client.transactional_id = ""

        assert (ErrorCode.INVALID_REQUEST, NOBODY) == client.init()
        assert [ErrorCode.INVALID_REQUEST] == client.add((0, 0), 0)
        assert ErrorCode.INVALID_REQUEST == client.add_offsets((0, 0), "g")
        assert (ErrorCode.INVALID_REQUEST, NOBODY) == client.end((0, 0), committed=True)
        assert (ErrorCode.INVALID_REQUEST, NOBODY) == client.end(
            (0, 0), committed=True, version=END_TV1
        )
        assert [(ErrorCode.INVALID_REQUEST, -1)] == client.produce((0, 0), 0)


class TestEndWithEpochBump:
    """EndTxn since version 5 (TV2)."""

    @pytest.mark.parametrize("committed", [True, False])
    def test_the_end_gives_the_next_epoch(self, client, committed):
        """The next transaction has its own epoch, and begins with sequence 0."""
        identity = began(client)

        code, following = client.end(identity, committed=committed)

        assert (OK, (identity[0], 1)) == (code, following)
        assert [(OLD_EPOCH, -1)] == client.produce(identity, 1)
        assert [(OK, 2)] == client.produce(following, 0)

    @pytest.mark.parametrize("committed", [True, False])
    def test_a_repeated_end_is_answered_the_same(self, client, committed):
        """If the response was lost, the old epoch shows that the request is repeated."""
        identity = began(client)
        answer = client.end(identity, committed=committed)

        assert answer == client.end(identity, committed=committed)
        assert (BAD_STATE, NOBODY) == client.end(identity, committed=not committed)

    def test_a_late_copy_does_not_end_the_next_transaction(self, client):
        """The epoch distinguishes a late copy from a new request, unlike in TV1."""
        identity = began(client)
        _, following = client.end(identity, committed=True)
        client.produce(following, 0)

        assert (FENCED, NOBODY) == client.end(identity, committed=True)
        assert "Ongoing" == client.state()

    def test_a_commit_of_nothing_is_refused(self, client):
        """A commit needs a transaction with at least one partition."""
        _, identity = client.init()

        assert (BAD_STATE, NOBODY) == client.end(identity, committed=True)

    def test_an_abort_of_nothing_bumps_the_epoch(self, client):
        """A client that does not know whether it has written may abort."""
        _, identity = client.init()

        code, following = client.end(identity, committed=False)
        again = client.end(following, committed=False)

        assert (OK, (0, 1)) == (code, following)
        assert (OK, (0, 2)) == again
        assert 0 == client.log().log_end_offset

    def test_an_abort_right_after_a_commit_aborts_nothing(self, client):
        """The epoch is that of the next transaction, which is empty."""
        identity = began(client)
        _, following = client.end(identity, committed=True)

        assert (BAD_STATE, NOBODY) == client.end(following, committed=True)
        assert (OK, (0, 2)) == client.end(following, committed=False)
        assert [b"v"] == client.read_committed()

    def test_the_last_epoch_leads_to_a_new_producer_id(self, client):
        """The end that exhausts the epochs returns a new producer id, and so does a repetition."""
        identity = began(client)
        metadata = client.broker.cluster.transactions.find("x", 0)
        metadata.producer_epoch = LAST_EPOCH - 1
        exhausted = (identity[0], LAST_EPOCH - 1)

        code, following = client.end(exhausted, committed=True)

        assert (OK, True, 0) == (code, following[0] > identity[0], following[1])
        assert (OK, following) == client.end(exhausted, committed=True)
        assert (NO_MAPPING, NOBODY) == client.end((identity[0], 5), committed=True)
        assert [(OK, 0)] == client.produce(following, 0, 1)

    def test_an_unknown_id_is_refused(self, client):
        """An unknown transactional id and another producer's id cannot end a transaction."""
        assert (NO_MAPPING, NOBODY) == client.end((0, 0), committed=True)
        client.init()
        assert (NO_MAPPING, NOBODY) == client.end((5, 0), committed=True)


class TestEndWithoutEpochBump:
    """EndTxn up to version 4 (TV1)."""

    @pytest.fixture
    def client(self):
        """Return a client of a cluster with transaction.version 0."""
        return client_of(0)

    def end(self, client, identity, *, committed):
        """End the transaction and return the error code."""
        return client.end(identity, committed=committed, version=END_TV1)[0]

    def test_epoch_and_sequence_go_on(self, client):
        """The next transaction has the same epoch and continues the sequence."""
        identity = began(client, version=1)
        assert OK == self.end(client, identity, committed=True)

        client.add(identity, 0)

        assert [(OK, 2)] == client.produce(identity, 1, version=PRODUCE_TV1)

    @pytest.mark.parametrize("committed", [True, False])
    def test_a_repeated_end_is_answered_the_same(self, client, committed):
        """A copy that arrives before the next transaction has no effect."""
        identity = began(client, version=1)
        self.end(client, identity, committed=committed)

        assert OK == self.end(client, identity, committed=committed)
        assert BAD_STATE == self.end(client, identity, committed=not committed)

    def test_a_late_copy_ends_the_next_transaction(self, client):
        """The broker has the same weakness as Kafka, which KIP-890 fixes."""
        identity = began(client, version=1)
        self.end(client, identity, committed=True)
        client.add(identity, 0)
        client.produce(identity, 1, version=PRODUCE_TV1)

        assert OK == self.end(client, identity, committed=True)
        assert "CompleteCommit" == client.state()

    @pytest.mark.parametrize("committed", [True, False])
    def test_an_end_of_nothing_is_refused(self, client, committed):
        """Before TV2 even an abort needs an open transaction."""
        _, identity = client.init()

        assert BAD_STATE == self.end(client, identity, committed=committed)

    def test_only_the_exact_identity_is_accepted(self, client):
        """A newer epoch is fenced like an older one, and another producer id has no mapping."""
        producer_id, _ = began(client, version=1)

        assert FENCED == self.end(client, (producer_id, 1), committed=True)
        assert NO_MAPPING == self.end(client, (producer_id + 1, 0), committed=True)


class TestTimersOfTransactionsThatHaveEnded:
    """The timeout of a transaction does not affect the next one."""

    @pytest.mark.parametrize("committed", [True, False])
    def test_the_next_transaction_is_not_aborted_by_the_timer_of_the_one_before(self, committed):
        """The check after the first timeout does not abort the transaction that is then open."""
        client = client_of(transaction_abort_interval_ms=1000)
        _, identity = client.init(timeout_ms=10_000)
        client.produce(identity, 0)
        _, identity = client.end(identity, committed=committed)
        client.now += 6
        client.produce(identity, 0, value=b"next")

        client.now += 6
        client.broker.tick(client.now)
        assert "Ongoing" == client.state()
        client.now += 5
        client.broker.tick(client.now)
        assert "CompleteAbort" == client.state()
