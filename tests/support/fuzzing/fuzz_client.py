"""Fuzz targets for what a client reads first from a broker: frames, and the SASL exchange."""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.devbroker.net.sasl_servers import ScramServer, scram_credential
from spark_kafka_sink.errors import AuthenticationError, DecodeError, NetworkError
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.authentication.sasl_authenticator import (
    AuthenticationState,
    SaslAuthenticator,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.frame import FrameDecoder
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeResponse
from spark_kafka_sink.protocol.registry import decode_response, encode_response
from spark_kafka_sink.security.kerberos import GssapiClient
from spark_kafka_sink.security.login import PlainClient
from spark_kafka_sink.security.oauth_bearer import OAuthBearerClient, read_token
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.scram import ScramClient
from tests.support.devbroker.broker_requests import NOW
from tests.support.fuzzing.random_bytes import changed

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from spark_kafka_sink.security.sasl import SaslClient

SECRET = "planted-secret"  # noqa: S105 - not a real secret
NODE = Node(1, "broker", 9092)
MECHANISMS = tuple(SaslMechanism)
#: An error message longer than this must contain text whose length the broker chose.
LONGEST_MESSAGE = 10_000
_CREDENTIALS = {
    mechanism: scram_credential(mechanism, SECRET, salt=b"salt", iterations=4096)
    for mechanism in (SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512)
}
_VERSIONS = {ApiKey.SASL_HANDSHAKE: 1, ApiKey.SASL_AUTHENTICATE: 2}
_MOST_FRAME_BYTES = 1_000


class FrameTarget:
    """Bytes from a connection, received in pieces; the first byte determines their size."""

    name = "frame"

    def make(self, random_: random.Random) -> bytes:
        """Return a stream of mutated frames."""
        sizes = [random_.choice((0, 1, 5, 300, _MOST_FRAME_BYTES)) for _ in range(3)]
        frames = b"".join(struct.pack(">i", size) + random_.randbytes(size) for size in sizes)
        return random_.randbytes(1) + changed(random_, frames)

    def take(self, data: bytes) -> None:
        """Decode the stream whole and in pieces, and check that the results are the same."""
        stream = data[1:]
        whole = _cut([stream])
        size = 1 + (data[0] if data else 0)
        pieces = _cut([stream[at : at + size] for at in range(0, len(stream), size)])
        if whole != pieces:
            raise RuntimeError(f"{whole} at once, {pieces} in pieces of {size}")


def _cut(pieces: list[bytes]) -> tuple[list[bytes], str]:
    decoder = FrameDecoder(_MOST_FRAME_BYTES)
    frames: list[bytes] = []
    for piece in pieces:
        decoder.receive_data(piece)
        try:
            while (frame := decoder.next_frame()) is not None:
                frames.append(bytes(frame))
        except DecodeError as error:
            return frames, str(error)
    return frames, ""


class EveryContext:
    """A GSSAPI context that accepts any token, so that only the SASL exchange is tested."""

    is_mutual = True

    def __init__(self) -> None:
        """Create a context that is not established yet."""
        self.is_established = False

    def step(self, token: bytes) -> bytes | None:
        """Return the token's rest; a token without a leading dot establishes the context."""
        self.is_established = not token.startswith(b".")
        return token[1:]

    def unwrap(self, message: bytes) -> bytes:
        """Return the message unchanged."""
        return message

    def wrap(self, message: bytes) -> bytes:
        """Return the message unchanged."""
        return message


def sasl_client(mechanism: SaslMechanism) -> SaslClient:
    """Create a client whose messages are always the same."""
    match mechanism:
        case SaslMechanism.PLAIN:
            return PlainClient("alice", SECRET)
        case SaslMechanism.OAUTHBEARER:
            return OAuthBearerClient(read_token(SECRET))
        case SaslMechanism.GSSAPI:
            return GssapiClient(EveryContext(), b"first", principal="alice", service="kafka/b")
        case _:
            return ScramClient(mechanism, "alice", SECRET, nonce="fuzz")


@cache
def whole_exchange(mechanism: SaslMechanism) -> tuple[Any, ...]:
    """Return the responses of a broker that authenticates the client."""
    return tuple(_answers(mechanism))


def _answers(mechanism: SaslMechanism) -> Iterator[Any]:
    yield SaslHandshakeResponse(mechanisms=(mechanism,))
    match mechanism:
        case SaslMechanism.SCRAM_SHA_256 | SaslMechanism.SCRAM_SHA_512:
            client = sasl_client(mechanism)
            server = ScramServer(mechanism, {"alice": _CREDENTIALS[mechanism]}.get, nonce="server")
            first = server.evaluate_response(client.initial_response(), NOW)
            yield SaslAuthenticateResponse(auth_bytes=first)
            answer = client.evaluate_challenge(first)
            final = server.evaluate_response(answer or b"", NOW)
            yield SaslAuthenticateResponse(auth_bytes=final, session_lifetime_ms=60_000)
        case SaslMechanism.GSSAPI:
            for token in (b".more", b"last", b"\x07\x00\x10\x00", b""):
                yield SaslAuthenticateResponse(auth_bytes=token)
        case _:
            yield SaslAuthenticateResponse()


class ClientSaslTarget:
    """A broker's side of a SASL exchange: a mechanism, then responses with their sizes."""

    name = "client_sasl"

    def make(self, random_: random.Random) -> bytes:
        """Return an exchange that succeeds or fails, with some of its frames mutated."""
        index = random_.randrange(len(MECHANISMS))
        answers = list(whole_exchange(MECHANISMS[index]))
        if random_.random() < 0.3:
            answers[random_.randrange(1, len(answers))] = SaslAuthenticateResponse(
                error_code=random_.choice((58, 34, 35, -1, 7)), error_message=f"no: {SECRET}"
            )
        return bytes((index,)) + b"".join(_framed(random_, answer) for answer in answers)

    def take(self, data: bytes) -> None:
        """Run the exchange; check that errors contain no secret and have a bounded length."""
        client = sasl_client(MECHANISMS[(data[0] if data else 0) % len(MECHANISMS)])
        authenticator = SaslAuthenticator(client, NODE)
        authenticator.begin()
        api_key, request = ApiKey.SASL_HANDSHAKE, None
        try:
            for frame in _frames(data[1:]):
                answer = decode_response(api_key, _VERSIONS[api_key], bytearray(frame))[1]
                request = authenticator.receive(answer)
                if request is None:
                    break
                api_key = ApiKey.SASL_AUTHENTICATE
        except (AuthenticationError, NetworkError) as error:
            if client.secret and client.secret in str(error):
                raise RuntimeError("the error shows the secret") from error
            if len(str(error)) > LONGEST_MESSAGE:
                raise RuntimeError(f"{len(str(error))} characters in the error") from error
        except DecodeError:
            pass
        if authenticator.state is AuthenticationState.COMPLETE and not client.is_complete:
            raise RuntimeError("the client is authenticated, although it had not finished")


def _framed(random_: random.Random, answer: Any) -> bytes:
    frame = b"".join(encode_response(7, answer, _VERSIONS[answer.api_key]))[4:]
    frame = changed(random_, frame) if random_.random() < 0.4 else frame
    return struct.pack(">H", len(frame)) + frame


def _frames(data: bytes) -> Iterator[bytes]:
    position = 0
    while position + 2 <= len(data):
        (size,) = struct.unpack_from(">H", data, position)
        position += 2
        yield data[position : position + size]
        position += size
