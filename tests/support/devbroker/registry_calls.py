"""Requests to a Schema Registry without sockets, and to a running one."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from spark_kafka_sink.devbroker.registry.rest_api import MEDIA_TYPES, RestApi, RestRequest

TIMEOUT_SECONDS = 120.0


class Answer(NamedTuple):
    """The response to a request: its status and its body, which is text where it is not JSON."""

    status: int
    body: Any


def record(*fields: str, name: str = "Order") -> str:
    """Return the text of a record schema; a field is `name:type`, or `name:type=default`."""
    return json.dumps({"type": "record", "name": name, "fields": [_field(text) for text in fields]})


def _field(text: str) -> dict[str, Any]:
    name, _, rest = text.partition(":")
    kind, has_default, default = rest.partition("=")
    field = {"name": name, "type": kind}
    return {**field, "default": json.loads(default)} if has_default else field


def ask(api: RestApi, line: str, body: Any = None, **headers: str) -> Answer:
    """Return the response to a request, given as its method and target."""
    method, _, target = line.partition(" ")
    request = RestRequest(
        method=method,
        target=target,
        headers=headers,
        body=b"" if body is None else json.dumps(body).encode(),
    )
    response = api.handle(request)
    return Answer(response.status, _decoded(response.body))


def call(url: str, line: str, body: Any = None, **headers: str) -> Answer:
    """Return the response of a running registry to a request."""
    method, _, target = line.partition(" ")
    address = urlsplit(url)
    connection = http.client.HTTPConnection(
        address.hostname or "", address.port, timeout=TIMEOUT_SECONDS
    )
    sent = {"Content-Type": MEDIA_TYPES[0], "Accept": ", ".join(MEDIA_TYPES), **headers}
    try:
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, target, body=content, headers=sent)
        response = connection.getresponse()
        return Answer(response.status, _decoded(response.read()))
    finally:
        connection.close()


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode()
