"""Whole requests and responses, as exchanged by a client and a broker."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from spark_kafka_sink.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.registry import (
    RequestHeader,
    declared_messages,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
    peek_correlation_id,
    request_class,
    request_header_version,
    response_class,
    response_header_version,
)
from tests.support.network.wire_messages import messages, name_of, versions_of

REQUESTS = [request for request, _ in declared_messages()]
RESPONSES = [response for _, response in declared_messages()]
#: An example has a message for each version.
_LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def header_of(api_key: ApiKey, version: int, client_id: str | None = "client") -> RequestHeader:
    return RequestHeader(
        request_api_key=api_key,
        request_api_version=version,
        correlation_id=258,
        client_id=client_id,
    )


def unframed(buffers: list) -> bytes:
    """Join the buffers of a frame, check its size, and return the content."""
    data = b"".join(buffers)
    assert len(data) - 4 == int.from_bytes(data[:4], "big")
    return data[4:]


def test_a_plain_request_equals_handwritten_bytes():
    """A request before the first flexible version has header 1."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    expected = [
        "00000016",  # size
        "0016 0001 00000102",  # API key, version, correlation id
        "0006 636c69656e74",  # client id
        "ffff 00000001",  # no transactional id, timeout
    ]
    buffers = encode_request(header_of(ApiKey.INIT_PRODUCER_ID, 1), request)
    assert bytes.fromhex("".join(expected)) == b"".join(buffers)


def test_a_flexible_request_equals_handwritten_bytes():
    """A flexible request has header 2: the same client id, followed by tags."""
    request = ApiVersionsRequest(client_software_name="n", client_software_version="1")
    expected = [
        "00000016",  # size
        "0012 0003 00000102",  # API key, version, correlation id
        "0006 636c69656e74",  # client id
        "00",  # no tags
        "026e 0231 00",  # name, version, no tags
    ]
    buffers = encode_request(header_of(ApiKey.API_VERSIONS, 3), request)
    assert bytes.fromhex("".join(expected)) == b"".join(buffers)


def test_a_flexible_response_equals_handwritten_bytes():
    """A flexible response has header 1: the correlation id, followed by tags."""
    response = InitProducerIdResponse(producer_id=1000, producer_epoch=0)
    expected = [
        "00000016",  # size
        "00000102 00",  # correlation id, no tags
        "00000000 0000",  # throttle time, error code
        "00000000000003e8 0000 00",  # id, epoch, no tags
    ]
    buffers = encode_response(258, response, 2)
    assert bytes.fromhex("".join(expected)) == b"".join(buffers)


def test_an_api_versions_response_equals_handwritten_bytes():
    """An ApiVersions response has header 0 even when its body is flexible (KIP-511)."""
    response = ApiVersionsResponse(api_keys=(ApiVersion(api_key=18, min_version=0, max_version=4),))
    expected = [
        "00000013",  # size
        "00000102",  # correlation id
        "0000",  # error code
        "02 0012 0000 0004 00",  # one API: key, lowest and highest version, no tags
        "00000000 00",  # throttle time, no tags
    ]
    buffers = encode_response(258, response, 3)
    assert bytes.fromhex("".join(expected)) == b"".join(buffers)


@pytest.mark.parametrize(
    ("api_key", "version", "request_header", "response_header"),
    [
        (ApiKey.PRODUCE, 8, 1, 0),
        (ApiKey.PRODUCE, 9, 2, 1),
        (ApiKey.API_VERSIONS, 2, 1, 0),
        (ApiKey.API_VERSIONS, 3, 2, 0),
        (ApiKey.SASL_HANDSHAKE, 1, 1, 0),
        (ApiKey.DESCRIBE_TRANSACTIONS, 0, 2, 1),
    ],
)
def test_header_versions_follow_from_the_flexible_versions(
    api_key, version, request_header, response_header
):
    """Header versions follow from the API's first flexible version."""
    assert request_header == request_header_version(api_key, version)
    assert response_header == response_header_version(api_key, version)


@pytest.mark.parametrize("message_class", REQUESTS, ids=name_of)
@settings(max_examples=2, deadline=None, suppress_health_check=_LARGE)
@given(data=st.data())
def test_brokers_decode_requests(message_class, data):
    """A broker decodes the header and the request that a client encoded."""
    for version in versions_of(message_class):
        request = data.draw(messages(message_class, version))
        client_id = data.draw(st.none() | st.text(st.characters(codec="utf-8"), max_size=5))
        header = header_of(message_class.api_key, version, client_id)
        assert (header, request) == decode_request(unframed(encode_request(header, request)))


def no_refusal(field_name: str) -> st.SearchStrategy | None:
    """Return a strategy without errors: ApiVersions has another version after a refusal."""
    return st.just(0) if field_name == "error_code" else None


