"""Requests that are retried until a deadline, each sent to the broker it concerns.

A call is one request and its response. It is sent to any broker, to a given one, to the coordinator
of a transactional id or of a group, or to the leader of a partition. If the response is retriable,
or none arrives, the broker is looked up again and the request resent after a back-off. Errors that
are not retriable are left to the caller: what a code means depends on the request.

Lives on the loop of its NetworkClient. Times are seconds of that loop's clock.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from spark_kafka_sink.errors import (
    BrokerError,
    KafkaError,
    KafkaTimeoutError,
    NetworkError,
    UnsupportedVersionError,
)
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network.connection_waits import (
    Patience,
    UnreachedError,
    connection_to,
    wait_for_answer,
)
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import (
    ErrorCode,
    broker_error,
    is_invalid_metadata,
    is_retriable,
)
from spark_kafka_sink.protocol.messages.find_coordinator import (
    CoordinatorType,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from spark_kafka_sink.protocol.schema import ApiRequest, ResponseT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from spark_kafka_sink.config.client_config import ClientConfig
    from spark_kafka_sink.network.connection.broker_connection import BrokerConnection
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions

T = TypeVar("T")

#: The first FindCoordinator version that accepts several keys.
_COORDINATOR_KEYS_VERSION = 4
#: The fewest keys for which a request of its own is worth it.
_FEWEST_KEYS = 2
#: The limit that sets the deadlines, for errors.
_TIMEOUT = "the timeout of this call"
#: In seconds. Writing markers takes moments (KIP-588), so a request for a busy transaction is
#: resent soon, as in Java's AddPartitionsToTxnHandler.
BUSY_BACKOFF = 0.02


@dataclass(frozen=True, slots=True)
class AnyBroker:
    """Any available broker."""

    def __str__(self) -> str:
        return "any broker"


@dataclass(frozen=True, slots=True)
class CoordinatorOf:
    """The transaction coordinator of a transactional id."""

    transactional_id: str

    def __str__(self) -> str:
        return f"the coordinator of {self.transactional_id!r}"


@dataclass(frozen=True, slots=True)
class GroupCoordinatorOf:
    """The coordinator of a consumer group."""

    group_id: str

    def __str__(self) -> str:
        return f"the coordinator of group {self.group_id!r}"


@dataclass(frozen=True, slots=True)
class LeaderOf:
    """The leader of a partition."""

    topic_partition: TopicPartition

    def __str__(self) -> str:
        return f"the leader of {self.topic_partition}"


Destination: TypeAlias = AnyBroker | CoordinatorOf | GroupCoordinatorOf | LeaderOf | Node
_Key: TypeAlias = tuple[CoordinatorType, str]


@dataclass(frozen=True, slots=True)
class Call(Generic[ResponseT]):
    """A request, and how to read its response."""

    destination: Destination
    #: The request, or a function that builds it for a broker's versions, with a cap on its version.
    request: (
        ApiRequest[ResponseT]
        | Callable[[NodeApiVersions], tuple[ApiRequest[ResponseT], int | None]]
    )
    #: A description for errors: "EndTxn of 'orders.ledger'".
    what: str
    #: The error codes of a response; the call is retried while one of them is retriable.
    error_codes: Callable[[ResponseT], Sequence[int]] = lambda _: ()
    _: KW_ONLY
    #: Retriable codes that are nevertheless returned to the caller.
    accepts: frozenset[int] = frozenset()
    #: A cap on the version of a request that is the same for all brokers.
    max_version: int | None = None

    def build(self, versions: NodeApiVersions) -> tuple[ApiRequest[ResponseT], int | None]:
        """Return the request for a broker's versions, and the cap on its version."""
        if isinstance(self.request, ApiRequest):
            return self.request, self.max_version
        return self.request(versions)


