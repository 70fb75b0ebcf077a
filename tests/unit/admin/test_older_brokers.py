"""What the public admin client requests of older brokers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink import (
    OffsetAndMetadata,
    OffsetSpec,
    TopicPartition,
    UnsupportedVersionError,
)
from spark_kafka_sink.devbroker.net.faults import AlterResponse
from spark_kafka_sink.protocol.api_keys import ApiKey

FIRST, SECOND = TopicPartition("data", 0), TopicPartition("data", 1)


def up_to(api_key, version):
    """Return a fault that makes a broker announce no later version of an API."""

    def announced(response):
        keys = tuple(
            replace(it, max_version=version) if it.api_key == api_key else it
            for it in response.api_keys
        )
        return replace(response, api_keys=keys)

    return AlterResponse(announced)


def test_a_broker_without_an_api_is_too_old(broker, admin):
    """An API that the broker does not have is an error that says since when Kafka has it."""

    def without_producers(response):
        kept = [it for it in response.api_keys if it.api_key != ApiKey.DESCRIBE_PRODUCERS]
        return replace(response, api_keys=tuple(kept))

    broker.on(ApiKey.API_VERSIONS, AlterResponse(without_producers))
    with pytest.raises(UnsupportedVersionError, match=r"DESCRIBE_PRODUCERS API.* Kafka 2\.8"):
        admin.describe_producers([FIRST])


def test_an_offset_that_a_broker_does_not_know_of_is_not_requested(broker, admin):
    """A broker whose ListOffsets is too old for an offset is not asked for it."""
    broker.on(ApiKey.API_VERSIONS, up_to(ApiKey.LIST_OFFSETS, 6))
    assert 0 == admin.list_offsets({FIRST: OffsetSpec.LATEST})[FIRST].offset
    with pytest.raises(UnsupportedVersionError, match="too old for one of the offsets"):
        admin.list_offsets({FIRST: OffsetSpec.MAX_TIMESTAMP})


@pytest.mark.parametrize("version", [5, 7, 9])
def test_offsets_are_read_from_older_brokers(broker, admin, version):
    """OffsetFetch has had several groups since version 8, and names no topics from 10 on."""
    broker.on(ApiKey.API_VERSIONS, up_to(ApiKey.OFFSET_FETCH, version))
    admin.alter_consumer_group_offsets("g", {FIRST: 7})

    assert {FIRST: OffsetAndMetadata(7)} == admin.list_consumer_group_offsets("g")
    assert {} == admin.list_consumer_group_offsets("g", [SECOND])


def test_topics_are_deleted_by_older_brokers(broker, admin):
    """DeleteTopics has had a struct for each topic since version 6."""
    broker.on(ApiKey.API_VERSIONS, up_to(ApiKey.DELETE_TOPICS, 5))
    admin.delete_topics(["data"])

    assert {"more"} == admin.list_topics().keys()


def test_transactions_are_listed_by_older_brokers_unless_only_long_ones_are_wanted(broker, admin):
    """ListTransactions has had a shortest duration since version 1 (Kafka 3.8)."""
    broker.on(ApiKey.API_VERSIONS, up_to(ApiKey.LIST_TRANSACTIONS, 0))
    assert [] == admin.list_transactions()
    with pytest.raises(UnsupportedVersionError, match="version 0 has no field duration_filter"):
        admin.list_transactions(min_duration_ms=1)
