"""The headers of requests and responses.

The version of the header follows from the API and its version: request header 2 and response
header 1 are the flexible ones (KIP-482). There are two exceptions, so that client and broker
understand each other before they have negotiated versions (KIP-511): the client id has its old
format in every version, and an ApiVersions response always has header 0.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import (
    INT16,
    INT32,
    LEGACY_STRING,
    Message,
    VersionRange,
    field,
    message,
)


@message
class RequestHeader(Message):
    """The header that identifies a request and its version.

    `request_api_key` is the number of the API, `request_api_version` the version of the request,
    and `client_id` the client's name (`client.id`).

    >>> RequestHeader(
    ...     request_api_key=ApiKey.PRODUCE,
    ...     request_api_version=9,
    ...     correlation_id=1,
    ...     client_id="orders",
    ... ).client_id
    'orders'
    """

    versions = VersionRange(1, 2)
    flexible_from = 2

    request_api_key: int = field(INT16)
    request_api_version: int = field(INT16)
    #: Chosen by the client; the response repeats it.
    correlation_id: int = field(INT32)
    client_id: str | None = field(LEGACY_STRING, nullable="1+", default=None)


@message
class ResponseHeader(Message):
    """The header that identifies the request to which a response belongs."""

    versions = VersionRange(0, 1)
    flexible_from = 1

    correlation_id: int = field(INT32)


def request_header_version(api_key: ApiKey, api_version: int) -> int:
    """Return the header version of a request of this API and version."""
    return 2 if api_version >= api_key.flexible_from else 1


def response_header_version(api_key: ApiKey, api_version: int) -> int:
    """Return the header version of the response to a request of this API and version."""
    if api_key is ApiKey.API_VERSIONS:
        return 0
    return 1 if api_version >= api_key.flexible_from else 0
