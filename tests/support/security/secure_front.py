"""A listener with TLS and SASL before an embedded broker that has neither, for inspection.

It treats a connection as Kafka does: TLS first; then only ApiVersions and SASL until the client is
authenticated; reauthentication when the session expires (KIP-368), after which any other request
ends the connection. All other requests go to the broker behind it, one at a time as in Kafka, and
the responses name this listener in place of brokers. It records what it observes.

The embedded broker has secured listeners of its own; this one can also misbehave, and can be
changed between two connections.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from spark_kafka_sink.devbroker.net.sasl_servers import Credentials, SaslRefusedError, ScramServer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.api_versions import ApiVersion
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeResponse
from spark_kafka_sink.protocol.registry import (
    decode_request,
    decode_request_header,
    decode_response,
    encode_response,
)
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.scram import MIN_ITERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.security.certificates import Certificate


_SASL_APIS = (
    ApiVersion(api_key=ApiKey.SASL_HANDSHAKE, min_version=0, max_version=1),
    ApiVersion(api_key=ApiKey.SASL_AUTHENTICATE, min_version=0, max_version=2),
)


class Hangup(Exception):  # noqa: N818 - not an error
    """The listener ends the connection."""


@dataclass
class SaslRules:
    """The rules for authentication, and the lifetime of sessions."""

    mechanisms: tuple[str, ...] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
    users: Mapping[str, str] = field(default_factory=dict)
    accepts_token: Callable[[str], bool] = lambda _: True
    #: 0 means that sessions do not expire.
    session_ms: int = 0
    #: Returns the error message of a refusal, given the client's message.
    message: Callable[[bytes], str] = lambda _: "Authentication failed: nobody knows this user"
    #: Whether the mechanism's last message proves that the listener knows the password.
    honest: bool = True


def server_context(
    certificate: Certificate, *, trusted: str | None = None, required: bool = True
) -> ssl.SSLContext:
    """Create a server's context; with `trusted` (PEM) it requests client certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.chain_file, certificate.key_file)
    if trusted is not None:
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=trusted)
    return context


