"""Requests about several items, such as topics or partitions, each with a result of its own.

The items are grouped by the brokers that they concern, and each group is one request. Items whose
result is retriable are sent again, after a back-off and to the brokers that then are the right
ones, until the deadline: the others are not. (Java's AdminApiDriver works in the same way.)

A topic that brokers do not know may have just been created. Unless the request is one for the
controller, which knows all topics, it is waited for, but only for `FINAL_SECONDS`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from spark_kafka_sink.admin.cluster_calls import AnyBroker, Call, out_of_time
from spark_kafka_sink.errors import (
    AdminError,
    AuthenticationError,
    BrokerError,
    DecodeError,
    KafkaError,
    KafkaTimeoutError,
)
from spark_kafka_sink.network.cluster_connection_states import FINAL_SECONDS
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.schema import ApiRequest, ResponseT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from spark_kafka_sink.admin.cluster_calls import ClusterCalls, Destination
    from spark_kafka_sink.model import Node

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

#: The items of each request with its destination, and the errors of items that have none.
Routes: TypeAlias = tuple[list[tuple["Destination", list[KeyT]]], dict[KeyT, KafkaError]]
_UNKNOWN_TOPICS = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


async def to_any_broker(
    _calls: ClusterCalls, keys: Sequence[KeyT], _deadline: float
) -> Routes[KeyT]:
    """Send all items to any broker in one request."""
    return [(AnyBroker(), list(keys))], {}


def split(groups: Mapping[Node, Sequence[KeyT]], most: int) -> list[tuple[Destination, list[KeyT]]]:
    """Return the requests to nodes, each about at most `most` of a node's items."""
    return [
        (node, list(keys[start : start + most]))
        for node, keys in groups.items()
        for start in range(0, len(keys), most)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRequest(Generic[KeyT, ResponseT, ValueT]):
    """A kind of request about items."""

    #: A description for errors: "DeleteTopics".
    what: str
    #: Builds the call for some items; the number is that of the seconds that are left.
    build: Callable[[Destination, Sequence[KeyT], float], Call[ResponseT]]
    #: Reads the result of each item, or its error; items may be missing or be others.
    read: Callable[[ResponseT, Sequence[KeyT]], Iterable[tuple[KeyT, ValueT | KafkaError]]]
    #: Finds the brokers of items.
    route: Callable[[ClusterCalls, Sequence[KeyT], float], Awaitable[Routes[KeyT]]] = to_any_broker
    #: Handles the retriable errors of items: a broker that was looked up may not be the right one.
    forget: Callable[[ClusterCalls, Sequence[KeyT]], None] = lambda _calls, _keys: None
    #: Whether the controller answers, which knows all topics, unlike other brokers.
    is_for_controller: bool = False

    @classmethod
    def of(
        cls,
        what: str,
        request: Callable[[Sequence[KeyT], int], ApiRequest[ResponseT]],
        read: Callable[[ResponseT, Sequence[KeyT]], Iterable[tuple[KeyT, ValueT | KafkaError]]],
        *,
        route: Callable[
            [ClusterCalls, Sequence[KeyT], float], Awaitable[Routes[KeyT]]
        ] = to_any_broker,
        forget: Callable[[ClusterCalls, Sequence[KeyT]], None] = lambda _calls, _keys: None,
        is_for_controller: bool = False,
    ) -> ItemRequest[KeyT, ResponseT, ValueT]:
        """Return a kind of request that does not depend on the versions of the broker.

        `request` builds it for some items; the number is that of the milliseconds that are left.
        """
        return cls(
            what=what,
            build=lambda destination, keys, seconds: Call(
                destination, request(keys, int(seconds * 1000)), what
            ),
            read=read,
            route=route,
            forget=forget,
            is_for_controller=is_for_controller,
        )


@dataclass(slots=True)
class ItemResults(Generic[KeyT, ValueT]):
    """The results of items, and the errors of the others."""

    results: dict[KeyT, ValueT]
    errors: dict[KeyT, KafkaError]

    def add(self, key: KeyT, result: ValueT | KafkaError) -> None:
        """Store the final result of an item."""
        if isinstance(result, KafkaError):
            self.errors[key] = result
        else:
            self.results[key] = result


async def request_items(
    calls: ClusterCalls,
    request: ItemRequest[KeyT, ResponseT, ValueT],
    keys: Iterable[KeyT],
    deadline: float,
) -> ItemResults[KeyT, ValueT]:
    """Send a request about items until each has a final result.

    Raises AuthenticationError, which concerns no item, and the error because of which the brokers
    of the items cannot be found.
    """
    clock = asyncio.get_running_loop().time
    topics_known_at = clock() + (0 if request.is_for_controller else FINAL_SECONDS)
    results: ItemResults[KeyT, ValueT] = ItemResults({}, {})
    waiting = list(dict.fromkeys(keys))
    attempts = 0
    while waiting:
        retried: dict[KeyT, KafkaError] = {}
        for key, result in await _attempt(calls, request, waiting, deadline):
            is_final = not isinstance(result, KafkaError) or not (
                result.retriable
                and (clock() < topics_known_at or not _is_about_unknown_topic(result))
            )
            if is_final:
                results.add(key, result)
            elif isinstance(result, KafkaError):
                retried[key] = result
        waiting = list(retried)
        if not waiting:
            break
        request.forget(calls, waiting)
        if not await calls.pause(attempts, deadline):
            for key, cause in retried.items():
                results.add(key, out_of_time(request.what, cause))
            break
        attempts += 1
    return results


async def _attempt(
    calls: ClusterCalls,
    request: ItemRequest[KeyT, ResponseT, ValueT],
    keys: Sequence[KeyT],
    deadline: float,
) -> list[tuple[KeyT, ValueT | KafkaError]]:
    """Send the items once, and return a result or an error for each."""
    routes, lost = await request.route(calls, keys, deadline)
    seconds = max(0.0, deadline - asyncio.get_running_loop().time())
    requests = [request.build(destination, group, seconds) for destination, group in routes]
    results: dict[KeyT, ValueT | KafkaError] = dict(lost)
    for (destination, group), answer in zip(
        routes, await calls.try_all(requests, deadline), strict=True
    ):
        if isinstance(answer, AuthenticationError):
            raise answer
        if isinstance(answer, KafkaError):
            results.update(dict.fromkeys(group, answer))
            continue
        read = dict(request.read(answer, group))
        missing = DecodeError(f"{request.what}: the response of {destination} does not have it")
        results.update({key: read.get(key, missing) for key in group})
    return list(results.items())


def _is_about_unknown_topic(error: KafkaError) -> bool:
    return isinstance(error, BrokerError) and error.code in _UNKNOWN_TOPICS


def all_of(what: str, answer: ItemResults[KeyT, ValueT]) -> dict[KeyT, ValueT]:
    """Return the results if no item failed; otherwise raise the errors.

    If no broker has answered for any item, that is one error, and the items do not matter.
    """
    errors = list(answer.errors.values())
    if not errors:
        return answer.results
    if not answer.results and not any(map(_is_from_a_broker, errors)):
        if len({str(error) for error in errors}) == 1:
            raise errors[0]
        if all(isinstance(error, KafkaTimeoutError) for error in errors):
            # Their texts differ if each names its item, such as the group of a coordinator.
            first = errors[0].__cause__ or errors[0]
            raise KafkaTimeoutError(
                f"{what} got no final response in time for any of {len(errors)} items; last cause "
                f"for the first: {first}"
            ) from first
    raise AdminError(what, answer.errors, answer.results)


def _is_from_a_broker(error: KafkaError) -> bool:
    cause = error.__cause__ if isinstance(error, KafkaTimeoutError) else error
    return isinstance(cause, BrokerError)
