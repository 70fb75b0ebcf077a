"""Requests of HTTP/1.1 from bytes, and responses as bytes."""

from __future__ import annotations

import itertools
from contextlib import suppress
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.registry.http_message import (
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    MalformedRequestError,
    RequestReceiver,
    encode_response,
)
from spark_kafka_sink.devbroker.registry.rest_api import RestRequest, RestResponse

GET = b"GET /subjects?deleted=true HTTP/1.1\r\nHost: a\r\nAccept: b\r\naccept: c\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED_HEAD = b"PUT /y HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = CHUNKED_HEAD + b"3;x=1\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
PARSED = [
    RestRequest(
        method="GET",
        target="/subjects?deleted=true",
        headers={"host": "a", "accept": "b, c"},
    ),
    RestRequest(method="POST", target="/x", headers={"content-length": "5"}, body=b"hello"),
    RestRequest(method="PUT", target="/y", headers={"transfer-encoding": "chunked"}, body=b"hello"),
]


def received(*pieces):
    """Return the requests of bytes that arrive in pieces."""
    receiver = RequestReceiver()
    requests = []
    for piece in pieces:
        receiver.receive(piece)
        while (request := receiver.next_request()) is not None:
            requests.append(request)
    return requests


def test_requests_follow_each_other():
    """Requests that arrive together are returned one after the other."""
    assert PARSED == received(GET + POST + CHUNKED)


@given(cuts=st.lists(st.integers(0, len(GET + POST + CHUNKED)), max_size=8))
def test_requests_may_arrive_in_any_pieces(cuts):
    """Where the bytes are cut has no meaning."""
    data = GET + b"\r\n" + POST + CHUNKED
    places = [0, *sorted(cuts), len(data)]
    assert PARSED == received(*(data[a:b] for a, b in itertools.pairwise(places)))


def test_requests_may_arrive_byte_by_byte():
    """A request is complete with its last byte."""
    data = GET + POST + CHUNKED
    assert PARSED == received(*(data[i : i + 1] for i in range(len(data))))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_a_client_says_whether_it_sends_more(data, expected):
    """HTTP/1.1 keeps connections open unless told otherwise, HTTP/1.0 only if told so."""
    receiver = RequestReceiver()
    receiver.receive(data)
    receiver.next_request()
    assert expected == receiver.keeps_alive


def test_a_client_may_wait_before_it_sends_the_body():
    """A request with Expect is continued once."""
    receiver = RequestReceiver()
    receiver.receive(b"PUT / HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert None is receiver.next_request()
    assert [True, False] == [receiver.take_continue(), receiver.take_continue()]
    receiver.receive(b"{}")
    request = receiver.next_request()
    assert b"{}" == request.body
    assert not receiver.is_partial


def test_a_target_may_name_the_server():
    """A target with scheme and host, as a client sends it to a proxy, is a path without them."""
    (request,) = received(b"GET http://registry:8081/subjects HTTP/1.1\r\n\r\n")
    assert ("/subjects", ("subjects",)) == (request.target, request.segments)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/2.0\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /\x80 HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET subjects HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", HTTPStatus.BAD_REQUEST),
        # At once, since a client of TLS waits for the answer.
        (b"\x16", HTTPStatus.BAD_REQUEST),
        (b"\r\n\x16", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nA : b\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nA: \x00\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            HTTPStatus.BAD_REQUEST,
        ),
        (
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            HTTPStatus.BAD_REQUEST,
        ),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (CHUNKED_HEAD + b"x\r\n", HTTPStatus.BAD_REQUEST),
        (CHUNKED_HEAD + b"3\r\nhello", HTTPStatus.BAD_REQUEST),
        (CHUNKED_HEAD + b"0\r\nTrailer: a\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (CHUNKED_HEAD + b"1;" + b"x" * 256, HTTPStatus.BAD_REQUEST),
        (CHUNKED_HEAD + b"\r\n", HTTPStatus.BAD_REQUEST),
        (CHUNKED_HEAD + b"ffffffff\r\n", HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
        (
            b"GET / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1),
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        ),
        (
            b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        ),
        (b"a" * (MAX_HEAD_BYTES + 1), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
        (
            b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n",
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        ),
    ],
)
def test_what_is_not_clear_is_refused(data, status):
    """A message that is malformed, ambiguous or too large is refused with a status."""
    with pytest.raises(MalformedRequestError) as refused:
        received(data)
    assert status == refused.value.status


@given(st.binary(max_size=200))
def test_any_bytes_are_requests_or_refused(data):
    """Garbage raises MalformedRequestError and nothing else."""
    for prefix in (b"", b"GET / HTTP/1.1\r\n", CHUNKED_HEAD):
        with suppress(MalformedRequestError):
            received(prefix + data)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"closes": False},
            b"keep-alive\r\n\r\n{}",
        ),
        (
            {"closes": True, "without_body": True, "challenge": "Basic"},
            b"close\r\nWWW-Authenticate: Basic\r\n\r\n",
        ),
    ],
)
def test_a_response_is_written(options, expected):
    """A response has a length, says whether the connection ends, and may ask for credentials."""
    response = RestResponse(status=404, body=b"{}", content_type="a/b")
    head = b"HTTP/1.1 404 Not Found\r\nContent-Type: a/b\r\nContent-Length: 2\r\nConnection: "
    assert head + expected == encode_response(response, **options)


def test_an_unknown_status_has_a_reason_too():
    """A fault may have a status that nobody has defined."""
    encoded = encode_response(RestResponse(status=599, body=b""), closes=True)
    assert encoded.startswith(b"HTTP/1.1 599 Unknown\r\n")