class ClusterCalls:
    """The calls to one cluster; see the module. `close` it."""

    def __init__(self, config: ClientConfig) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        # Describing a topic must not create it, as in Java's admin client.
        self._client = NetworkClient(
            replace(config, allow_auto_create_topics=False), on_change=self._changed.set
        )
        self._backoff = ExponentialBackoff(
            config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        )
        self._max_in_flight = config.max_in_flight_requests_per_connection
        self._slots: dict[int, asyncio.Semaphore] = {}
        #: The known coordinators, by the type and the name of what they coordinate.
        self._coordinators: dict[_Key, Node] = {}

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    async def reach(self, seconds: float, on_wait: Callable[[KafkaError], None]) -> None:
        """Wait until any broker answers; see `connection_waits`."""
        await wait_for_answer(self._client, (), Patience(seconds, _TIMEOUT), on_wait=on_wait)

    async def nodes(self, deadline: float) -> list[Node]:
        """Return every broker of the cluster, as of now."""
        attempts = 0
        while True:
            try:
                await self._client.update_metadata(deadline)
            except NetworkError as error:
                # The connection may have ended since it was last used.
                await self.back_off(attempts, deadline, "Metadata", error)
                attempts += 1
            else:
                break
        return list(self._client.metadata.snapshot.nodes.values())

    async def require(self, api_keys: Sequence[ApiKey], needed_by: str, deadline: float) -> None:
        """Raise UnsupportedVersionError unless every broker has these APIs.

        This is a first contact with all of them: it raises UnreachedError if their addresses are
        probably wrong, and KafkaTimeoutError if a broker cannot be reached by the deadline.
        """
        for node in await self.nodes(deadline):
            connection = await self._first_connection(node, deadline)
            if connection is None:
                continue
            lacking = [key.name for key in api_keys if key not in connection.api_versions.versions]
            if lacking:
                raise UnsupportedVersionError(
                    f"{node} does not support the API {' and '.join(lacking)}: {needed_by}"
                )

    async def _first_connection(self, node: Node, deadline: float) -> BrokerConnection | None:
        """Return a connection; None if the broker has left the cluster meanwhile."""
        attempts = 0
        while node in self._client.metadata.snapshot.nodes.values():
            # The others show whether its address is wrong, or it has crashed.
            self._client.dial_all()
            try:
                return await connection_to(self._client, node, deadline, self._changed)
            except UnreachedError:
                raise
            except NetworkError as error:
                await self.back_off(attempts, deadline, f"ApiVersions of {node}", error)
                attempts += 1
            if self._client.metadata.next_update_at() <= self._loop.time():
                with suppress(NetworkError):
                    await self._client.update_metadata(deadline)
        return None

    async def partition_count(self, topic: str, deadline: float, *, may_appear: bool) -> int:
        """Return the number of a topic's partitions.

        Raises KafkaTimeoutError if the topic is not known by the deadline, or sooner if no broker
        knows it, unless it `may_appear`; BrokerError if it is refused.
        """

        def is_missing() -> bool:
            known = self._client.metadata.snapshot.topics.get(topic)
            code = None if known is None else known.error_code
            return not may_appear and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        patience = Patience(deadline - self._loop.time(), _TIMEOUT)
        await wait_for_answer(self._client, [topic], patience, is_final=is_missing)
        return self._client.metadata.snapshot.partition_count(topic)

    async def list_all(
        self,
        call_for: Callable[[Node], Call[ResponseT]],
        read: Callable[[ResponseT, str], Iterable[T]],
        deadline: float,
    ) -> list[T]:
        """Return what each broker of the cluster lists, read from its response.

        Raises the error of the first broker whose call fails or whose response is an error.
        """
        requests = [call_for(node) for node in await self.nodes(deadline)]
        answers = await self.call_all(requests, deadline)
        return [
            item
            for call, answer in zip(requests, answers, strict=True)
            for item in read(raised(answer), call.what)
        ]

    async def call_all(
        self, calls: Sequence[Call[ResponseT]], deadline: float
    ) -> list[ResponseT | KafkaError]:
        """Make calls concurrently; return each one's response, or the KafkaError that ended it."""
        return await outcomes_of(self.call(call, deadline) for call in calls)

    async def try_all(
        self, calls: Sequence[Call[ResponseT]], deadline: float
    ) -> list[ResponseT | KafkaError]:
        """Try each call once, concurrently; return each one's response, or its KafkaError."""
        return await outcomes_of(self._ask(call, deadline) for call in calls)

    async def call(self, call: Call[ResponseT], deadline: float) -> ResponseT:
        """Make a call until it gets a final response.

        Raises KafkaTimeoutError, with the last cause, if there is none by the deadline,
        UnreachedError if no broker can be reached at its address, UnsupportedVersionError if the
        broker is too old, AuthenticationError if client and broker reject each other.
        """
        attempts = 0
        cause: KafkaError | None = None
        while True:
            try:
                response = await self._ask(call, deadline)
            except UnreachedError:
                raise
            except NetworkError as error:
                # An attempt that the deadline has cut off says less than the one before it.
                if cause is None or self._loop.time() < deadline:
                    cause = error
                self.look_up_again(call.destination)
                delay = self._backoff.delay(attempts)
            else:
                code = _first_retriable(call, response)
                if code is None:
                    return response
                cause = broker_error(code, f"{call.what} at {call.destination}")
                delay = self._delay(call.destination, code, attempts)
            attempts += 1
            await self._sleep(delay, deadline, f"{call.what} at {call.destination}", cause)

    async def back_off(
        self, attempts: int, deadline: float, what: str, cause: KafkaError | None
    ) -> None:
        """Wait before the next attempt; raises KafkaTimeoutError if there is no time for one."""
        await self._sleep(self._backoff.delay(attempts), deadline, what, cause)

    async def pause(self, attempts: int, deadline: float) -> bool:
        """Wait before the next attempt; return False at once if there is no time for one."""
        delay = self._backoff.delay(attempts)
        if self._loop.time() + delay >= deadline:
            return False
        await asyncio.sleep(delay)
        return True

    async def _sleep(
        self, delay: float, deadline: float, what: str, cause: KafkaError | None
    ) -> None:
        if self._loop.time() + delay >= deadline:
            raise out_of_time(what, cause) from cause
        await asyncio.sleep(delay)

    async def transaction_version(self, deadline: float) -> int:
        """Return the finalized level of transaction.version, as reported when connecting."""
        try:
            connection = await self._client.least_loaded_connection(deadline)
        except NetworkError as error:
            raise KafkaTimeoutError(f"no broker reported its features in time: {error}") from error
        return connection.api_versions.transaction_version

    def _delay(self, destination: Destination, code: int, attempts: int) -> float:
        if code == ErrorCode.CONCURRENT_TRANSACTIONS:
            return min(BUSY_BACKOFF * (attempts + 1), self._backoff.delay(attempts))
        if code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self.look_up_again(destination)
        if is_invalid_metadata(code):
            self._client.metadata.request_update()
        return self._backoff.delay(attempts)

    async def _ask(self, call: Call[ResponseT], deadline: float) -> ResponseT:
        """Make one attempt; raises NetworkError if no response arrives."""
        node = await self._node(call.destination, deadline)
        if node is None:
            connection = await self._client.least_loaded_connection(deadline)
            return await self._send(connection, call, deadline)
        slots = self._slots.setdefault(node.node_id, asyncio.Semaphore(self._max_in_flight))
        async with slots:
            connection = await connection_to(self._client, node, deadline, self._changed)
            return await self._send(connection, call, deadline)

    async def _send(
        self, connection: BrokerConnection, call: Call[ResponseT], deadline: float
    ) -> ResponseT:
        request, max_version = call.build(connection.api_versions)
        try:
            async with asyncio.timeout_at(deadline):
                return await connection.send(request, max_version=max_version)
        except TimeoutError as error:
            raise NetworkError(f"{connection.node} has not responded to {call.what} yet") from error

    # --- destinations

    async def _node(self, destination: Destination, deadline: float) -> Node | None:
        """Look up the node of a destination; None for any broker."""
        if isinstance(destination, CoordinatorOf):
            return await self._coordinator(_transaction(destination.transactional_id), deadline)
        if isinstance(destination, GroupCoordinatorOf):
            return await self._coordinator(_group(destination.group_id), deadline)
        if isinstance(destination, LeaderOf):
            return await self._leader(destination.topic_partition, deadline)
        if isinstance(destination, AnyBroker):
            return None
        return destination

    async def _leader(self, topic_partition: TopicPartition, deadline: float) -> Node:
        topic, partition = topic_partition
        await self._client.wait_for_topics([topic], deadline, partition=partition, limit=_TIMEOUT)
        if self._client.metadata.next_update_at() <= self._loop.time():
            # Unlike in the producer, there is no background thread here that does this.
            await self._client.update_metadata(deadline)
        node = self._client.metadata.snapshot.leader_of(topic_partition)
        if node is None:
            self._client.metadata.request_update()
            raise NetworkError(f"{topic_partition} has no leader at the moment")
        return node

    async def _coordinator(self, key: _Key, deadline: float) -> Node:
        known = self._coordinators.get(key)
        if known is not None:
            return known
        what = f"FindCoordinator of {key[1]!r}"
        response = await self.call(
            Call(
                AnyBroker(),
                lambda versions: (_find_coordinator(versions, key), None),
                what,
                lambda answer: [_only_coordinator(answer)[0]],
            ),
            deadline,
        )
        code, node = _only_coordinator(response)
        raise_for_code(code, what)
        self._coordinators[key] = node
        return node

    async def group_coordinator(self, group_id: str, deadline: float) -> Node:
        """Return the coordinator of a group; raises KafkaError if it is not found."""
        return await self._coordinator(_group(group_id), deadline)

    async def group_coordinators(
        self, group_ids: Iterable[str], deadline: float
    ) -> dict[str, Node]:
        """Return the coordinators of groups, looking up all with one request if possible.

        Groups whose coordinator is not found by this are left out.
        """
        keys = {name: _group(name) for name in group_ids}
        await self._find_at_once(keys.values(), deadline)
        known = self._coordinators
        return {name: known[key] for name, key in keys.items() if key in known}

    async def find_coordinators(
        self, transactional_ids: Iterable[str], deadline: float
    ) -> dict[Node, list[str]]:
        """Group ids by their coordinators, looking up several with one request if possible."""
        keys = {name: _transaction(name) for name in transactional_ids}
        # Ids that are not found by this are looked up, and waited for, one by one.
        await self._find_at_once(keys.values(), deadline)
        groups: dict[Node, list[str]] = {}
        for name, key in keys.items():
            node = await self._coordinator(key, deadline)
            groups.setdefault(node, []).append(name)
        return groups

    async def _find_at_once(self, keys: Iterable[_Key], deadline: float) -> None:
        """Look up the coordinators of keys of one type, unless there is only one."""
        unknown = [key for key in keys if key not in self._coordinators]
        if len(unknown) < _FEWEST_KEYS:
            return
        with suppress(NetworkError):
            connection = await self._client.least_loaded_connection(deadline)
            versions = connection.api_versions
            if versions.version_for(ApiKey.FIND_COORDINATOR) < _COORDINATOR_KEYS_VERSION:
                return
            response = await self._send(connection, _find_coordinators(unknown), deadline)
            by_name = {key[1]: key for key in unknown}
            for coordinator in response.coordinators:
                if not coordinator.error_code and coordinator.key in by_name:
                    node = Node(coordinator.node_id, coordinator.host, coordinator.port)
                    self._coordinators[by_name[coordinator.key]] = node

    def forget_coordinators(self, transactional_ids: Iterable[str]) -> None:
        """Remove the coordinators of ids; they are looked up again when needed."""
        for name in transactional_ids:
            self._coordinators.pop(_transaction(name), None)

    def look_up_again(self, destination: Destination) -> None:
        """Forget the broker of a destination, which may have moved; it is looked up when needed."""
        if isinstance(destination, CoordinatorOf):
            self.forget_coordinators([destination.transactional_id])
        elif isinstance(destination, GroupCoordinatorOf):
            self._coordinators.pop(_group(destination.group_id), None)
        elif isinstance(destination, LeaderOf):
            self._client.metadata.request_update()