class SecureFront:
    """The listener; a context manager. `tls` and `sasl` can be replaced between connections."""

    def __init__(
        self,
        backend: str,
        *,
        tls: ssl.SSLContext | None = None,
        sasl: SaslRules | None = None,
        host: str = "localhost",
    ) -> None:
        """Create a listener before `backend` (host:port) that is advertised as `host`."""
        self.tls = tls
        self.sasl = sasl
        self.host = host
        self._backend = backend.rsplit(":", 1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        self.port = self._server.getsockname()[1]
        self._writers: set[asyncio.StreamWriter] = set()
        #: The connections, each with its socket.
        self._tasks: dict[asyncio.Task[None], socket.socket] = {}
        #: Mechanism and user of each successful exchange, in order.
        self.authenticated: list[tuple[str, str]] = []
        #: The client messages of OAUTHBEARER.
        self.tokens: list[str] = []
        #: The number of connections, and of refused exchanges.
        self.connections = 0
        self.refused = 0
        #: Violations of the protocol for which Kafka ends the connection.
        self.violations: list[str] = []
        #: The common names of client certificates.
        self.client_names: list[str] = []
        self.cipher_names: list[tuple[str, str]] = []

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients."""
        return f"{self.host}:{self.port}"

    def __enter__(self) -> Self:
        """Start accepting connections."""
        self._thread.start()
        # Not asyncio's own server: it loses a client that it has just accepted if it is closed.
        self._loop.call_soon_threadsafe(self._loop.add_reader, self._server, self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening, and end all connections."""
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def hang_up(self) -> None:
        """End all connections, and continue listening."""
        self._run(self._hang_up())

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)

    async def _hang_up(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _close(self) -> None:
        self._loop.remove_reader(self._server)
        self._server.close()
        await self._hang_up()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        with suppress(OSError):  # if the client has gone
            client, _ = self._server.accept()
            client.setblocking(False)
            # asyncio does this only for sockets that name their protocol, which accepted ones do
            # not. Without it, the second of two responses waits for an acknowledgement, 40 ms.
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._serve(client))
            self._tasks[task] = client
            # This also runs for a task that was cancelled before it began.
            task.add_done_callback(lambda done: self._tasks.pop(done).close())

    async def _serve(self, client: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, client)
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        self._writers.add(writer)
        self.connections += 1
        try:
            stream: Any = _PlainStream(reader, writer)
            if self.tls is not None:
                stream = _TlsStream(reader, writer, self.tls)
                self._note_tls(await stream.handshake())
            await _Conversation(self, self.sasl, stream).run()
        except (OSError, asyncio.IncompleteReadError, Hangup, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    def _note_tls(self, tls: ssl.SSLObject) -> None:
        self.cipher_names.append((tls.version() or "", (tls.cipher() or ("",))[0]))
        for part in (tls.getpeercert() or {}).get("subject", ()):
            self.client_names += [value for name, value in part if name == "commonName"]

    async def connect_backend(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to the broker."""
        host, port = self._backend
        return await asyncio.open_connection(host, int(port))


class _PlainStream:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def readexactly(self, count: int) -> bytes:
        return await self._reader.readexactly(count)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


class _TlsStream:
    """A TLS stream that, unlike asyncio's, sends an alert if the handshake fails, as Kafka does."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext
    ) -> None:
        self._plain = _PlainStream(reader, writer)
        self._reader = reader
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._received = bytearray()

    async def handshake(self) -> ssl.SSLObject:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._plain.send(self._outgoing.read())
                await self._receive()
            except ssl.SSLError:
                await self._plain.send(self._outgoing.read())
                raise
            else:
                await self._plain.send(self._outgoing.read())
                return self._tls

    async def _receive(self) -> None:
        data = await self._reader.read(65_536)
        if not data:
            raise Hangup
        self._incoming.write(data)

    async def readexactly(self, count: int) -> bytes:
        while len(self._received) < count:
            try:
                data = self._tls.read(65_536)
            except ssl.SSLWantReadError:
                await self._receive()
            else:
                if not data:
                    raise Hangup
                self._received += data
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    async def send(self, data: bytes) -> None:
        self._tls.write(data)
        await self._plain.send(self._outgoing.read())


class _Conversation:
    def __init__(
        self,
        front: SecureFront,
        sasl: SaslRules | None,
        stream: _PlainStream | _TlsStream,
    ) -> None:
        self._front, self._sasl = front, sasl
        self._stream = stream
        self._is_known = sasl is None
        self._session_ends_at: float | None = None
        self._exchange: _Exchange | None = None

    async def run(self) -> None:
        behind, before = await self._front.connect_backend()
        try:
            while True:
                frame = await _frame(self._stream)
                answer = self._answer(frame)
                if answer is None:
                    before.write(struct.pack(">i", len(frame)) + frame)
                    if _wants_no_answer(frame):
                        continue
                    answer = self._rewritten(frame, await _frame(behind))
                await self._stream.send(answer)
        finally:
            before.close()

    def _answer(self, frame: bytes) -> bytes | None:
        """Return the listener's own response, or None if the request is for the broker."""
        header, _ = decode_request_header(frame)
        key = header.request_api_key
        if key == ApiKey.SASL_HANDSHAKE:
            _, request = decode_request(frame)
            return _encoded(header, self._handshake(request.mechanism))
        if key == ApiKey.SASL_AUTHENTICATE:
            _, request = decode_request(frame)
            return _encoded(header, self._authenticate(request.auth_bytes))
        if self._exchange is not None:
            self._violated(f"{ApiKey(key).name} in the middle of an authentication")
        if key == ApiKey.API_VERSIONS:
            return None
        if not self._is_known:
            self._violated(f"{ApiKey(key).name} before the authentication")
        if self._session_ends_at is not None and self._now() > self._session_ends_at:
            self._violated(f"{ApiKey(key).name} after the end of the session")
        return None

    def _violated(self, what: str) -> None:
        self._front.violations.append(what)
        raise Hangup

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _handshake(self, mechanism: str) -> SaslHandshakeResponse:
        if self._sasl is None:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        if mechanism not in self._sasl.mechanisms:
            return SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=self._sasl.mechanisms
            )
        self._exchange = _Exchange(mechanism, self._sasl)
        return SaslHandshakeResponse(mechanisms=self._sasl.mechanisms)

    def _authenticate(self, said: bytes) -> SaslAuthenticateResponse:
        exchange = self._exchange
        if exchange is None or self._sasl is None:
            return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        answer = exchange.evaluate(said)
        if answer is None:
            self._front.refused += 1
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message=self._sasl.message(said),
            )
        lifetime = 0
        if exchange.is_complete:
            self._exchange = None
            self._is_known = True
            lifetime = self._sasl.session_ms
            self._session_ends_at = self._now() + lifetime / 1000 if lifetime else None
            self._front.authenticated.append((exchange.mechanism, exchange.user))
            self._front.tokens += exchange.tokens
        return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=lifetime)

    def _rewritten(self, request: bytes, answer: bytes) -> bytes:
        """Replace brokers in a response with this listener."""
        header, _ = decode_request_header(request)
        key, version = ApiKey(header.request_api_key), header.request_api_version
        here = {"host": self._front.host, "port": self._front.port}
        if key is ApiKey.API_VERSIONS:
            _, response = decode_response(key, version, memoryview(answer))
            return _encoded(header, replace(response, api_keys=(*response.api_keys, *_SASL_APIS)))
        if key in {ApiKey.METADATA, ApiKey.FIND_COORDINATOR}:
            _, response = decode_response(key, version, memoryview(answer))
            if key is ApiKey.METADATA:
                response = replace(
                    response, brokers=tuple(replace(it, **here) for it in response.brokers)
                )
            elif response.coordinators:
                response = replace(
                    response,
                    coordinators=tuple(replace(it, **here) for it in response.coordinators),
                )
            else:
                response = replace(response, **here)
            return _encoded(header, response)
        return struct.pack(">i", len(answer)) + answer


