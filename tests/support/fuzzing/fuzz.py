"""Fuzz the code that reads from the network with random and mutated bytes.

There are thirteen targets: a broker without sockets; its SASL authenticator; the client's frame
decoder, its response decoders, and its SASL exchange; the record decoder, and the compiled decoder,
which is compared with it; the compiled decoders of Avro and JSON, compared with their interpreters,
and the encoders, compared with their oracles; the client of a Schema Registry, and the embedded
registry without sockets. A target may reject its input with the errors that it documents. Any other
exception, an error in the log, an input that takes too long, or memory that is never freed is a
finding. A seed determines all inputs.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.devbroker.base.refusal import CloseConnectionError
from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.devbroker.net.listener import SERVED_MECHANISMS, SaslSettings
from spark_kafka_sink.devbroker.net.sasl_authenticator import (
    AuthenticationFailedError,
    SaslAuthenticator,
)
from spark_kafka_sink.devbroker.net.sasl_servers import Credentials
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.registry import (
    RequestHeader,
    declared_messages,
    decode_response,
    encode_request,
)
from spark_kafka_sink.protocol.registry import encode_response as encode_answer
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.decode import decode_records
from tests.support.devbroker.broker_requests import NOW, broker_with
from tests.support.fuzzing.fuzz_avro import AvroEncoderTarget, AvroTarget
from tests.support.fuzzing.fuzz_client import ClientSaslTarget, FrameTarget
from tests.support.fuzzing.fuzz_decoder import DecoderTarget
from tests.support.fuzzing.fuzz_json import JsonEncoderTarget, JsonTarget
from tests.support.fuzzing.fuzz_registry import RegistryClientTarget, RegistryTarget
from tests.support.fuzzing.random_bytes import changed, random_message
from tests.support.record.plain_batches import plain_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

#: The number of inputs after which the broker is replaced, so that the state which a broker keeps
#: for its clients is not mistaken for a leak.
_INPUTS_PER_BROKER = 1000
#: The longest time that one frame from the network may take.
_LONGEST_SECONDS = 5.0


@dataclass
class Finding:
    """An input for which a target misbehaved."""

    target: str
    data: bytes
    reason: str

    @property
    def name(self) -> str:
        """The name of the file in which the finding is stored."""
        return f"{self.target}-{hashlib.sha256(self.data).hexdigest()[:16]}.hex"

    def __str__(self) -> str:
        """Return the target, the reason, and the beginning of the input."""
        return f"{self.target}: {self.reason}: {self.data[:60].hex()} ({len(self.data)} bytes)"


def _request_frame(random_: random.Random, request_class: Any, version: int) -> bytes:
    header = RequestHeader(
        request_api_key=request_class.api_key,
        request_api_version=version,
        correlation_id=7,
        client_id=random_.choice(("fuzz", "", None)),
    )
    request = random_message(random_, request_class, version)
    return b"".join(encode_request(header, request))[4:]


def _a_message(random_: random.Random, side: int) -> tuple[Any, int]:
    cls = random_.choice(declared_messages())[side]
    return cls, random_.randint(cls.versions.min, cls.versions.max)


class BrokerTarget:
    """Requests to a broker that has no socket."""

    name = "broker"

    def __init__(self) -> None:
        """Create the first broker."""
        self._inputs = 0
        self._renew()

    def _renew(self) -> None:
        self._broker = broker_with({"t": 2})

    def make(self, random_: random.Random) -> bytes:
        """Return a mutated request."""
        request_class, version = _a_message(random_, 0)
        return changed(random_, _request_frame(random_, request_class, version))

    def take(self, data: bytes) -> None:
        """Handle a request."""
        self._inputs += 1
        if self._inputs % _INPUTS_PER_BROKER == 0:
            self._renew()
        broker = self._broker
        now = NOW + self._inputs / 100
        try:
            header, request = broker.decode_request(memoryview(bytearray(data)))
            outcome = broker.handle(header, request, now)
            if outcome is not None and not isinstance(outcome, Delayed):
                broker.encode_response(header, outcome)
        except (DecodeError, CloseConnectionError):
            pass


class SaslTarget:
    """Several frames from an unauthenticated client to a listener with SASL."""

    name = "sasl"

    def __init__(self) -> None:
        """Create the credentials of one user."""
        self._settings = SaslSettings(users={"alice": "secret"}, mechanisms=SERVED_MECHANISMS)
        self._credentials = Credentials(self._settings.users, iterations=4096)
        self._broker = broker_with()

    def make(self, random_: random.Random) -> bytes:
        """Return a SASL exchange: frames, each preceded by its size."""
        frames = []
        classes = {cls.api_key.name: cls for cls, _ in declared_messages()}
        for name in ("API_VERSIONS", "SASL_HANDSHAKE", "SASL_AUTHENTICATE", "SASL_AUTHENTICATE"):
            cls = classes[name] if random_.random() < 0.9 else _a_message(random_, 0)[0]
            version = random_.randint(cls.versions.min, cls.versions.max)
            frame = _request_frame(random_, cls, version)
            frames.append(changed(random_, frame) if random_.random() < 0.3 else frame)
        return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)

    def take(self, data: bytes) -> None:
        """Handle frames until the client is rejected or authenticated."""
        authenticator = SaslAuthenticator(
            self._settings, self._credentials, self._broker, name="fuzz"
        )
        try:
            for frame in _frames(data):
                if not authenticator.takes(memoryview(frame), NOW):
                    return
                authenticator.receive(memoryview(frame), NOW)
        except (AuthenticationFailedError, CloseConnectionError, DecodeError):
            pass


def _frames(data: bytes) -> Iterator[bytearray]:
    position = 0
    while position + 4 <= len(data):
        (size,) = struct.unpack_from(">i", data, position)
        yield bytearray(data[position + 4 : position + 4 + max(0, size)])
        position += 4 + max(0, size)


class ResponseTarget:
    """Responses to the client's decoders; the first two bytes are the API key and the version."""

    name = "response"

    def make(self, random_: random.Random) -> bytes:
        """Return a mutated response."""
        response_class, version = _a_message(random_, 1)
        response = random_message(random_, response_class, version)
        frame = b"".join(encode_answer(7, response, version))[4:]
        return bytes((response_class.api_key, version)) + changed(random_, frame)

    def take(self, data: bytes) -> None:
        """Decode a response."""
        by_key = {response.api_key: response for _, response in declared_messages()}
        if len(data) < 2 or data[0] not in by_key:
            return
        response_class = by_key[data[0]]
        version = min(max(data[1], response_class.versions.min), response_class.versions.max)
        with contextlib.suppress(DecodeError):
            decode_response(response_class.api_key, version, bytearray(data[2:]))


