"""Connection failures that reveal something about the peer."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import AuthenticationError, DecodeError, KafkaError, NetworkError

if TYPE_CHECKING:
    from spark_kafka_sink.model import Node


class SilentPeerError(NetworkError):
    """The peer hung up on the first request without a response; it may speak another protocol."""


class GreetedOnlyError(NetworkError):
    """The peer answered ApiVersions and hung up on the next request; it may require SASL."""


class AbsentPeerError(NetworkError):
    """Nothing listens at any address of the node, or its name has no address."""


def connect_failure(node: Node, error: OSError) -> NetworkError:
    """Return the error for a node to which no connection could be made.

    A broker chooses the address that clients connect to (`advertised.listeners`), which is easily
    one that only its own network knows.
    """
    if not finds_nobody(error):
        return NetworkError(f"{node}: {reason(error)}")
    advertised = (
        ""
        if node.node_id < 0
        else f"; broker {node.broker_id} advertises this address (its advertised.listeners): "
        "clients must be able to reach it"
    )
    return AbsentPeerError(f"{node}: {reason(error)}{advertised}")


def finds_nobody(error: OSError) -> bool:
    """Return whether a connection failed because no peer can be there.

    The connection was refused, the name has no address, or there is no local address to connect
    from: a machine without IPv6 has none for an IPv6 address of a name.
    """
    return isinstance(error, ConnectionRefusedError | socket.gaierror) or (
        error.errno == errno.EADDRNOTAVAIL
    )


def reason(error: OSError) -> str:
    """Return why the system could not connect, or why it lost the connection."""
    # asyncio's message is only "Connect call failed"; the system's message says why.
    if error.errno is None or isinstance(error, socket.gaierror):
        return str(error)
    return os.strerror(error.errno)


def loss_of(node: Node, error: Exception, doing: str, kind: type[NetworkError]) -> KafkaError:
    """Return the error with which a connection ends, from the one raised while `doing` something.

    `doing` is "sending" or "reading", `kind` the class to use for system errors. Every error but an
    AuthenticationError is retriable, like a lost connection: what the broker did with the requests
    is unknown.
    """
    match error:
        case AuthenticationError() | NetworkError():
            # The transport has already described the problem.
            return error
        case OSError():
            return kind(f"{node}: connection lost while {doing}: {reason(error)}")
        case DecodeError():
            return NetworkError(f"{node}: cannot read the response: {error}")
    return NetworkError(f"{node}: connection closed while {doing}: {type(error).__name__}")