class _Exchange:
    """One exchange of a mechanism, from the listener's side."""

    def __init__(self, mechanism: str, rules: SaslRules) -> None:
        self.mechanism = mechanism
        self._rules = rules
        self.user = ""
        self.is_complete = False
        self.tokens: list[str] = []
        self._scram: ScramServer | None = None
        self._refused_token = False

    def evaluate(self, said: bytes) -> bytes | None:
        """Return the response, or None to refuse."""
        if self.mechanism == "PLAIN":
            return self._plain(said)
        if self.mechanism == "OAUTHBEARER":
            return self._bearer(said)
        return self._scram_message(said)

    def _plain(self, said: bytes) -> bytes | None:
        _, self.user, password = said.decode().split("\0")
        self.is_complete = self._rules.users.get(self.user) == password
        return b"" if self.is_complete else None

    def _bearer(self, said: bytes) -> bytes | None:
        if self._refused_token:
            return None
        header, *pairs, end, rest = said.decode().split("\x01")
        assert ("n,,", "", "") == (header, end, rest)
        token = dict(pair.split("=", 1) for pair in pairs)["auth"].removeprefix("Bearer ")
        if not self._rules.accepts_token(token):
            self._refused_token = True
            return b'{"status":"invalid_token"}'
        self.tokens.append(said.decode())
        payload = token.split(".")[1] if token.count(".") == 2 else ""
        self.user = json.loads(base64.urlsafe_b64decode(payload + "==") or "{}").get("sub", "")
        self.is_complete = True
        return b""

    def _scram_message(self, said: bytes) -> bytes | None:
        if self._scram is None:
            credentials = Credentials(self._rules.users, iterations=MIN_ITERATIONS)
            mechanism = SaslMechanism(self.mechanism)
            self._scram = ScramServer(mechanism, partial(credentials.scram, mechanism))
        try:
            answer = self._scram.evaluate_response(said, 0.0)
        except SaslRefusedError:
            return None
        self.user, self.is_complete = self._scram.user, self._scram.is_complete
        if self.is_complete and not self._rules.honest:
            return b"v=" + base64.b64encode(bytes(32))
        return answer


def _wants_no_answer(frame: bytes) -> bool:
    header, _ = decode_request_header(frame)
    return header.request_api_key == ApiKey.PRODUCE and decode_request(frame)[1].acks == 0


async def _frame(reader: Any) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    if not 0 <= size <= 1 << 27:
        raise Hangup
    return await reader.readexactly(size)


def _encoded(header: Any, response: Any) -> bytes:
    return b"".join(encode_response(header.correlation_id, response, header.request_api_version))
