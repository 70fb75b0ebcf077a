from __future__ import annotations

import pytest

from spark_kafka_sink.network.connection.broker_connection import client_throttles
from spark_kafka_sink.protocol.api_keys import ApiKey

#: Kafka's own table, from the `shouldClientThrottle` of its responses.
FROM = {
    ApiKey.PRODUCE: 6,
    ApiKey.FETCH: 8,
    ApiKey.LIST_OFFSETS: 3,
    ApiKey.METADATA: 6,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.API_VERSIONS: 2,
    ApiKey.CREATE_TOPICS: 3,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 1,
    ApiKey.TXN_OFFSET_COMMIT: 1,
}


@pytest.mark.parametrize(("api_key", "version"), FROM.items())
def test_the_client_pauses_from_a_version_on(api_key, version):
    """In earlier versions the broker delayed its response instead."""
    assert (False, True) == (
        client_throttles(api_key, version - 1),
        client_throttles(api_key, version),
    )


@pytest.mark.parametrize("api_key", set(ApiKey) - set(FROM))
def test_the_client_pauses_for_any_response_of_the_other_apis(api_key):
    """These APIs are newer, or their responses were never delayed."""
    assert client_throttles(api_key, 0)
