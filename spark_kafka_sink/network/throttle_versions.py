"""Which answers leave the waiting to the client when a quota is exceeded (KIP-219)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

#: From which version on a broker answers at once and leaves the waiting to the client
#: (`AbstractResponse.shouldClientThrottle`). Before, its answer came late, and all was done.
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
    """Return whether the client has to pause when an answer of this version says so."""
    return api_key not in _CLIENT_THROTTLES_FROM or api_version >= _CLIENT_THROTTLES_FROM[api_key]
