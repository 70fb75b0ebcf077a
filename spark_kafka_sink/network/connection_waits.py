"""Waiting for a cluster that has not been reached before, and for a connection to a given node.

At a first contact a user is waiting for the answer, so a failure that will not resolve itself ends
the wait within `FINAL_SECONDS`: connections that are refused everywhere, names without an address,
brokers whose addresses are probably wrong (`UnreachedNodes`), and whatever the caller knows to be
final. For any other failure the wait lasts as long as the caller allows.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import DecodeError, KafkaError, KafkaTimeoutError, NetworkError
from spark_kafka_sink.network.cluster_connection_states import FINAL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.connection.broker_connection import BrokerConnection
    from spark_kafka_sink.network.network_client import NetworkClient

_FINAL: Final = "waiting longer would not help"
#: Between two looks at connections.
_PAUSE_SECONDS: Final = 0.02
#: Seconds between two checks of a connection that cannot take a request now.
_LOOK_AGAIN: Final = 0.1


class UnreachedError(NetworkError):
    """The address that a broker advertises is probably wrong; see `UnreachedNodes`."""

    retriable = False

    def __init__(self, error: KafkaError) -> None:
        """Create it from the error of the last attempt to connect."""
        super().__init__(f"{error}; {_FINAL}")
        self.__cause__ = error


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds, and the name of that limit for errors."""

    seconds: float
    limit: str


async def wait_for_answer(
    client: NetworkClient,
    topics: Sequence[str],
    patience: Patience,
    *,
    is_final: Callable[[], bool] = lambda: False,
    on_wait: Callable[[KafkaError], None] = lambda _: None,
) -> None:
    """Wait until topics are known; without topics, until any broker answers.

    `is_final` returns whether the last answer will not change; `on_wait` is called with the reason
    for waiting beyond `FINAL_SECONDS`.

    Raises what `NetworkClient.wait_for_topics` raises.
    """
    began = asyncio.get_running_loop().time()
    if patience.seconds > FINAL_SECONDS:
        try:
            return await _ask(client, topics, began, Patience(FINAL_SECONDS, _FINAL))
        except (KafkaTimeoutError, NetworkError) as error:
            if client.finds_nobody or is_final():
                raise
            on_wait(error)
    return await _ask(client, topics, began, patience)


async def wait_for_leaders(
    client: NetworkClient, leaders: Callable[[], Iterable[Node]], patience: Patience
) -> None:
    """Connect to leaders, which may change meanwhile: a broker advertises its address itself.

    Raises UnreachedError if the brokers' addresses are probably wrong, NetworkError if a leader
    cannot be reached in time, and AuthenticationError or ConfigError if no further attempt would
    help.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    deadline = began + patience.seconds
    while True:
        missing = [node for node in leaders() if not _is_connected(client, node)]
        if not missing:
            return
        for node in missing:
            refusal = client.refusal_of(node)
            if refusal is not None:
                raise refusal
            if client.connect_error(node) is not None:
                # The others show whether its address is wrong, or it has crashed.
                client.dial_all()
            unreached = client.never_reached(node)
            if unreached is not None and client.isolation is not None:
                raise UnreachedError(unreached)
        now = loop.time()
        if now >= deadline:
            cause = client.cause(missing[0])
            raise NetworkError(
                f"no connection to {missing[0]} after {now - began:.1f} s ({patience.limit}); "
                f"last cause: {cause}"
            ) from cause
        if client.metadata.next_update_at() <= now:
            # Partitions may have other leaders by now. The leaders' own errors say more.
            with suppress(NetworkError):
                await client.update_metadata(deadline)
        await asyncio.sleep(_PAUSE_SECONDS)


def _is_connected(client: NetworkClient, node: Node) -> bool:
    """Return whether there is a connection, even a busy one; otherwise begin to open one."""
    return client.ready_connection(node) is not None or client.is_connected(node)


async def look_for_brokers(client: NetworkClient, deadline: float) -> None:
    """Wait until any broker answers, but at most `FINAL_SECONDS`; not if `deadline` is earlier.

    Raises NetworkError if nothing listens at any address then, and AuthenticationError, ConfigError
    or UnsupportedVersionError at once. Any other failure is the caller's to wait out.
    """
    began = asyncio.get_running_loop().time()
    if deadline - began > FINAL_SECONDS:
        try:
            await _ask(client, (), began, Patience(FINAL_SECONDS, _FINAL))
        except (NetworkError, DecodeError):
            if client.finds_nobody:
                raise


async def _ask(
    client: NetworkClient, topics: Sequence[str], began: float, patience: Patience
) -> None:
    deadline = began + patience.seconds
    if topics:
        return await client.wait_for_topics(topics, deadline, limit=patience.limit, since=began)
    loop = asyncio.get_running_loop()
    while True:
        try:
            return await client.update_metadata(deadline)
        except NetworkError:
            pause = client.metadata.next_update_at() - loop.time()
            if loop.time() + max(pause, 0) >= deadline:
                raise
            await asyncio.sleep(max(pause, 0))


async def connection_to(
    client: NetworkClient, node: Node, deadline: float, changed: asyncio.Event
) -> BrokerConnection:
    """Return a connection to a node that can take a request, opening it if necessary.

    The client's `on_change` must set `changed`. Raises NetworkError if the node cannot be reached,
    or not by the deadline, UnreachedError if no broker can be reached at its address, and
    AuthenticationError or ConfigError if no further attempt would help.
    """
    loop = asyncio.get_running_loop()
    began = False
    while True:
        changed.clear()
        connection = client.ready_connection(node)
        if connection is not None:
            return connection
        now = loop.time()
        ready_at = client.ready_at(node)
        throttled = client.throttled_until(node) > now
        refusal = client.refusal_of(node)
        if began and refusal is not None:
            raise refusal
        if now >= deadline or (began and ready_at > now and not throttled):
            # Its back-off has begun; when that ends, another broker may be the one to send to.
            if client.isolation is not None:
                raise UnreachedError(client.isolation)
            cause = client.cause(node)
            raise NetworkError(f"{node} cannot be reached: {cause}") from cause
        began = ready_at <= now
        pause = ready_at - now if ready_at > now else _LOOK_AGAIN
        await _wait_for(changed, min(pause, deadline - now))


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
