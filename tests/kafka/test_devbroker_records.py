"""The embedded broker and Apache Kafka: the same answers to malformed records."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.devbroker.broker_asker import observe
from tests.support.devbroker.malformed_batches import MALFORMED, REFUSED_SINCE_4_4
from tests.support.kafka.kafka_files import is_older

#: Kafka 3.9 accepts any timestamp unless told otherwise, 4.3 none of the future.
ANY_TIMESTAMP = str(2**63 - 1)
#: The groups of batches whose records are compressed.
COMPRESSED = ("gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("group", MALFORMED)
def test_malformed_records_get_the_same_answers(kafka, group):
    """Kafka and the embedded broker give the same error code for each malformed batch."""

    def codes(broker):
        topic = broker.topic(message_timestamp_after_max_ms=ANY_TIMESTAMP)
        return {
            name: broker.produce(topic, batch)[0][1]
            for name, (batch, _) in MALFORMED[group].items()
        }

    expected = {name: code for name, (_, code) in MALFORMED[group].items()}
    accepted = {}
    if is_older(kafka.version, "4.4") and group in COMPRESSED:
        accepted = dict.fromkeys(REFUSED_SINCE_4_4, ErrorCode.NONE)

    port = int(kafka.bootstrap_servers.rpartition(":")[2])
    assert expected | accepted == observe(codes, port)
    with DevBroker() as devbroker:
        assert expected == observe(codes, devbroker.port)
