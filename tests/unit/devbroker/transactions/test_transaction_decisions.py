"""The decisions of the embedded broker's coordinator in every state of a transactional id."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.transactions.transaction_metadata import TransactionState
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from tests.support.devbroker.broker_requests import NOW
from tests.support.devbroker.transactional_client import END_TV1, END_TV2
from tests.support.devbroker.transactions_of_devbroker import (
    BAD_STATE,
    BUSY,
    FENCED,
    LAST_EPOCH,
    NO_MAPPING,
    NOBODY,
    OK,
    client_of,
)

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
COMMIT, ABORT = True, False
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
#: The responses to a commit and to an abort, where both have the same code.
BOTH_FENCED, BOTH_UNKNOWN = (FENCED, FENCED), (NO_MAPPING, NO_MAPPING)
WEEK_MS = 7 * 24 * 3_600_000


def client_with(transaction_version=2, *, settings=None, **fields):
    """Return a client of a broker with a known id: producer 7, previously 6, with epoch 5."""
    client = client_of(transaction_version, **settings or {})
    client.init()
    metadata = client.broker.cluster.transactions.find("x", 0)
    known = {"producer_id": 7, "previous_producer_id": 6, "producer_epoch": 5}
    for name, value in (known | fields).items():
        setattr(metadata, name, value)
    return client


class TestEndOfVersion2:
    """EndTxn since version 5: the epoch distinguishes a repeated request from a new one."""

    @pytest.mark.parametrize(
        ("state", "epoch", "codes"),
        [
            (EMPTY, 4, BOTH_FENCED),
            (EMPTY, 5, (BAD_STATE, OK)),
            (EMPTY, 6, BOTH_FENCED),
            (ONGOING, 4, BOTH_FENCED),
            (ONGOING, 5, (OK, OK)),
            (ONGOING, 6, BOTH_FENCED),
            (PREPARE_COMMIT, 3, BOTH_FENCED),
            (PREPARE_COMMIT, 4, (BUSY, BAD_STATE)),
            (PREPARE_COMMIT, 5, BOTH_FENCED),
            (PREPARE_COMMIT, 6, BOTH_FENCED),
            (PREPARE_ABORT, 3, BOTH_FENCED),
            (PREPARE_ABORT, 4, (BAD_STATE, BUSY)),
            (PREPARE_ABORT, 5, BOTH_FENCED),
            (PREPARE_ABORT, 6, BOTH_FENCED),
            (COMPLETE_COMMIT, 3, BOTH_FENCED),
            (COMPLETE_COMMIT, 4, (OK, BAD_STATE)),
            (COMPLETE_COMMIT, 5, (BAD_STATE, OK)),
            (COMPLETE_COMMIT, 6, BOTH_FENCED),
            (COMPLETE_ABORT, 3, BOTH_FENCED),
            (COMPLETE_ABORT, 4, (BAD_STATE, OK)),
            (COMPLETE_ABORT, 5, (BAD_STATE, OK)),
            (COMPLETE_ABORT, 6, BOTH_FENCED),
        ],
    )
    @pytest.mark.parametrize("committed", [COMMIT, ABORT])
    def test_every_end_in_every_state(self, state, epoch, codes, committed):
        """A repeated request gets the known epoch, and a new one the next epoch."""
        client = client_with(state=state)
        code = codes[0 if committed else 1]
        following = {(OK, 4): (7, 5), (OK, 5): (7, 6)}.get((code, epoch), NOBODY)

        assert (code, following) == client.end((7, epoch), committed=committed, version=END_TV2)
        done = COMPLETE_COMMIT if committed else COMPLETE_ABORT
        assert (done if code == OK else state) == client.state()

    @pytest.mark.parametrize(
        ("state", "asked", "known_epoch", "codes"),
        [
            (COMPLETE_COMMIT, (6, LAST_EPOCH - 1), 0, (OK, BAD_STATE)),
            (COMPLETE_ABORT, (6, LAST_EPOCH - 1), 0, (BAD_STATE, OK)),
            (EMPTY, (6, LAST_EPOCH - 1), 0, BOTH_FENCED),
            (ONGOING, (6, LAST_EPOCH - 1), 0, BOTH_FENCED),
            (PREPARE_COMMIT, (6, LAST_EPOCH - 1), 0, BOTH_FENCED),
            (COMPLETE_COMMIT, (6, LAST_EPOCH - 2), 0, BOTH_UNKNOWN),
            (COMPLETE_COMMIT, (6, LAST_EPOCH), 0, BOTH_UNKNOWN),
            (COMPLETE_COMMIT, (6, LAST_EPOCH - 1), 1, BOTH_UNKNOWN),
            (COMPLETE_COMMIT, (5, LAST_EPOCH - 1), 0, BOTH_UNKNOWN),
            (COMPLETE_COMMIT, (8, LAST_EPOCH - 1), 0, BOTH_UNKNOWN),
            (COMPLETE_COMMIT, (6, 0), 0, BOTH_UNKNOWN),
            (COMPLETE_COMMIT, (8, 0), 0, BOTH_UNKNOWN),
        ],
    )
    @pytest.mark.parametrize("committed", [COMMIT, ABORT])
    def test_a_repeated_end_may_name_the_producer_id_before(
        self, state, asked, known_epoch, codes, committed
    ):
        """The previous id must have exhausted its epochs; the response has the new producer id."""
        client = client_with(state=state, producer_epoch=known_epoch)
        code = codes[0 if committed else 1]

        assert (code, (7, 0) if code == OK else NOBODY) == client.end(
            asked, committed=committed, version=END_TV2
        )
        assert state == client.state()

    @pytest.mark.parametrize(("epoch", "is_new"), [(LAST_EPOCH - 2, False), (LAST_EPOCH - 1, True)])
    def test_the_end_with_the_last_epoch_brings_a_new_producer_id(self, epoch, is_new):
        """The last epoch is reserved for fencing."""
        client = client_with(state=ONGOING, producer_epoch=epoch)

        code, (producer_id, following) = client.end((7, epoch), committed=True)

        assert (OK, is_new, 0 if is_new else epoch + 1) == (code, producer_id != 7, following)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize(("committed", "what"), [(COMMIT, "committed"), (ABORT, "aborted")])
def test_the_error_for_a_refused_end_names_state_and_request(version, committed, what):
    """The error message also has the state of the id."""
    state = COMPLETE_ABORT if committed else COMPLETE_COMMIT
    request = EndTxnRequest(
        transactional_id="x",
        producer_id=7,
        producer_epoch=4 if version == 2 else 5,
        committed=committed,
    )
    with pytest.raises(RefusedError, match=f"of x in state {state} cannot be {what}"):
        client_with(state=state).broker.cluster.transactions.end(request, 0, client_version=version)


class TestEndOfVersion1:
    """EndTxn up to version 4: only the exact producer id and epoch are accepted."""

    @pytest.mark.parametrize(
        ("state", "codes"),
        [
            (EMPTY, (BAD_STATE, BAD_STATE)),
            (ONGOING, (OK, OK)),
            (PREPARE_COMMIT, (BUSY, BAD_STATE)),
            (PREPARE_ABORT, (BAD_STATE, BUSY)),
            (COMPLETE_COMMIT, (OK, BAD_STATE)),
            (COMPLETE_ABORT, (BAD_STATE, OK)),
        ],
    )
    @pytest.mark.parametrize("committed", [COMMIT, ABORT])
    def test_every_end_in_every_state(self, state, codes, committed):
        """Any other producer id or epoch is refused, and the epoch does not change."""
        for asked, code in (
            ((7, 4), FENCED),
            ((7, 6), FENCED),
            ((6, 5), NO_MAPPING),
            ((8, 5), NO_MAPPING),
            ((7, 5), codes[0 if committed else 1]),
        ):
            client = client_with(0, state=state)
            assert (code, NOBODY) == client.end(asked, committed=committed, version=END_TV1)
            done = COMPLETE_COMMIT if committed else COMPLETE_ABORT
            assert (done if code == OK else state, (7, 5)) == (client.state(), client.identity())

    def test_the_last_epoch_is_reused(self):
        """The end of a transaction does not use up an epoch."""
        client = client_with(0, state=ONGOING, producer_epoch=LAST_EPOCH - 1)
        client.end((7, LAST_EPOCH - 1), committed=True, version=END_TV1)

        assert (7, LAST_EPOCH - 1) == client.identity()


class TestInit:
    """InitProducerId: which producer gets which epoch."""

    @pytest.mark.parametrize(
        ("known", "asked", "expected"),
        [
            # A request without an identity, and the producer itself.
            ({}, (-1, -1), (OK, (7, 6))),
            ({}, (7, 5), (OK, (7, 6))),
            ({"state": COMPLETE_COMMIT}, (7, 5), (OK, (7, 6))),
            ({"state": COMPLETE_ABORT}, (-1, -1), (OK, (7, 6))),
            ({"last_producer_epoch": 4}, (7, 4), (OK, (7, 5))),
            ({"last_producer_epoch": 3}, (7, 4), (FENCED, NOBODY)),
            ({}, (7, 6), (FENCED, NOBODY)),
            # Other producers.
            ({}, (8, 5), (FENCED, NOBODY)),
            ({}, (6, 5), (FENCED, NOBODY)),
            ({"producer_epoch": 0}, (6, LAST_EPOCH - 2), (FENCED, NOBODY)),
            ({"producer_epoch": 0}, (5, LAST_EPOCH - 1), (FENCED, NOBODY)),
            (
                {"producer_epoch": 0, "last_producer_epoch": LAST_EPOCH - 1},
                (6, LAST_EPOCH - 1),
                (OK, (7, 0)),
            ),
            # A transaction is ending.
            ({"state": PREPARE_COMMIT}, (-1, -1), (BUSY, NOBODY)),
            ({"state": PREPARE_ABORT}, (7, 5), (BUSY, NOBODY)),
            ({"state": PREPARE_ABORT}, (8, 5), (FENCED, NOBODY)),
            ({"state": ONGOING}, (8, 5), (FENCED, NOBODY)),
            ({"state": ONGOING}, (7, 5), (BUSY, NOBODY)),
        ],
    )
    def test_every_producer_in_every_state(self, known, asked, expected):
        """A producer that repeats a request gets the same response."""
        assert expected == client_with(**known).init(asked)

    @pytest.mark.parametrize(
        ("epoch", "asked", "expected"),
        [
            (LAST_EPOCH - 2, (-1, -1), (7, LAST_EPOCH - 1)),
            (LAST_EPOCH - 1, (-1, -1), (1, 0)),
            (LAST_EPOCH - 1, (7, LAST_EPOCH - 1), (1, 0)),
            (LAST_EPOCH, (-1, -1), (1, 0)),
        ],
    )
    def test_used_up_epochs_bring_a_new_producer_id(self, epoch, asked, expected):
        """This does not depend on the identity in the request."""
        client = client_with(producer_epoch=epoch)

        assert (OK, expected) == client.init(asked)

    def test_a_producer_that_asks_again_gets_no_epoch_behind_the_last(self):
        """Its response was lost, and the epochs have been exhausted since."""
        client = client_with(producer_epoch=LAST_EPOCH - 1, last_producer_epoch=LAST_EPOCH - 2)

        assert (ErrorCode.UNKNOWN_SERVER_ERROR, NOBODY) == client.init((7, LAST_EPOCH - 2))

    @pytest.mark.parametrize("timeout_ms", [1, 900_000])
    def test_a_timeout_may_be_as_long_as_the_broker_allows(self, timeout_ms):
        """The shortest timeout is a millisecond."""
        assert (OK, (7, 6)) == client_with().init(timeout_ms=timeout_ms)


class TestPartitions:
    """AddPartitionsToTxn: only for the producer with that epoch, and not during an end."""

    @pytest.mark.parametrize(
        ("state", "asked", "code"),
        [
            (EMPTY, (7, 5), OK),
            (ONGOING, (7, 5), OK),
            (COMPLETE_COMMIT, (7, 5), OK),
            (COMPLETE_ABORT, (7, 5), OK),
            (PREPARE_COMMIT, (7, 5), BUSY),
            (PREPARE_ABORT, (7, 5), BUSY),
            (ONGOING, (7, 4), FENCED),
            (ONGOING, (7, 6), FENCED),
            (PREPARE_COMMIT, (7, 6), FENCED),
            (ONGOING, (6, 5), NO_MAPPING),
            (ONGOING, (8, 5), NO_MAPPING),
        ],
    )
    def test_every_producer_in_every_state(self, state, asked, code):
        """A refused request changes nothing."""
        client = client_with(state=state)

        assert [code] == client.add(asked, 0)
        partitions = client.broker.cluster.transactions.find("x", 0).partitions
        assert (ONGOING if code == OK else state, {("t", 0)} if code == OK else set()) == (
            client.state(),
            partitions,
        )

    @pytest.mark.parametrize(
        ("state", "asked", "code"),
        [
            (ONGOING, (7, 5), None),
            (EMPTY, (7, 5), None),
            (PREPARE_COMMIT, (7, 5), BUSY),
            (ONGOING, (7, 4), FENCED),
            (ONGOING, (7, 6), FENCED),
            (ONGOING, (6, 5), NO_MAPPING),
            (ONGOING, (8, 5), NO_MAPPING),
        ],
    )
    def test_partitions_are_verified_for_the_same_producers(self, state, asked, code):
        """Each partition that is not in the transaction has an error of its own."""
        transactions = client_with(state=state, partitions={T0}).broker.cluster.transactions

        def verify():
            return transactions.verify_partitions(
                "x", ProducerIdAndEpoch(*asked), frozenset({T0, T1}), now_ms=0
            )

        if code is None:
            assert {T0: OK, T1: ErrorCode.TRANSACTION_ABORTABLE} == verify()
        else:
            with pytest.raises(RefusedError) as refused:
                verify()
            assert code == refused.value.error_code

    def test_a_partition_is_added_once(self):
        """No new state is written."""
        client = client_with()
        client.add((7, 5), 0, 1)
        before = client.broker.cluster.transactions.find("x", 0)
        client.now += 1
        client.add((7, 5), 1)

        assert before is client.broker.cluster.transactions.find("x", 0)

    def test_partitions_are_added_to_those_before(self):
        """Some of the added partitions may be there already."""
        client = client_with()
        client.add((7, 5), 0, 1)
        client.add((7, 5), 1, 2)
        client.add((7, 5), 2)

        partitions = client.broker.cluster.transactions.find("x", 0).partitions
        assert {("t", 0), ("t", 1), ("t", 2)} == partitions


class TestTime:
    """When an id expires, and when a transaction is aborted."""

    @pytest.mark.parametrize(
        ("state", "expires"),
        [
            (EMPTY, True),
            (COMPLETE_COMMIT, True),
            (COMPLETE_ABORT, True),
            (ONGOING, False),
            (PREPARE_COMMIT, False),
            (PREPARE_ABORT, False),
        ],
    )
    def test_an_id_without_a_transaction_is_forgotten_after_a_week(self, state, expires):
        """The expiration is exact to the millisecond."""
        for age_ms, is_old in ((WEEK_MS - 1, False), (WEEK_MS, True), (2 * WEEK_MS, True)):
            client = client_with(state=state, last_update_ms=1_000)
            transactions = client.broker.cluster.transactions
            found = transactions.find("x", 1_000 + age_ms)
            assert (expires and is_old) == (found is None)
            assert ([] if found is None else [found]) == transactions.all(1_000 + age_ms)

    @pytest.mark.parametrize(
        ("timeout_ms", "checked_after"),
        [(1, 10), (9_998, 10), (9_999, 10), (10_000, 20), (19_999, 20), (60_000, 70)],
    )
    def test_a_transaction_is_aborted_at_the_first_check_after_its_timeout(
        self, timeout_ms, checked_after
    ):
        """Timeouts are checked every ten seconds."""
        client = client_of()
        _, identity = client.init(timeout_ms=timeout_ms)
        client.add(identity, 0)

        assert NOW + checked_after == client.broker.tick(NOW + checked_after - 1)
        assert ONGOING == client.state()
        client.now = NOW + checked_after
        client.broker.tick(client.now)
        assert COMPLETE_ABORT == client.state()
        metadata = client.broker.cluster.transactions.find("x", 0)
        assert int((NOW + checked_after) * 1000) == metadata.last_update_ms

    @pytest.mark.parametrize("committed", [COMMIT, ABORT])
    def test_nothing_is_to_be_aborted_after_the_end(self, committed, caplog):
        """The check of a transaction that ended in time still runs, and does nothing."""
        client = client_with()
        client.add((7, 5), 0)
        client.end((7, 5), committed=committed)
        client.broker.tick(NOW + 70)

        assert [] == [record.message for record in caplog.records if record.levelname == "ERROR"]
        assert (COMPLETE_COMMIT if committed else COMPLETE_ABORT, (7, 6)) == (
            client.state(),
            client.identity(),
        )

    @pytest.mark.parametrize(
        ("transaction_version", "epoch", "expected"),
        [
            (0, 5, (7, 6)),
            (1, 5, (7, 6)),
            (2, 5, (7, 6)),
            (0, LAST_EPOCH - 1, (7, LAST_EPOCH)),
            (2, LAST_EPOCH - 1, (1, 0)),
        ],
    )
    def test_the_producer_of_an_aborted_transaction_is_fenced(
        self, transaction_version, epoch, expected
    ):
        """The fence is an epoch that the producer does not have, or a new producer id."""
        client = client_with(transaction_version, producer_epoch=epoch)
        client.add((7, epoch), 0)
        client.now = NOW + 70
        client.broker.tick(client.now)

        assert (COMPLETE_ABORT, expected) == (client.state(), client.identity())
