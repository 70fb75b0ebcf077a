"""Expiration of producer ids: the embedded broker behaves like Apache Kafka."""

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
#: Longer than the day after which both expire a producer id by default.
LONG_AGO_MS = 25 * 3_600_000
YOUNG, OLD = 4_000_001, 4_000_002


@pytest.fixture(scope="module", params=[KAFKA_4, KAFKA_3])
def kafka_that_checks_often(request):
    overrides = {"producer.id.expiration.check.interval.ms": str(CHECK_INTERVAL_MS)}
    try:
        cluster = start_kafka(request.param, overrides=overrides)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    with cluster:
        yield cluster


class Client(TransactionalRequests):
    """A client that sends requests to one broker about its own topic."""

    def __init__(self, asker):
        super().__init__(f"expiration-{uuid.uuid4().hex}", asker.topic())
        self.asker = asker

    def ask(self, request, version):
        """Send a request."""
        return self.asker.ask(request, version)

    def write(self, producer_id, sequence, *, age_ms=0):
        """Write a batch of that age outside of a transaction, and return the error code."""
        self.timestamp = int(time.time() * 1000) - age_ms
        batch = self.produce((producer_id, 0), sequence, attributes=0, version=PRODUCE_TV1)
        return ErrorCode(batch[0][0]).name

    def known(self):
        """Return the ids of the partition's active producers."""
        (topic,) = self.ask(describe_producers(self.topic, 0), DESCRIBE_PRODUCERS).topics
        return {producer.producer_id for producer in topic.partitions[0].active_producers}

    def patiently(self, action):
        """Retry an action until its result is not None, and return it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (answer := action()) is None:
            assert time.monotonic() < deadline
            time.sleep(CHECK_INTERVAL_MS / 1000)
        return answer


def observe(port):
    """Write as three producers, and record which of them are known after an expiration check."""
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
        # The marker's timestamp is the current time.
        notes.append(client.end(identity, committed=True, version=END_TV1)[0])
        client.patiently(lambda: True if client.latest() == 5 else None)
        notes.append({YOUNG, OLD, identity[0]} == client.known())
        return notes
    finally:
        asker.close()


def test_producers_expire_as_in_kafka(kafka_that_checks_often):
    """Producers without an open transaction expire by record time; then any sequence is valid."""
    kafka = kafka_that_checks_often
    expected = observe(int(kafka.bootstrap_servers.rpartition(":")[2]))

    with DevBroker(
        transaction_version=0 if kafka.version == KAFKA_3 else 2,
        producer_id_expiration_check_interval_ms=CHECK_INTERVAL_MS,
    ) as devbroker:
        actual = observe(devbroker.port)

    assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in expected
    assert expected == actual
