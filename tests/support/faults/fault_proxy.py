"""A TCP proxy before a broker that applies fault rules to the frames that pass through.

It stands between a client and a real Kafka. It reads whole frames, so that a fault hits a certain
request or response, and a certain position in it. The client stays behind the proxy because the
broker advertises the proxy's address to it (see `proxied_kafka`); all other clients reach the
broker directly.

The proxy runs an event loop on its own thread. It ends with its `with` block, and by itself when
its lifetime is over.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from tests.support.faults.fault_rules import Action, Fault, FaultRules, Side

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from tests.support.faults.fault_rules import Strike

_READ_BYTES = 1 << 18
_MAX_FRAME_BYTES = 1 << 28
_JOIN_SECONDS = 120
_SIZE_BYTES = 4
#: The first bytes from a TLS client; read as a frame size, they exceed the limit.
_TLS_HANDSHAKE = b"\x16\x03"
_CORRELATION_ID_IN_ANSWER = slice(4, 8)
_CORRELATION_ID_IN_REQUEST = slice(8, 12)
#: The number of bytes at the beginning of a split frame that are sent one by one.
_SINGLE_BYTES = 512
_PIECE_BYTES = 1000
#: Pausing after each of these bytes makes the receiver read size and header byte by byte.
_PAUSED_BYTES = 24
_PAUSE_SECONDS = 0.001
#: The API key of a response that belongs to no request, as after a wrong correlation id.
_UNKNOWN_API = -1
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class FaultProxy:
    """The proxy; it listens on loopback when created, and serves as a context manager."""

    def __init__(
        self,
        faults: Iterable[Fault] = (),
        *,
        seed: int = 0,
        lifetime_seconds: float = 1800,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Listen on a free port.

        `seed` determines the random bytes; `pause` sleeps for a fault's seconds (DELAY, STALL), and
        between the first bytes of a split frame.
        """
        #: Called with each frame that passes unharmed: its side, connection, and bytes with size.
        self.observer: Callable[[Side, int, bytes], None] = lambda *_: None
        self.rules = FaultRules()
        self.rules.arm(*faults)
        self._rng = random.Random(seed)
        self._lifetime_seconds = lifetime_seconds
        self._pause = pause
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._target: tuple[str, int] | None = None
        self._is_refusing = False
        self._numbers = itertools.count(1)
        self._relays: dict[asyncio.Task[None], socket.socket] = {}
        self._errors: list[BaseException] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._serving: asyncio.Task[None] | None = None
        self._started = threading.Event()

    def connect_to(self, address: str) -> None:
        """Set the broker's address; until then every connection is refused."""
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))

    def __enter__(self) -> Self:
        """Start serving."""
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything; raise the proxy's own errors."""
        assert self._serving is not None
        with suppress(RuntimeError):  # if its lifetime is over
            self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(_JOIN_SECONDS)
        self._server.close()
        if self._thread.is_alive():
            raise TimeoutError(f"the proxy did not end within {_JOIN_SECONDS} s")
        if self._errors:
            raise self._errors[0]

    # --- faults

    def arm(self, *faults: Fault) -> None:
        """Add rules, which count frames from now on."""
        self.rules.arm(*faults)

    def disarm(self) -> None:
        """Remove all rules, forget all strikes, and accept connections again."""
        self.rules.disarm()
        self._is_refusing = False

    @property
    def strikes(self) -> list[Strike]:
        """The strikes so far, in order."""
        return self.rules.strikes

    def strikes_of(self, fault: Fault) -> int:
        """Count the frames that a rule struck."""
        return sum(strike.fault == fault for strike in self.strikes)

    def refuse(self) -> None:
        """Reset all connections, and every new one, until `accept`."""
        self._is_refusing = True
        self.reset_connections()

    def accept(self) -> None:
        """Accept connections again."""
        self._is_refusing = False

    def reset_connections(self) -> None:
        """Reset all current connections."""
        done = threading.Event()

        def reset() -> None:
            for relay, client in self._relays.items():
                _reset_when_closed(client)
                relay.cancel()
            done.set()

        self._loop.call_soon_threadsafe(reset)
        done.wait(_JOIN_SECONDS)

    @property
    def connection_count(self) -> int:
        """The number of connections that are open or still have bytes to forward."""
        return len(self._relays)

    # --- the proxy's thread

    def _run(self) -> None:
        try:
            with (
                asyncio.Runner(loop_factory=lambda: self._loop) as runner,
                suppress(asyncio.CancelledError),
            ):
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # raised by __exit__
            self._errors.append(error)
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._serving = asyncio.current_task()
        # Not `sock_accept`: it loses a client that it has just accepted if it is cancelled.
        self._loop.add_reader(self._server, self._accept)
        self._started.set()
        try:
            await asyncio.sleep(self._lifetime_seconds)
        finally:
            self._loop.remove_reader(self._server)
            relays = list(self._relays)
            for relay in relays:
                relay.cancel()
            await asyncio.gather(*relays, return_exceptions=True)

    def _accept(self) -> None:
        with suppress(OSError):  # if the client has gone
            client, _ = self._server.accept()
            relay = self._loop.create_task(self._relay(client))
            self._relays[relay] = client
            relay.add_done_callback(self._relay_ended)

    def _relay_ended(self, relay: asyncio.Task[None]) -> None:
        # This also runs for a task that was cancelled before it began.
        self._relays.pop(relay).close()
        if not relay.cancelled() and (error := relay.exception()) is not None:
            self._errors.append(error)

    async def _relay(self, client: socket.socket) -> None:
        if self._is_refusing or self._target is None:
            _reset_when_closed(client)
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with socket.socket() as broker:
            broker.setblocking(False)
            broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                await self._loop.sock_connect(broker, self._target)
            except OSError:
                _reset_when_closed(client)
                return
            relay = _Relay(
                self.rules,
                client,
                broker,
                rng=self._rng,
                connection=next(self._numbers),
                observe=self.observer,
                pause=self._pause,
            )
            await relay.run()


