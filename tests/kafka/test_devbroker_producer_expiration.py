"""What Apache Kafka forgets of producers, and the embedded broker likewise."""

from __future__ import annotations

import os
import time
import uuid

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.devbroker.admin_requests import describe_producers
from tests.support.devbroker.broker_asker import Asker
from tests.support.devbroker.transactional_client import END_TV1, PRODUCE_TV1, TransactionalRequests
from tests.support.kafka.kafka_files import KAFKA_3, KAFKA_4
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.kafka.real_kafka import start_kafka

pytestmark = pytest.mark.kafka

CHECK_INTERVAL_MS = 100
PATIENCE_SECONDS = 60
DESCRIBE_PRODUCERS = 0
#: More than the day for which both remember a producer by default.
LONG_AGO_MS = 25 * 3_600_000
YOUNG, OLD = 4_000_001, 4_000_002


@pytest.fixture(scope="module", params=[KAFKA_4, KAFKA_3])
def kafka_that_looks_often(request):
    overrides = {"producer.id.expiration.check.interval.ms": str(CHECK_INTERVAL_MS)}
    try:
        cluster = start_kafka(request.param, overrides=overrides)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    with cluster:
        yield cluster


class Client(TransactionalRequests):
    """Asks one broker about a topic of its own."""

    def __init__(self, asker):
        super().__init__(f"expiration-{uuid.uuid4().hex}", asker.topic())
        self.asker = asker

    def ask(self, request, version):
        """Send a request."""
        return self.asker.ask(request, version)

    def write(self, producer_id, sequence, *, age_ms=0):
        """Write a batch of that age, outside of transactions; give the error code."""
        self.timestamp = int(time.time() * 1000) - age_ms
        batch = self.produce((producer_id, 0), sequence, attributes=0, version=PRODUCE_TV1)
        return ErrorCode(batch[0][0]).name

    def known(self):
        """List the producers that the partition knows."""
        (topic,) = self.ask(describe_producers(self.topic, 0), DESCRIBE_PRODUCERS).topics
        return {producer.producer_id for producer in topic.partitions[0].active_producers}

    def patiently(self, action):
        """Do something until its answer is neither None nor "ask again"."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (answer := action()) is None:
            assert time.monotonic() < deadline
            time.sleep(CHECK_INTERVAL_MS / 1000)
        return answer


def observe(port):
    """Write as three producers, and note what is known of them after a check."""
    asker = Asker(port)
    try:
        asker.wait_for_coordinators()
        client = Client(asker)

        def initialised():
            code, identity = client.init()
            return identity if code == ErrorCode.NONE else None

        identity = client.patiently(initialised)
        notes = [client.add(identity, 0)]
        client.timestamp = int(time.time() * 1000) - LONG_AGO_MS
        notes.append(client.produce(identity, 0, version=PRODUCE_TV1))
        notes += [client.write(YOUNG, 0), client.write(OLD, 0, age_ms=LONG_AGO_MS)]
        client.patiently(lambda: True if OLD not in client.known() else None)
        notes.append({YOUNG, identity[0]} == client.known())
        notes += [client.write(YOUNG, 5), client.write(OLD, 5)]
        # The marker's time is now.
        notes.append(client.end(identity, committed=True, version=END_TV1)[0])
        client.patiently(lambda: True if client.latest() == 5 else None)
        notes.append({YOUNG, OLD, identity[0]} == client.known())
        return notes
    finally:
        asker.close()


def test_producers_are_forgotten_as_by_kafka(kafka_that_looks_often):
    """The records' time decides, and an open transaction protects; then any sequence is taken."""
    kafka = kafka_that_looks_often
    expected = observe(int(kafka.bootstrap_servers.rpartition(":")[2]))

    with DevBroker(
        transaction_version=0 if kafka.version == KAFKA_3 else 2,
        producer_id_expiration_check_interval_ms=CHECK_INTERVAL_MS,
    ) as devbroker:
        actual = observe(devbroker.port)

    assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in expected
    assert expected == actual