class RecordsTarget:
    """Record batches to the record decoder."""

    name = "records"

    def make(self, random_: random.Random) -> bytes:
        """Return a mutated batch; in most cases its checksum is correct nevertheless."""
        codec = random_.choice(list(CompressionType))
        whole = plain_batch(random_.choice((1, 3, 50)), compression=codec)
        if random_.random() < 0.3:
            return changed(random_, whole)
        payload = changed(random_, whole[61:])
        return plain_batch(random_.choice((1, 3, 50)), compression=codec, payload=payload)

    def take(self, data: bytes) -> None:
        """Decode all records."""
        try:
            for _ in decode_records(data, max_uncompressed_bytes=1 << 20):
                pass
        except DecodeError:
            pass


TARGETS: dict[str, Callable[[], Any]] = {
    target.name: target
    for target in (
        BrokerTarget,
        SaslTarget,
        FrameTarget,
        ResponseTarget,
        ClientSaslTarget,
        RecordsTarget,
        DecoderTarget,
        AvroTarget,
        AvroEncoderTarget,
        JsonTarget,
        JsonEncoderTarget,
        RegistryClientTarget,
        RegistryTarget,
    )
}


class _Errors(logging.Handler):
    """A log handler that stores the messages of errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Store the message and its exception."""
        cause = record.exc_info[1] if record.exc_info else None
        self.messages.append(f"{record.getMessage()}: {cause!r}")


def try_input(target: Any, data: bytes) -> Finding | None:
    """Run a target with an input; return a finding if it misbehaved."""
    errors = _Errors()
    logger = logging.getLogger("spark_kafka_sink")
    logger.addHandler(errors)
    started = time.perf_counter()
    try:
        target.take(data)
    except Exception as error:  # noqa: BLE001 - any exception is a finding
        return Finding(target.name, data, repr(error))
    finally:
        logger.removeHandler(errors)
    if errors.messages:
        return Finding(target.name, data, errors.messages[0])
    if time.perf_counter() - started > _LONGEST_SECONDS:
        return Finding(target.name, data, f"took more than {_LONGEST_SECONDS} seconds")
    return None


@dataclass
class FuzzReport:
    """The outcome of a run."""

    inputs: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    #: Growth of the process after the first tenth of the run.
    grown_bytes: int = 0

    def __str__(self) -> str:
        """Return a summary in one line."""
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.inputs.items()))
        grown = f"{self.grown_bytes / 2**20:.1f} MiB of growth"
        return f"{counts}; {grown}; {len(self.findings)} findings"


def fuzz(
    *,
    seed: int,
    seconds: float,
    most_inputs: int | None = None,
    names: Collection[str] = TARGETS,
) -> FuzzReport:
    """Fuzz targets in turn, for a time or a number of inputs; stop at ten findings."""
    random_ = random.Random(seed)
    targets = [TARGETS[name]() for name in names]
    report = FuzzReport(inputs=dict.fromkeys(names, 0))
    started = time.monotonic()
    warm = None
    total = 0
    while time.monotonic() - started < seconds and len(report.findings) < 10:
        for target in targets:
            finding = try_input(target, target.make(random_))
            report.inputs[target.name] += 1
            total += 1
            if finding is not None:
                report.findings.append(finding)
        if warm is None and time.monotonic() - started > seconds / 10:
            warm = resident_bytes()
        if most_inputs is not None and total >= most_inputs:
            break
    report.grown_bytes = 0 if warm is None else resident_bytes() - warm
    return report


def resident_bytes() -> int:
    """Return this process's resident memory in bytes."""
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - not a file on disk
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def keep(finding: Finding, directory: Path) -> Path:
    """Store a finding's bytes in a file; the tests try these files again."""
    directory.mkdir(exist_ok=True)
    path = directory / finding.name
    path.write_text(f"{finding.data.hex()}\n")
    return path


def read_kept(path: Path) -> tuple[Any, bytes]:
    """Return the target and the bytes of a stored finding."""
    return TARGETS[path.name.partition("-")[0]](), bytes.fromhex(path.read_text())