class _Relay:
    """A client's connection, and the corresponding connection to the broker."""

    def __init__(
        self,
        rules: FaultRules,
        client: socket.socket,
        broker: socket.socket,
        *,
        rng: random.Random,
        connection: int,
        observe: Callable[[Side, int, bytes], None],
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._rules = rules
        self._observe = observe
        self._pause = pause
        self._client = client
        self._broker = broker
        self._rng = rng
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        #: The API keys of requests without a response so far, by correlation id.
        self._asked: dict[bytes, int] = {}

    async def run(self) -> None:
        """Relay frames until one side disconnects or a fault ends the connection."""
        pumps = [
            self._loop.create_task(self._pump(Side.REQUEST, self._client, self._broker)),
            self._loop.create_task(self._pump(Side.ANSWER, self._broker, self._client)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            results = await asyncio.gather(*pumps, return_exceptions=True)
        for result in results:
            # A lost connection is not an error of the proxy.
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result

    async def _pump(self, side: Side, source: socket.socket, sink: socket.socket) -> None:
        frames = _FrameReader(source)
        held = b""
        hold_seconds = 0.0
        while True:
            reading = self._loop.create_task(frames.next_frame())
            try:
                if held:
                    # Not `wait_for`: it would cancel the read on a timeout, which might lose bytes.
                    await asyncio.wait({reading}, timeout=hold_seconds)
                    if not reading.done():
                        await self._loop.sock_sendall(sink, held)
                        held = b""
                frame = await reading
            finally:
                reading.cancel()
            if frame is None:
                await self._loop.sock_sendall(sink, held)
                return
            fault = self._rules.strike(
                side,
                self._api_key_of(side, frame),
                connection=self._connection,
                frame_bytes=len(frame),
            )
            if fault is not None and fault.action is Action.MERGE:
                held += frame
                hold_seconds = fault.seconds
                continue
            if held:
                await self._loop.sock_sendall(sink, held)
                held = b""
            if fault is None:
                self._observe(side, self._connection, frame)
                await self._loop.sock_sendall(sink, frame)
            elif fault.action is Action.HANG:
                await self._discard(source)
                return
            elif not await self._strike(fault, frame, sink):
                return

    def _api_key_of(self, side: Side, frame: bytes) -> int:
        if side is Side.ANSWER:
            return self._asked.pop(frame[_CORRELATION_ID_IN_ANSWER], _UNKNOWN_API)
        (api_key,) = struct.unpack_from(">h", frame, _SIZE_BYTES)
        self._asked[frame[_CORRELATION_ID_IN_REQUEST]] = api_key
        return int(api_key)

    async def _strike(self, fault: Fault, frame: bytes, sink: socket.socket) -> bool:
        """Apply a fault to a frame; return False if that ends the connection."""
        middle = min(max(int(len(frame) * fault.at), 1), len(frame) - 1)
        match fault.action:
            case Action.SWALLOW:
                return False
            case Action.RESET:
                _reset_when_closed(self._client)
                return False
            case Action.CUT:
                await self._loop.sock_sendall(sink, frame[:middle])
                return False
            case Action.DELAY:
                await self._pause(fault.seconds)
                await self._loop.sock_sendall(sink, frame)
            case Action.STALL:
                await self._loop.sock_sendall(sink, frame[:middle])
                await self._pause(fault.seconds)
                await self._loop.sock_sendall(sink, frame[middle:])
            case Action.SPLIT:
                await self._send_split(frame, sink)
            case _:
                await self._loop.sock_sendall(sink, _altered(fault, frame, middle, self._rng))
        return True

    async def _send_split(self, frame: bytes, sink: socket.socket) -> None:
        for i in range(min(len(frame), _SINGLE_BYTES)):
            await self._loop.sock_sendall(sink, frame[i : i + 1])
            if i < _PAUSED_BYTES:
                await self._pause(_PAUSE_SECONDS)
            else:
                await asyncio.sleep(0)
        for i in range(_SINGLE_BYTES, len(frame), _PIECE_BYTES):
            await self._loop.sock_sendall(sink, frame[i : i + _PIECE_BYTES])
            await asyncio.sleep(0)

    async def _discard(self, source: socket.socket) -> None:
        while await self._loop.sock_recv(source, _READ_BYTES):
            pass


class _FrameReader:
    """Splits a stream into frames, each with its size prefix."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._received = bytearray()

    async def next_frame(self) -> bytes | None:
        """Return the next whole frame, or None at the end of the stream, even within a frame."""
        loop = asyncio.get_running_loop()
        while True:
            if len(self._received) >= _SIZE_BYTES:
                (size,) = struct.unpack_from(">i", self._received)
                if self._received.startswith(_TLS_HANDSHAKE):
                    # Only a client of a previous owner of this port can speak TLS here.
                    raise ConnectionRefusedError("a stranger's handshake")
                if not 0 <= size <= _MAX_FRAME_BYTES:
                    raise ValueError(f"a frame of {size} bytes")
                end = _SIZE_BYTES + size
                if len(self._received) >= end:
                    frame = bytes(self._received[:end])
                    del self._received[:end]
                    return frame
            data = await loop.sock_recv(self._source, _READ_BYTES)
            if not data:
                return None
            self._received += data


def _garbled(fault: Fault, frame: bytes, middle: int, rng: random.Random) -> bytes:
    if fault.side is Side.ANSWER:
        kept = _CORRELATION_ID_IN_ANSWER.stop
        return frame[:kept] + rng.randbytes(len(frame) - kept)
    return frame[:middle] + bytes([frame[middle] ^ 1]) + frame[middle + 1 :]


def _with_wrong_correlation_id(fault: Fault, frame: bytes, *_: object) -> bytes:
    place = _CORRELATION_ID_IN_ANSWER if fault.side is Side.ANSWER else _CORRELATION_ID_IN_REQUEST
    wrong = (int.from_bytes(frame[place], "big") + 1_000_000) & 0x7FFFFFFF
    return frame[: place.start] + wrong.to_bytes(4, "big") + frame[place.stop :]


_ALTERATIONS: dict[Action, Callable[[Fault, bytes, int, random.Random], bytes]] = {
    Action.GARBLE: _garbled,
    Action.WRONG_CORRELATION_ID: _with_wrong_correlation_id,
    Action.REPEAT: lambda _fault, frame, _middle, _rng: frame * 2,
    Action.WRONG_SIZE: lambda fault, frame, _middle, _rng: (
        fault.size.to_bytes(_SIZE_BYTES, "big", signed=True) + frame[_SIZE_BYTES:]
    ),
}


def _altered(fault: Fault, frame: bytes, middle: int, rng: random.Random) -> bytes:
    return _ALTERATIONS[fault.action](fault, frame, middle, rng)


def _reset_when_closed(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
