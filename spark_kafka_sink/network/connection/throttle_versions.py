"""The response versions that leave it to the client to pause for a quota (KIP-219)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The version from which on a broker responds at once and leaves the pause to the client
#: (`AbstractResponse.shouldClientThrottle`). In earlier versions the broker delayed its response
#: instead.
_CLIENT_THROTTLES_FROM: Final[Mapping[ApiKey, int]] = MappingProxyType(
    {
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
)


def client_throttles(api_key: ApiKey, api_version: int) -> bool:
    """Return whether the client has to pause if a response of this version asks for it."""
    return api_key not in _CLIENT_THROTTLES_FROM or api_version >= _CLIENT_THROTTLES_FROM[api_key]
