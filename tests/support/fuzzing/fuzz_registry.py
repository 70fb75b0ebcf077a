"""Fuzz targets for a Schema Registry: the responses that a client gets, and the requests to one."""

from __future__ import annotations

import contextlib
import http.client
import json
import struct
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from urllib.parse import quote

from spark_kafka_sink.config.registry_settings import RegistrySettings
from spark_kafka_sink.devbroker.registry.http_message import (
    MalformedRequestError,
    RequestReceiver,
    encode_response,
)
from spark_kafka_sink.devbroker.registry.rest_api import ROUTES, RestApi
from spark_kafka_sink.devbroker.registry.schema_store import decode_state, encode_state
from spark_kafka_sink.errors import SchemaError, SchemaRegistryError
from spark_kafka_sink.formats.avro.schema import parse_schema
from spark_kafka_sink.network import http_client
from spark_kafka_sink.registry.client import SchemaRegistryClient
from spark_kafka_sink.registry.schemas import Direction
from tests.support.formats.avro_cases import make_case
from tests.support.fuzzing.fuzz_client import LONGEST_MESSAGE, SECRET
from tests.support.fuzzing.random_bytes import changed

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from spark_kafka_sink.devbroker.registry.registry_state import RegistryState
    from spark_kafka_sink.registry.schemas import RegisteredSchema

#: The schemas are made from this many seeds, so that requests meet those of others.
_SCHEMAS = 50
#: The number of inputs after which the registry is replaced: it keeps all that it is given.
_INPUTS_PER_REGISTRY = 200
_SUBJECTS = ("a", "b-value", ":.c:a", "ü/ 1", "")
_NUMBERS = ("1", "2", "-1", "0", "latest", "2147483647", "2147483648", "x", "100000")
_FLAGS = ("normalize", "deleted", "permanent", "verbose", "deletedOnly", "defaultToGlobal", "force")
_LEVELS = ("BACKWARD", "FULL_TRANSITIVE", "NONE", "FORWARD", "other", None, 1)
_STATUSES = (*[200] * 12, 404, 409, 422, 500, 301, 204, 100, 999)


#: The route that most of the others need to have been called.
_REGISTER = next(each for each in ROUTES if each.method == "POST" and "versions" in each.path)