async def outcomes_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T | KafkaError]:
    """Run coroutines concurrently; return the result of each, or the KafkaError that ended it.

    Raises any other error, but only when all have ended, so that none runs on unobserved.
    """
    outcomes: list[T | KafkaError] = []
    for outcome in await asyncio.gather(*coroutines, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, KafkaError):
            raise outcome
        outcomes.append(outcome)
    return outcomes


def raised(outcome: T | KafkaError) -> T:
    """Return the result of a call, or raise its KafkaError."""
    if isinstance(outcome, KafkaError):
        raise outcome
    return outcome


def error_in(code: int, what: str, message: str | None = None) -> BrokerError | None:
    """Return the error for a code in a response, or None for 0.

    `what` was refused, and `message` is the broker's own, if it has one.
    """
    if not code:
        return None
    error = broker_error(code, what)
    if not message:
        return error
    return BrokerError(
        f"{error}; the broker said: {message}",
        code=error.code,
        name=error.name,
        retriable=error.retriable,
        invalid_metadata=error.invalid_metadata,
    )


def raise_for_code(code: int, what: str, message: str | None = None) -> None:
    """Raise the error for a code in a response, unless it is 0; see `error_in`."""
    error = error_in(code, what, message)
    if error is not None:
        raise error


def out_of_time(what: str, cause: KafkaError | None) -> KafkaTimeoutError:
    """Return the error of a request that has no final response by its deadline."""
    error = KafkaTimeoutError(f"{what} got no final response in time; last cause: {cause}")
    error.__cause__ = cause
    return error


