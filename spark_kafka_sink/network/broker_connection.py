"""One connection to one broker: requests out, answers in, in the same order.

`send` never waits: it numbers the request, queues its buffers and returns a future. Two tasks move
the bytes. Whatever goes wrong (the peer hangs up, an answer is not what was asked for, an answer
does not come within request.timeout.ms) ends the connection as a whole, and every request that is
still unanswered fails with the reason: on a stream there is no other safe place to go on from.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Self

from spark_kafka_sink.errors import (
    DecodeError,
    KafkaError,
    NetworkError,
    UnsupportedVersionError,
)
from spark_kafka_sink.network.transport import PlaintextTransport, Transport
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.frame import FrameDecoder
from spark_kafka_sink.protocol.headers import RequestHeader
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.registry import (
    decode_response,
    encode_request,
    peek_correlation_id,
    request_class,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_kafka_sink.model import Node

#: No answer to a producer's request comes near this; a larger size is a lie or another protocol.
MAX_RESPONSE_BYTES = 128 * 1024 * 1024
MAX_CORRELATION_ID = 2**31 - 1
CLIENT_SOFTWARE_NAME = "spark-kafka-sink"


def _client_software_version() -> str:
    try:
        return version("spark-kafka-sink")
    except PackageNotFoundError:
        # The package was shipped as a zip, without its metadata.
        return "unknown"


def _reason(error: OSError) -> str:
    # asyncio says "Connect call failed" where the system's own words say why.
    if error.errno is None or isinstance(error, socket.gaierror):
        return str(error)
    return os.strerror(error.errno)


@dataclass(frozen=True, slots=True)
class NodeApiVersions:
    """What a broker said it understands (org.apache.kafka.clients.NodeApiVersions)."""

    #: API key -> lowest and highest version.
    versions: Mapping[int, tuple[int, int]]
    #: Feature -> level that the whole cluster has agreed on, such as transaction.version.
    finalized_features: Mapping[str, int]

    @classmethod
    def of(cls, response: ApiVersionsResponse) -> Self:
        """Read the broker's answer."""
        return cls(
            versions={key.api_key: (key.min_version, key.max_version) for key in response.api_keys},
            finalized_features={
                feature.name: feature.max_version_level for feature in response.finalized_features
            },
        )

    def version_for(self, api_key: ApiKey) -> int:
        """Choose the highest version that both sides have; UnsupportedVersionError if none."""
        ours = request_class(api_key).versions
        if api_key not in self.versions:
            raise UnsupportedVersionError(
                f"the broker does not know the {api_key.name} API; "
                "brokers older than Apache Kafka 2.1 are not supported"
            )
        lowest, highest = self.versions[api_key]
        chosen = min(ours.max, highest)
        if chosen < max(ours.min, lowest):
            raise UnsupportedVersionError(
                f"{api_key.name}: the broker has versions {lowest} to {highest}, "
                f"this client {ours.min} to {ours.max}"
            )
        return chosen


@dataclass(frozen=True, slots=True)
class InFlightRequest:
    """A request that waits for its answer."""

    correlation_id: int
    api_key: ApiKey
    api_version: int
    deadline: float
    response: asyncio.Future[Any]


class InFlightRequests:
    """The unanswered requests of one connection, oldest first."""

    def __init__(self) -> None:
        self._requests: deque[InFlightRequest] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: InFlightRequest) -> None:
        """Append the request just sent."""
        self._requests.append(request)

    def next_deadline(self) -> float | None:
        """When the oldest request is overdue."""
        return self._requests[0].deadline if self._requests else None

    def complete(self, correlation_id: int) -> InFlightRequest:
        """Take out the oldest request, which the answer that came must belong to."""
        if not self._requests:
            raise DecodeError(f"an answer (correlation id {correlation_id}) to no request")
        expected = self._requests[0].correlation_id
        if expected != correlation_id:
            raise DecodeError(f"an answer to request {correlation_id} instead of {expected}")
        return self._requests.popleft()

    def fail_all(self, error: Exception) -> None:
        """Fail every request with the reason for which the connection ended."""
        while self._requests:
            response = self._requests.popleft().response
            if not response.done():
                response.set_exception(error)


