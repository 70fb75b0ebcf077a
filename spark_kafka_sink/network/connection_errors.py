"""The ways in which a connection fails that tell something about the peer."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import AuthenticationError, DecodeError, KafkaError, NetworkError

if TYPE_CHECKING:
    from spark_kafka_sink.model import Node


class SilentPeerError(NetworkError):
    """The peer hung up on the first request without a word: it may not speak as we do."""


class GreetedOnlyError(NetworkError):
    """The peer answered ApiVersions and hung up on the next request: it may require SASL."""


class AbsentPeerError(NetworkError):
    """Nobody listens at any address of the node, or its name has no address."""


def finds_nobody(error: OSError) -> bool:
    """Return whether a connection failed because nobody can be there.

    A machine without IPv6 has no address of its own to connect to a name's IPv6 address from.
    """
    return isinstance(error, ConnectionRefusedError | socket.gaierror) or (
        error.errno == errno.EADDRNOTAVAIL
    )


def reason(error: OSError) -> str:
    """Return why the system could not connect, or lost the connection."""
    # asyncio says "Connect call failed" where the system's own words say why.
    if error.errno is None or isinstance(error, socket.gaierror):
        return str(error)
    return os.strerror(error.errno)


def loss_of(node: Node, error: Exception, doing: str, kind: type[NetworkError]) -> KafkaError:
    """Return why a connection ends, of what `doing` (sending, reading) has raised.

    `kind` is that of the system's errors. All but a refusal are retriable, as a lost connection is:
    what the broker did with the requests is unknown.
    """
    match error:
        case AuthenticationError() | NetworkError():
            # The transport has found the words itself.
            return error
        case OSError():
            return kind(f"{node}: connection lost while {doing}: {reason(error)}")
        case DecodeError():
            return NetworkError(f"{node}: answer cannot be read: {error}")
    return NetworkError(f"{node}: connection given up while {doing}: {type(error).__name__}")
