"""Transactions of the embedded broker and of Apache Kafka: the same answers to the same requests.

The method is that of test_devbroker_conformance. Kafka 4.3 gets the requests of clients with
transaction.version 2 and of older clients, 3.9 only the latter. Producer ids differ between
brokers, so they are recorded as numbers, in the order in which they were assigned. Kafka writes
markers after it has answered, so a scenario waits for them before it continues.
"""

from __future__ import annotations

import functools
import time
import uuid

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.record.decode import decode_control_record, decode_record_batch
from spark_kafka_sink.record.record_batch import split_record_batches
from tests.support.devbroker.broker_asker import Asker
from tests.support.devbroker.transactional_client import (
    END_TV1,
    END_TV2,
    PRODUCE_TV1,
    PRODUCE_TV2,
    TransactionalRequests,
)
from tests.support.kafka.kafka_files import KAFKA_3

PATIENCE_SECONDS = 120
BUSY = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}
ABORT_INTERVAL_MS = 100
#: Of a transaction that times out; long enough to write to it on a slow machine.
TIMEOUT_MS = 5_000


class Producer(TransactionalRequests):
    """A client with a unique transactional id and a topic of three partitions."""

    def __init__(self, asker, version, *, other=None):
        """Create the topic, or use that of another producer."""
        super().__init__(f"conformance-{uuid.uuid4().hex}", other.topic if other else "")
        self.asker = asker
        # If record timestamps were far from those of the markers, Kafka would roll a segment for
        # each marker.
        self.timestamp = int(time.time() * 1000)
        self.tv2 = version == 2
        self.produce_version = PRODUCE_TV2 if self.tv2 else PRODUCE_TV1
        self.end_version = END_TV2 if self.tv2 else END_TV1
        if other is None:
            asker.wait_for_coordinators()
            self.topic = asker.topic(3)
        self.known = other.known if other else []
        self.notes = other.notes if other else []

    def ask(self, request, version):
        """Send a request."""
        return self.asker.ask(request, version)

    def note(self, what, answer):
        """Record an answer, with a number in place of the producer id."""
        self.notes.append((what, self.anonymous(answer)))
        return answer

    def anonymous(self, answer):
        """Return an answer with its producer id replaced by its number."""
        match answer:
            case (code, (producer_id, epoch)):
                if producer_id >= 0 and producer_id not in self.known:
                    self.known.append(producer_id)
                number = self.known.index(producer_id) if producer_id >= 0 else -1
                return (code, (number, epoch))
        return answer

    def start(self, expected=(-1, -1), **fields):
        """Initialize the producer, and retry until the broker is ready."""
        return self.note("init", self.patiently(lambda: self.init(expected, **fields)))[1]

    def enlist(self, identity, *partitions):
        """Add partitions to the transaction if the client has to."""
        if not self.tv2:
            self.note("add", self.patiently(lambda: self.add(identity, *partitions)))

    def write(self, identity, sequence, *partitions, **fields):
        """Write a batch."""
        self.note(
            "write",
            self.patiently(
                lambda: self.produce(
                    identity, sequence, *partitions, version=self.produce_version, **fields
                )
            ),
        )

    def finish(self, identity, *, committed, settle=True):
        """End the transaction and wait for its markers; return the next producer id and epoch."""
        answer = self.note(
            "commit" if committed else "abort",
            self.end(identity, committed=committed, version=self.end_version),
        )
        if settle:
            self.settle()
        return answer[1] if self.tv2 and answer[1][0] >= 0 else identity

    def settle(self):
        """Wait until the topic has no open transaction, and the coordinator knows it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        # The coordinator comes last: it may begin to abort a transaction between the two checks.
        while (
            any(
                self.latest(partition=p) != self.latest(partition=p, isolation_level=0)
                for p in range(3)
            )
            or self.is_preparing()
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def is_preparing(self):
        """Return whether the coordinator has yet to write markers or to record their completion."""
        request = DescribeTransactionsRequest(transactional_ids=(self.transactional_id,))
        (described,) = self.ask(request, 0).transaction_states
        return described.transaction_state.startswith("Prepare")

    def patiently(self, call):
        """Retry a call while the broker is busy."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            answer = call()
            first = answer[0][0] if isinstance(answer[0], tuple) else answer[0]
            if first not in BUSY:
                return answer
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def look(self):
        """Record the contents of each partition, and what a read_committed consumer sees of it."""
        for partition in range(3):
            answer = self.fetch(partition=partition)
            everything = self.fetch(partition=partition, isolation_level=0)
            self.notes.append(
                (
                    "look",
                    answer.high_watermark,
                    answer.last_stable_offset,
                    [
                        (self.known.index(txn.producer_id), txn.first_offset)
                        for txn in answer.aborted_transactions
                    ],
                    self.read_committed(partition),
                    [self._shape(batch) for batch in split_record_batches(everything.records)],
                )
            )

    def _shape(self, data):
        batch = decode_record_batch(data)
        header = batch.header
        return (
            header.base_offset,
            header.attributes,
            self.known.index(header.producer_id) if header.producer_id >= 0 else -1,
            header.producer_epoch,
            header.base_sequence,
            [decode_control_record(record) for record in batch.records]
            if header.is_control
            else [record.value for record in batch.records],
        )