def _first_retriable(call: Call[ResponseT], response: ResponseT) -> int | None:
    for code in call.error_codes(response):
        if is_retriable(code) and code not in call.accepts:
            return code
    return None


def _transaction(transactional_id: str) -> _Key:
    return CoordinatorType.TRANSACTION, transactional_id


def _group(group_id: str) -> _Key:
    return CoordinatorType.GROUP, group_id


def _find_coordinator(versions: NodeApiVersions, key: _Key) -> FindCoordinatorRequest:
    key_type, name = key
    if versions.version_for(ApiKey.FIND_COORDINATOR) < _COORDINATOR_KEYS_VERSION:
        return FindCoordinatorRequest(key=name, key_type=key_type)
    return FindCoordinatorRequest(key_type=key_type, coordinator_keys=(name,))


def _find_coordinators(keys: Sequence[_Key]) -> Call[FindCoordinatorResponse]:
    request = FindCoordinatorRequest(
        key_type=keys[0][0], coordinator_keys=tuple(name for _, name in keys)
    )
    return Call(AnyBroker(), request, f"FindCoordinator of {len(keys)} ids")


def _only_coordinator(response: FindCoordinatorResponse) -> tuple[int, Node]:
    """Return the error code and the node of the only coordinator, in the old or the new format."""
    answer = response.coordinators[0] if response.coordinators else response
    return answer.error_code, Node(answer.node_id, answer.host, answer.port)