@pytest.mark.parametrize("message_class", RESPONSES, ids=name_of)
@settings(max_examples=2, deadline=None, suppress_health_check=_LARGE)
@given(data=st.data())
def test_clients_decode_responses(message_class, data):
    """A client decodes the correlation id and the response that a broker encoded."""
    for version in versions_of(message_class):
        response = data.draw(messages(message_class, version, no_refusal))
        frame = unframed(encode_response(-5, response, version))
        assert -5 == peek_correlation_id(frame)
        assert (-5, response) == decode_response(message_class.api_key, version, frame)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_an_unsupported_api_versions_version_is_answered_in_version_0(version):
    """A response with UNSUPPORTED_VERSION is decoded in version 0, whatever was requested."""
    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=(ApiVersion(api_key=18, min_version=0, max_version=2),),
    )
    frame = unframed(encode_response(9, response, 0))
    assert (9, response) == decode_response(ApiKey.API_VERSIONS, version, frame)


def test_the_header_of_an_unsupported_version_is_decoded():
    """A broker can decode the header of a request in a version that it does not support."""
    frame = bytes.fromhex("0012 03e7 00000007 0001 63 00 deadbeef")
    header, body = decode_request_header(frame)
    expected = RequestHeader(
        request_api_key=18, request_api_version=999, correlation_id=7, client_id="c"
    )
    assert expected == header
    assert bytes.fromhex("deadbeef") == body
    with pytest.raises(UnsupportedVersionError, match="has versions 0-5, not 999"):
        decode_request(frame)


def test_a_request_of_an_unsupported_api_is_refused():
    """A Kafka API without messages here raises UnsupportedVersionError in every direction."""
    frame = bytes.fromhex("0026 0001 00000007 ffff")  # CreateDelegationToken
    with pytest.raises(
        UnsupportedVersionError, match="the CREATE_DELEGATION_TOKEN API is not supported"
    ):
        decode_request(frame)
    with pytest.raises(
        UnsupportedVersionError, match="the CREATE_DELEGATION_TOKEN API is not supported"
    ):
        decode_response(ApiKey.CREATE_DELEGATION_TOKEN, 0, bytes(8))
    with pytest.raises(
        UnsupportedVersionError, match="the CREATE_DELEGATION_TOKEN API is not supported"
    ):
        request_class(ApiKey.CREATE_DELEGATION_TOKEN)
    with pytest.raises(
        UnsupportedVersionError, match="the CREATE_DELEGATION_TOKEN API is not supported"
    ):
        response_class(ApiKey.CREATE_DELEGATION_TOKEN)


@pytest.mark.parametrize("number", [-1, 93, 0x4745])
def test_a_request_with_an_unknown_key_is_refused(number):
    """An unknown key is a DecodeError, since the header's version is unknown."""
    frame = number.to_bytes(2, "big", signed=True) + bytes(20)
    with pytest.raises(DecodeError, match=f"unknown API key {number}"):
        decode_request(frame)


def test_a_request_in_an_unsupported_version_is_not_encoded():
    """A client cannot send a version that the message does not have."""
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=())
    with pytest.raises(UnsupportedVersionError, match="ProduceRequest has versions 3-13"):
        encode_request(header_of(ApiKey.PRODUCE, 2), request)


@pytest.mark.parametrize("length", range(4))
def test_a_response_too_short_for_its_correlation_id_is_refused(length):
    """A response of fewer than four bytes is a DecodeError."""
    with pytest.raises(DecodeError):
        peek_correlation_id(bytes(length))
    with pytest.raises(DecodeError):
        decode_response(ApiKey.METADATA, 1, bytes(length))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda tail: b"\0\x12\0\3" + tail))
def test_garbage_is_decoded_to_a_request_or_refused(garbage):
    """A broker decodes any bytes to a request or raises one of the two errors."""
    with contextlib.suppress(DecodeError, UnsupportedVersionError):
        decode_request(garbage)


@pytest.mark.parametrize(
    ("api_key", "versions"),
    [(response.api_key, response.versions) for _, response in declared_messages()],
)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_garbage_is_decoded_to_a_response_or_refused(api_key, versions, data):
    """A client decodes any bytes to a response or raises DecodeError."""
    version = data.draw(st.integers(versions.min, versions.max))
    garbage = data.draw(st.binary(max_size=60))
    try:
        correlation_id, _ = decode_response(api_key, version, garbage)
    except DecodeError:
        return
    assert peek_correlation_id(garbage) == correlation_id


def test_requests_and_responses_are_paired():
    """Each pair has one API key and the same versions, and can be looked up by the key."""
    for request, response in declared_messages():
        assert (request.api_key, request.versions) == (response.api_key, response.versions)
        assert request.api_key.flexible_from == request.flexible_from == response.flexible_from
        assert request is request_class(request.api_key)
        assert response is response_class(request.api_key)


def test_the_repr_of_a_sasl_authenticate_request_shows_no_secret():
    """The bytes may contain a password, so the repr has only their length."""
    request = SaslAuthenticateRequest(auth_bytes=b"\0alice\0planted-secret")
    assert "SaslAuthenticateRequest(auth_bytes=[21 bytes hidden])" == repr(request)