def commits_and_aborts(producer):
    """Write transactions to several partitions, and record the partitions after each step."""
    identity = producer.start()
    for number, committed in enumerate((True, False, True)):
        producer.enlist(identity, 0, 2)
        first = 0 if producer.tv2 else number
        producer.write(identity, first, 0, 2, value=b"%d" % number)
        producer.look()
        identity = producer.finish(identity, committed=committed)
        producer.look()


def overlapping(producer):
    """Write to one partition in two overlapping transactions."""
    other = Producer(producer.asker, 2 if producer.tv2 else 0, other=producer)
    one, two = producer.start(), other.start()
    for client, identity in ((producer, one), (other, two)):
        client.enlist(identity, 0)
        client.write(identity, 0)
    other.finish(two, committed=False, settle=False)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while other.fetch(isolation_level=0).high_watermark < 3:
        assert time.monotonic() < deadline
    producer.look()
    producer.write(one, 1, value=b"late")
    producer.finish(one, committed=True)
    producer.look()


def ends(producer):
    """End transactions twice, with the opposite outcome, as other producers, and when empty."""
    identity = producer.start()

    def end(identity, what):
        for committed in (True, False):
            ask = functools.partial(
                producer.end, identity, committed=committed, version=producer.end_version
            )
            producer.note(f"{what}, {committed}", producer.patiently(ask))

    producer.note(
        "commit nothing", producer.end(identity, committed=True, version=producer.end_version)
    )
    for committed in (True, False):
        producer.enlist(identity, 0)
        producer.write(identity, 0)
        producer.finish(identity, committed=committed)
        end(identity, "again")
        end((identity[0], identity[1] + 5), "newer epoch")
        end((identity[0] + 1, identity[1]), "foreign id")
        identity = producer.start()


def empty_aborts(producer):
    """Abort empty transactions."""
    identity = producer.start()
    for _ in range(2):
        identity = producer.finish(identity, committed=False)
    producer.enlist(identity, 1)
    producer.write(identity, 0, 1)
    identity = producer.finish(identity, committed=True)
    identity = producer.finish(identity, committed=False)
    producer.note("commit", producer.end(identity, committed=True, version=producer.end_version))
    producer.look()


def fencing(producer):
    """Fence a producer with and without an open transaction, and send its requests afterwards."""
    first = producer.start()
    second = producer.start()
    producer.note("zombie", producer.produce(first, 0, version=producer.produce_version))
    producer.note("zombie", producer.add(first, 0))
    producer.note("zombie", producer.add(first, 0, version=1))
    producer.note("zombie", producer.end(first, committed=True, version=producer.end_version))
    producer.note("zombie", producer.end(first, committed=True, version=1))
    producer.note("zombie", producer.init(first))
    producer.note("zombie", producer.init(first, version=3))
    producer.enlist(second, 0)
    producer.write(second, 0)
    producer.note("at once", producer.init())
    third = producer.start()
    producer.settle()
    producer.look()
    producer.note("zombie", producer.produce(second, 1, version=producer.produce_version))
    producer.note("zombie", producer.end(second, committed=True, version=producer.end_version))
    producer.enlist(third, 0)
    producer.write(third, 0)
    producer.finish(third, committed=True)
    producer.look()


