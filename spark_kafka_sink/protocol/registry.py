"""Complete requests and responses, with header, body and frame, by API key.

A client uses `encode_request` and `decode_response`, a broker `decode_request` and
`encode_response`. For an API that this package does not declare they raise UnsupportedVersionError.

The messages of an API are in the module of its name, which is imported when they are first needed:
a worker that writes needs few of them, and starts faster without the others.

The version of a header follows from the API and its version: request header 2 and response header 1
are the flexible ones (KIP-482). There are two exceptions, so that client and broker understand each
other before they have negotiated versions (KIP-511): the client id has its old format in every
version, and an ApiVersions response always has header 0.
"""

from __future__ import annotations

import struct
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.codec import decode, read_message, write_message
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.frame import encode_frame
from spark_kafka_sink.protocol.primitives import MAX_ELEMENTS, Buffer, Reader, Writer
from spark_kafka_sink.protocol.schema import (
    INT16,
    INT32,
    LEGACY_STRING,
    Message,
    VersionRange,
    field,
    message,
)

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.schema import AnyRequest, ApiResponse

_INT32: Final = struct.Struct(">i")
#: Kafka's headers have no tagged fields yet; a few unknown ones are skipped.
_MAX_HEADER_ELEMENTS = 100


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


#: All APIs of clients that this package supports.
SUPPORTED: Final = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.FIND_COORDINATOR,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.DELETE_TOPICS,
    ApiKey.DELETE_RECORDS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.DELETE_GROUPS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.OFFSET_DELETE,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.ALTER_CONFIGS,
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.LIST_CONFIG_RESOURCES,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.ALTER_CLIENT_QUOTAS,
)

#: The APIs between the brokers of the embedded cluster, which no client can use.
BETWEEN_BROKERS: Final = (
    ApiKey.ALTER_PARTITION,
    ApiKey.BROKER_REGISTRATION,
    ApiKey.BROKER_HEARTBEAT,
    ApiKey.ALLOCATE_PRODUCER_IDS,
)


def declared_messages() -> list[tuple[type[AnyRequest], type[ApiResponse]]]:
    """Return all requests, each with the response that its type names."""
    return [
        (request_class(api_key), response_class(api_key))
        for api_key in (*SUPPORTED, *BETWEEN_BROKERS)
    ]


@cache
def request_class(api_key: ApiKey) -> type[AnyRequest]:
    """Return an API's request class; UnsupportedVersionError if it is not declared."""
    if api_key not in SUPPORTED and api_key not in BETWEEN_BROKERS:
        raise UnsupportedVersionError(f"the {api_key.name} API is not supported")
    module = import_module(f"spark_kafka_sink.protocol.messages.{api_key.name.lower()}")
    # Such as `InitProducerIdRequest` for INIT_PRODUCER_ID.
    words = api_key.name.split("_")
    request: type[AnyRequest] = getattr(module, f"{''.join(map(str.title, words))}Request")
    return request


@cache
def response_class(api_key: ApiKey) -> type[ApiResponse]:
    """Return an API's response class; UnsupportedVersionError if it is not declared."""
    return request_class(api_key).response_class()


def encode_request(header: RequestHeader, request: AnyRequest) -> list[Buffer]:
    """Encode a framed request in the header's version; raises the errors of `codec.encode`."""
    version = header.request_api_version
    writer = Writer()
    write_message(writer, header, request_header_version(request.api_key, version))
    write_message(writer, request, version)
    return encode_frame(writer.finish())


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, memoryview]:
    """Decode a request's header; return it with the rest of the frame, the body.

    A broker needs the header even of a request whose version it does not support. Raises
    DecodeError if the frame is too short or the API key is unknown, which leaves the header's
    version unknown.
    """
    start = Reader(frame)
    number, version = start.read_int16(), start.read_int16()
    try:
        api_key = ApiKey(number)
    except ValueError:
        raise DecodeError(f"a request with the unknown API key {number}") from None
    reader = Reader(frame, _MAX_HEADER_ELEMENTS)
    header = read_message(RequestHeader, reader, request_header_version(api_key, version))
    return header, reader.read_view(reader.remaining)


def decode_request(frame: Buffer) -> tuple[RequestHeader, AnyRequest]:
    """Decode a request from a frame without its size.

    Raises DecodeError as `decode_request_header` and `codec.decode` do, and
    UnsupportedVersionError if the API or its version is not supported.
    """
    header, body = decode_request_header(frame)
    cls = request_class(ApiKey(header.request_api_key))
    return header, decode(cls, body, header.request_api_version)


def encode_response(correlation_id: int, response: ApiResponse, version: int) -> list[Buffer]:
    """Encode a framed response; raises the errors of `codec.encode`."""
    writer = Writer()
    header = ResponseHeader(correlation_id=correlation_id)
    write_message(writer, header, response_header_version(response.api_key, version))
    write_message(writer, response, version)
    return encode_frame(writer.finish())


def peek_correlation_id(frame: Buffer) -> int:
    """Return a response's correlation id, without decoding the rest.

    Raises DecodeError if the frame is too short.
    """
    try:
        (correlation_id,) = _INT32.unpack_from(frame)
    except struct.error:
        raise DecodeError(f"a response of {len(frame)} bytes has no correlation id") from None
    return int(correlation_id)


def decode_response(
    api_key: ApiKey, version: int, frame: Buffer, *, max_elements: int = MAX_ELEMENTS
) -> tuple[int, ApiResponse]:
    """Decode the response to a request of this API and version; return it with its correlation id.

    A broker that does not support the version of an ApiVersions request responds in version 0
    (KIP-511), with UNSUPPORTED_VERSION in `error_code`. Raises DecodeError as `codec.decode` does.
    """
    reader = Reader(frame, _MAX_HEADER_ELEMENTS)
    header = read_message(ResponseHeader, reader, response_header_version(api_key, version))
    body = reader.read_view(reader.remaining)
    if (
        api_key is ApiKey.API_VERSIONS
        and Reader(body).read_int16() == ErrorCode.UNSUPPORTED_VERSION
    ):
        version = 0
    cls = response_class(api_key)
    return header.correlation_id, decode(cls, body, version, max_elements=max_elements)