class BrokerConnection:
    """A connection whose API versions are known. Made by `open`."""

    def __init__(
        self,
        node: Node,
        transport: Transport,
        *,
        client_id: str,
        request_timeout: float,
    ) -> None:
        """Start the tasks that move bytes."""
        self.node = node
        self.api_versions = NodeApiVersions({}, {})
        self._transport = transport
        self._client_id = client_id
        self._request_timeout = request_timeout
        self._on_close: Callable[[NetworkError], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._in_flight = InFlightRequests()
        self._next_correlation_id = 0
        self._outgoing: deque[tuple[list[bytes | memoryview], asyncio.Future[Any] | None]] = deque()
        self._has_outgoing = asyncio.Event()
        self._closed_by: NetworkError | None = None
        self._timeout_check: asyncio.TimerHandle | None = None
        self._tasks = (
            self._loop.create_task(self._write_loop()),
            self._loop.create_task(self._read_loop()),
        )

    @classmethod
    async def open(
        cls,
        node: Node,
        *,
        client_id: str,
        setup_timeout: float,
        request_timeout: float,
    ) -> BrokerConnection:
        """Connect and learn the broker's API versions.

        Raises NetworkError (with the address and the cause) when that fails or takes longer than
        `setup_timeout` seconds, UnsupportedVersionError when the broker is too old.
        """
        connection: BrokerConnection | None = None
        try:
            async with asyncio.timeout(setup_timeout):
                transport = await PlaintextTransport.connect(
                    node.host, node.port, timeout=setup_timeout
                )
                connection = cls(
                    node, transport, client_id=client_id, request_timeout=request_timeout
                )
                await connection._negotiate()
                return connection
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError):
                raise NetworkError(
                    f"{node}: no connection within {setup_timeout:.1f} s "
                    "(socket.connection.setup.timeout.ms)"
                ) from error
            if isinstance(error, OSError) and not isinstance(error, KafkaError):
                raise NetworkError(f"{node}: {_reason(error)}") from error
            raise

    async def _negotiate(self) -> None:
        request = ApiVersionsRequest(
            client_software_name=CLIENT_SOFTWARE_NAME,
            client_software_version=_client_software_version(),
        )
        highest = ApiVersionsRequest.versions.max
        response: ApiVersionsResponse = await self._send_version(request, highest)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            # The broker answers a version it lacks in the oldest form, and lists those it has.
            offered = NodeApiVersions.of(response)
            fallback = offered.version_for(ApiKey.API_VERSIONS) if response.api_keys else 0
            response = await self._send_version(request, fallback)
        if response.error_code:
            raise broker_error(response.error_code, f"{self.node} refused ApiVersions")
        self.api_versions = NodeApiVersions.of(response)

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended, for whatever reason."""
        return self._closed_by is not None

    @property
    def in_flight_count(self) -> int:
        """Requests sent or queued that are not answered yet."""
        return len(self._in_flight)

    def send(self, request: Any) -> asyncio.Future[Any]:
        """Send a request in the highest common version; the future gives the decoded answer.

        The future fails with NetworkError when the connection ends first.
        """
        return self._send_version(request, self.api_versions.version_for(request.api_key))

    def send_without_response(self, request: Any) -> asyncio.Future[None]:
        """Send a request that the broker does not answer (acks=0).

        The future is done when the operating system has taken the bytes.
        """
        version = self.api_versions.version_for(request.api_key)
        sent: asyncio.Future[None] = self._loop.create_future()
        self._enqueue(request, version, self._take_correlation_id(), sent)
        return sent

    def _send_version(self, request: Any, version: int) -> asyncio.Future[Any]:
        response: asyncio.Future[Any] = self._loop.create_future()
        correlation_id = self._take_correlation_id()
        self._enqueue(request, version, correlation_id, None)
        deadline = self._loop.time() + self._request_timeout
        self._in_flight.add(
            InFlightRequest(correlation_id, request.api_key, version, deadline, response)
        )
        if self._timeout_check is None:
            self._timeout_check = self._loop.call_at(deadline, self._check_timeout)
        return response

    def _take_correlation_id(self) -> int:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & MAX_CORRELATION_ID
        return correlation_id

    def _enqueue(
        self, request: Any, version: int, correlation_id: int, sent: asyncio.Future[Any] | None
    ) -> None:
        if self._closed_by is not None:
            raise self._closed_by
        header = RequestHeader(
            request_api_key=request.api_key,
            request_api_version=version,
            correlation_id=correlation_id,
            client_id=self._client_id,
        )
        self._outgoing.append((encode_request(header, request), sent))
        self._has_outgoing.set()

    async def _write_loop(self) -> None:
        try:
            while True:
                await self._has_outgoing.wait()
                while self._outgoing:
                    buffers, sent = self._outgoing[0]
                    await self._transport.write(buffers)
                    self._outgoing.popleft()
                    if sent is not None and not sent.done():
                        sent.set_result(None)
                self._has_outgoing.clear()
        except OSError as error:
            self._fail(
                NetworkError(f"{self.node}: connection lost while sending: {_reason(error)}"), error
            )

    async def _read_loop(self) -> None:
        frames = FrameDecoder(MAX_RESPONSE_BYTES)
        try:
            while data := await self._transport.read():
                frames.receive_data(data)
                while (frame := frames.next_frame()) is not None:
                    self._receive(frame)
        except OSError as error:
            self._fail(NetworkError(f"{self.node}: connection lost: {_reason(error)}"), error)
        except DecodeError as error:
            # Retriable as a lost connection is: what the broker did with the requests is unknown.
            self._fail(NetworkError(f"{self.node}: answer cannot be read: {error}"), error)
        else:
            self._fail(NetworkError(f"{self.node}: the broker closed the connection"), None)

    def _receive(self, frame: memoryview) -> None:
        request = self._in_flight.complete(peek_correlation_id(frame))
        try:
            _, response = decode_response(request.api_key, request.api_version, frame)
        except DecodeError as error:
            if not request.response.done():
                request.response.set_exception(
                    NetworkError(f"{self.node}: {request.api_key.name} answer: {error}")
                )
            raise
        if not request.response.done():
            request.response.set_result(response)

    def _check_timeout(self) -> None:
        self._timeout_check = None
        deadline = self._in_flight.next_deadline()
        if deadline is None or self._closed_by is not None:
            return
        if deadline <= self._loop.time():
            self._fail(
                NetworkError(
                    f"{self.node}: no answer within {self._request_timeout:g} s "
                    "(request.timeout.ms)"
                ),
                None,
            )
        else:
            self._timeout_check = self._loop.call_at(deadline, self._check_timeout)

    def close(self) -> None:
        """End the connection; requests without an answer fail. May be called twice."""
        self._fail(NetworkError(f"{self.node}: the connection was closed by this client"), None)

    def _fail(self, error: NetworkError, cause: BaseException | None) -> None:
        if self._closed_by is not None:
            return
        error.__cause__ = cause
        self._closed_by = error
        if self._timeout_check is not None:
            self._timeout_check.cancel()
        self._transport.close()
        for task in self._tasks:
            # The task that found the error ends by itself.
            if task is not asyncio.current_task():
                task.cancel()
        while self._outgoing:
            _, sent = self._outgoing.popleft()
            if sent is not None and not sent.done():
                sent.set_exception(error)
        self._in_flight.fail_all(error)
        if self._on_close is not None:
            self._on_close(error)

    def set_on_close(self, on_close: Callable[[NetworkError], None]) -> None:
        """Have a function told the reason when the connection ends; at once if it has."""
        self._on_close = on_close
        if self._closed_by is not None:
            on_close(self._closed_by)

    async def wait_closed(self) -> None:
        """Wait until the tasks of a closed connection have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