def own_bumps(producer):
    """Bump the producer's own epoch, retry as after a lost answer, and send foreign identities."""
    first = producer.start()
    second = producer.start(first)
    producer.start(first)
    third = producer.start(second)
    producer.note("too old", producer.init(first))
    producer.note("foreign", producer.init((first[0] + 1000, 0)))
    producer.enlist(third, 0)
    producer.write(third, 0)
    producer.note("with a transaction open", producer.init(third))
    producer.settle()
    producer.note("then", producer.patiently(lambda: producer.init(third)))


def refusals(producer):
    """Write without a transaction, outside of it, and in the wrong order."""
    identity = producer.start()
    for version in (10, 11):
        producer.note(f"not added, {version}", producer.produce(identity, 0, 0, version=version))
    producer.note("unknown partition", producer.add(identity, 0, 7))
    producer.enlist(identity, 0)
    producer.note(
        "in mid-sequence", producer.produce(identity, 4, 1, version=producer.produce_version)
    )
    producer.write(identity, 0)
    producer.write(identity, 0)
    producer.note("gap", producer.produce(identity, 5, 0, version=producer.produce_version))
    producer.note("beside it", producer.produce(identity, 1, 0, version=10, attributes=0))
    producer.note("not in it", producer.produce(identity, 0, 2, version=11))
    producer.finish(identity, committed=True)
    producer.look()


def bad_requests(producer):
    """Send an empty and an unknown transactional id, and invalid timeouts."""
    for timeout_ms in (0, -1, 900_001):
        producer.note("timeout", producer.init(timeout_ms=timeout_ms))
    producer.note("unknown", producer.end((0, 0), committed=True, version=producer.end_version))
    producer.note("unknown", producer.add((0, 0), 0))
    producer.note("unknown", producer.add_offsets((0, 0), "g"))
    producer.transactional_id = ""
    producer.note("empty", producer.init())
    producer.note("empty", producer.end((0, 0), committed=True, version=producer.end_version))
    producer.note("empty", producer.add((0, 0), 0))
    producer.note("empty", producer.add_offsets((0, 0), "g"))


def timeouts(producer):
    """Wait until a transaction times out."""
    identity = producer.start(timeout_ms=TIMEOUT_MS)
    producer.enlist(identity, 0)
    producer.write(identity, 0)
    producer.settle()
    producer.look()
    producer.note("late", producer.produce(identity, 1, version=producer.produce_version))
    for committed in (True, False):
        producer.note(
            "late", producer.end(identity, committed=committed, version=producer.end_version)
        )
    producer.start()


SCENARIOS = [
    commits_and_aborts,
    overlapping,
    ends,
    empty_aborts,
    fencing,
    own_bumps,
    refusals,
    bad_requests,
    timeouts,
]


def observe(scenario, port, version):
    asker = Asker(port)
    try:
        producer = Producer(asker, version)
        scenario(producer)
        return producer.notes
    finally:
        asker.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_transaction_requests_get_the_same_answers_as_from_kafka(kafka, scenario):
    """Kafka and the embedded broker give the same answers to the same requests."""
    is_old = kafka.version == KAFKA_3
    for version in (0,) if is_old else (2, 0):
        expected = observe(scenario, int(kafka.bootstrap_servers.rpartition(":")[2]), version)

        with DevBroker(
            transaction_version=0 if is_old else 2,
            transaction_abort_interval_ms=ABORT_INTERVAL_MS,
        ) as devbroker:
            actual = observe(scenario, devbroker.port, version)

        assert expected == actual, f"as with transaction.version {version}"
