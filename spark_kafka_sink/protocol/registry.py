"""Complete requests and responses, with header, body and frame, by API key.

A client uses `encode_request` and `decode_response`, a broker `decode_request` and
`encode_response`. For an API that this package does not declare they raise UnsupportedVersionError.
"""

from __future__ import annotations

from typing import TypeVar

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.frame import encode_frame
from spark_kafka_sink.protocol.headers import (
    RequestHeader,
    ResponseHeader,
    request_header_version,
    response_header_version,
)
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.create_partitions import CreatePartitionsRequest
from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsRequest
from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsRequest
from spark_kafka_sink.protocol.messages.delete_records import DeleteRecordsRequest
from spark_kafka_sink.protocol.messages.delete_topics import DeleteTopicsRequest
from spark_kafka_sink.protocol.messages.describe_cluster import DescribeClusterRequest
from spark_kafka_sink.protocol.messages.describe_configs import DescribeConfigsRequest
from spark_kafka_sink.protocol.messages.describe_groups import DescribeGroupsRequest
from spark_kafka_sink.protocol.messages.describe_producers import DescribeProducersRequest
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.fetch import FetchRequest
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.heartbeat import HeartbeatRequest
from spark_kafka_sink.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.join_group import JoinGroupRequest
from spark_kafka_sink.protocol.messages.leave_group import LeaveGroupRequest
from spark_kafka_sink.protocol.messages.list_groups import ListGroupsRequest
from spark_kafka_sink.protocol.messages.list_offsets import ListOffsetsRequest
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitRequest
from spark_kafka_sink.protocol.messages.offset_fetch import OffsetFetchRequest
from spark_kafka_sink.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from spark_kafka_sink.protocol.messages.sync_group import SyncGroupRequest
from spark_kafka_sink.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from spark_kafka_sink.protocol.primitives import MAX_ELEMENTS, Buffer, Reader, Writer
from spark_kafka_sink.protocol.schema import (
    AnyRequest,
    ApiMessage,
    ApiResponse,
    decode,
    read_message,
    write_message,
)

_Message = TypeVar("_Message", bound=ApiMessage)

#: The requests of all APIs that this package supports.
REQUESTS: tuple[type[AnyRequest], ...] = (
    ProduceRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    FindCoordinatorRequest,
    ApiVersionsRequest,
    CreateTopicsRequest,
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    JoinGroupRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    SaslHandshakeRequest,
    SaslAuthenticateRequest,
    DeleteTopicsRequest,
    DeleteRecordsRequest,
    OffsetForLeaderEpochRequest,
    DescribeConfigsRequest,
    CreatePartitionsRequest,
    DeleteGroupsRequest,
    IncrementalAlterConfigsRequest,
    DescribeClusterRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
#: All requests, each with the response that its type names.
MESSAGES = tuple((request, request.response_class()) for request in REQUESTS)
#: Kafka's headers have no tagged fields yet; a few unknown ones are skipped.
_MAX_HEADER_ELEMENTS = 100
_REQUESTS = {request.api_key: request for request, _ in MESSAGES}
_RESPONSES = {response.api_key: response for _, response in MESSAGES}


def request_class(api_key: ApiKey) -> type[AnyRequest]:
    """Return an API's request class; UnsupportedVersionError if it is not declared."""
    return _find(_REQUESTS, api_key)


def response_class(api_key: ApiKey) -> type[ApiResponse]:
    """Return an API's response class; UnsupportedVersionError if it is not declared."""
    return _find(_RESPONSES, api_key)


def _find(classes: dict[ApiKey, type[_Message]], api_key: ApiKey) -> type[_Message]:
    try:
        return classes[api_key]
    except KeyError:
        raise UnsupportedVersionError(f"the {api_key.name} API is not supported") from None


def encode_request(header: RequestHeader, request: AnyRequest) -> list[Buffer]:
    """Encode a framed request in the header's version; raises the errors of `schema.encode`."""
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

    Raises DecodeError as `decode_request_header` and `schema.decode` do, and
    UnsupportedVersionError if the API or its version is not supported.
    """
    header, body = decode_request_header(frame)
    cls = request_class(ApiKey(header.request_api_key))
    return header, decode(cls, body, header.request_api_version)


def encode_response(correlation_id: int, response: ApiResponse, version: int) -> list[Buffer]:
    """Encode a framed response; raises the errors of `schema.encode`."""
    writer = Writer()
    header = ResponseHeader(correlation_id=correlation_id)
    write_message(writer, header, response_header_version(response.api_key, version))
    write_message(writer, response, version)
    return encode_frame(writer.finish())


def peek_correlation_id(frame: Buffer) -> int:
    """Return a response's correlation id, without decoding the rest.

    Raises DecodeError if the frame is too short.
    """
    return Reader(frame).read_int32()


def decode_response(
    api_key: ApiKey, version: int, frame: Buffer, *, max_elements: int = MAX_ELEMENTS
) -> tuple[int, ApiResponse]:
    """Decode the response to a request of this API and version; return it with its correlation id.

    A broker that does not support the version of an ApiVersions request responds in version 0
    (KIP-511), with UNSUPPORTED_VERSION in `error_code`. Raises DecodeError as `schema.decode` does.
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