@cache
def _text(seed: int) -> str:
    case = make_case(seed // 2, payloads=0)
    return case.writer if seed % 2 else case.reader


def _any_text(random_: random.Random) -> str:
    made = _text(random_.randrange(_SCHEMAS))
    return random_.choice((made, made, made, '"int"', '{"type": "A"}', "{", ""))


def _reference(random_: random.Random) -> dict[str, Any]:
    name = random_.choice(("A", "A", "B.C", "", None))
    subject = random_.choice(("a", "b-value", random_.choice(_SUBJECTS)))
    return {"name": name, "subject": subject, "version": random_.choice((1, 1, 2, -1))}


def _rule_set(random_: random.Random) -> dict[str, Any]:
    mode = random_.choice(("READ", "WRITE", "UPGRADE", "other", None))
    rule = {"name": "r", "kind": "TRANSFORM", "type": "ENCRYPT", "mode": mode}
    return {random_.choice(("domainRules", "migrationRules")): [rule]}


class RegistryClientTarget:
    """Responses of HTTP to a client, each preceded by its size; the first byte chooses the call."""

    name = "registryclient"

    def __init__(self) -> None:
        """Set up a client that does not try again."""
        url = f"http://me:{SECRET}@localhost:1"
        self._settings = RegistrySettings.from_mapping({"url": url, "max.retries": "0"})

    def make(self, random_: random.Random) -> bytes:
        """Return several responses, most of them mutated somewhere."""
        responses = []
        for _ in range(random_.choice((1, 1, 3))):
            body = json.dumps(self._value(random_)).encode()
            if random_.random() < 0.3:
                body = changed(random_, body)
            response = (
                b"HTTP/1.1 %d Reason\r\nContent-Length: %d\r\n\r\n"
                % (random_.choice(_STATUSES), len(body))
            ) + body
            responses.append(changed(random_, response) if random_.random() < 0.2 else response)
        return random_.randbytes(1) + b"".join(
            struct.pack(">H", len(response)) + response for response in responses
        )

    def _value(self, random_: random.Random) -> Any:
        if random_.random() < 0.2:
            message = random_.choice(("no", f"of {SECRET}", "x" * 20_000, 7))
            return {"error_code": random_.choice((40401, 40403, -1, "x", None)), "message": message}
        good = {
            "subject": "a",
            "version": 1,
            "id": 1,
            "schema": _any_text(random_),
            "references": [_reference(random_)] * random_.choice((0, 0, 1, 2)),
            "is_compatible": False,
            "messages": ["no"],
        }
        odd = {
            "subject": random_.choice(_SUBJECTS),
            "version": random_.choice((2, 0, -1, "1", 2**31)),
            "id": random_.choice((2, 0, -1, None, 2**31 - 1, 2**31)),
            "schemaType": random_.choice(("AVRO", "PROTOBUF", None)),
            "ruleSet": random_.choice((None, _rule_set(random_))),
            "is_compatible": random_.choice((True, 1)),
            "messages": random_.choice(([], "no", [7])),
        }
        value = good | {name: odd[name] for name in odd if random_.random() < 0.1}
        return [value] if random_.random() < 0.05 else value

    def take(self, data: bytes) -> None:
        """Make a call, and parse the schema that it returns."""
        responses = _split(data[1:])
        client = SchemaRegistryClient(self._settings)

        def connection(*_: object) -> http.client.HTTPConnection:
            return _Answered(next(responses, b""))

        with patch.object(http_client, "_connection", connection):
            try:
                schema = _calls(client)[(data[0] if data else 0) % 6]()
            except SchemaRegistryError as error:
                _check_message(str(error))
                return
        if schema is None:
            return
        try:
            schema.check_rules(Direction.READ)
            parse_schema(schema.text, tuple(each.text for each in schema.dependencies))
        except (SchemaError, SchemaRegistryError) as error:
            _check_message(str(error))


def _calls(client: SchemaRegistryClient) -> list[Callable[[], RegisteredSchema | None]]:
    return [
        lambda: client.schema_by_id(1, "a"),
        lambda: client.latest_schema("a"),
        lambda: client.schema_version("a", 1),
        lambda: client.look_up("a", '"int"'),
        lambda: client.register("a", '"int"'),
        lambda: _checked(client),
    ]


def _checked(client: SchemaRegistryClient) -> None:
    for message in client.test_compatibility("a", '"int"').messages:
        _check_message(message)


def _check_message(message: str) -> None:
    if SECRET in message:
        raise RuntimeError("a message with the password")
    if len(message) > LONGEST_MESSAGE:
        raise RuntimeError(f"a message of {len(message)} characters")


class _Answered(http.client.HTTPConnection):
    """A connection that has the response already."""

    def __init__(self, response: bytes) -> None:
        super().__init__("localhost", 1)
        self._response = response

    def connect(self) -> None:
        """Connect to nothing."""
        self.sock = _Socket(self._response)  # type: ignore[assignment]


class _Socket:
    """As much of a socket as a request needs."""

    def __init__(self, response: bytes) -> None:
        self._response = response

    def settimeout(self, _: float) -> None:
        """Do nothing: the response is there."""

    def sendall(self, _: bytes) -> None:
        """Send to nobody."""

    def recv_into(self, buffer: Any) -> int:
        """Return the next bytes of the response; none at its end."""
        piece = self._response[: len(buffer)]
        self._response = self._response[len(piece) :]
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        """Close nothing."""


def _split(data: bytes) -> Iterator[bytes]:
    while len(data) >= 2:
        (size,) = struct.unpack_from(">H", data)
        yield data[2 : 2 + size]
        data = data[2 + size :]


class RegistryTarget:
    """Requests of HTTP to the embedded registry, without sockets.

    The first byte is the size of the pieces in which they arrive.
    """

    name = "registry"

    def __init__(self) -> None:
        """Create the first registry."""
        self._inputs = 0
        self._renew()

    def _renew(self) -> None:
        self._api = RestApi(store=_check_stored)

    def make(self, random_: random.Random) -> bytes:
        """Return several requests, some of them mutated."""
        requests = [self._request(random_) for _ in range(random_.choice((1, 2, 4)))]
        return random_.randbytes(1) + b"".join(
            changed(random_, request) if random_.random() < 0.3 else request for request in requests
        )

    def _request(self, random_: random.Random) -> bytes:
        route = random_.choice(ROUTES)
        if random_.random() < 0.4:
            route = next(
                each for each in ROUTES if each.method == "POST" and "versions" in each.path
            )
        parts = [_part(random_, part) for part in route.path]
        if random_.random() < 0.1:
            parts = ["contexts", ".c", *parts]
        flags = [
            f"{flag}={random_.choice(('true', 'false', 'x', ''))}"
            for flag in _FLAGS
            if random_.random() < 0.2
        ]
        target = f"/{'/'.join(parts)}?{'&'.join(flags)}"
        body = b"" if route.method in {"GET", "DELETE"} else self._body(random_)
        if body and random_.random() < 0.2:
            body = changed(random_, body)
        if random_.random() < 0.2:
            framed = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            framed = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        return f"{route.method} {target} HTTP/1.1\r\nHost: a\r\n".encode() + framed

    def _body(self, random_: random.Random) -> bytes:
        value = {
            "schema": _any_text(random_),
            "schemaType": random_.choice(("AVRO", None, "JSON")),
            "references": [_reference(random_)] * random_.choice((0, 0, 1)),
            "ruleSet": random_.choice((None, _rule_set(random_))),
            "metadata": random_.choice((None, {"properties": {"a": "b"}})),
            "id": random_.choice((1, -1, 7)),
            "version": random_.choice((1, -1, 3)),
            "compatibility": random_.choice(_LEVELS),
            "compatibilityGroup": random_.choice((None, "g", 1)),
            "normalize": random_.choice((True, None, "x")),
            "mode": random_.choice(("READWRITE", "READONLY", "IMPORT", "x")),
        }
        chosen = {name: each for name, each in value.items() if random_.random() < 0.6}
        return json.dumps({"schema": value["schema"], **chosen}).encode()

    def take(self, data: bytes) -> None:
        """Handle the requests until one is malformed."""
        self._inputs += 1
        if self._inputs % _INPUTS_PER_REGISTRY == 0:
            self._renew()
        receiver = RequestReceiver()
        size = max(1, data[0] if data else 1)
        with contextlib.suppress(MalformedRequestError):
            for start in range(1, len(data), size):
                receiver.receive(data[start : start + size])
                while (request := receiver.next_request()) is not None:
                    encode_response(self._api.handle(request), closes=not receiver.keeps_alive)


def _part(random_: random.Random, part: str) -> str:
    if not part.startswith("{"):
        return part
    return quote(random_.choice(_SUBJECTS if part == "{subject}" else _NUMBERS), safe="")


def _check_stored(state: RegistryState) -> None:
    """Raise RuntimeError unless what is stored is the same state when it is read."""
    if decode_state(encode_state(state)) != state:
        raise RuntimeError("another state was stored")
