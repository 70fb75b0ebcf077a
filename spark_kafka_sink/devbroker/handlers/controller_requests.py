"""Requests that brokers forward to the controller, in a cluster that replicates (KIP-590).

In Kafka the controller checks the client's rights. Here the broker does, which knows the client:
it forwards what the client may request, and refuses the rest itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import Delayed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spark_kafka_sink.devbroker.cluster.broker_view import BrokerView
    from spark_kafka_sink.devbroker.handlers.handler import RequestContext
    from spark_kafka_sink.protocol.schema import AnyRequest

ItemT = TypeVar("ItemT")


def forward_items(
    context: RequestContext,
    view: BrokerView,
    request: AnyRequest,
    fields: tuple[str, str],
    items: Iterable[ItemT],
    *,
    check: Callable[[ItemT], None],
    failed: Callable[[ItemT, RefusedError], Any],
) -> tuple[Any, ...] | Delayed:
    """Send the controller a request with those of its items that `check` does not refuse.

    `fields` are that of the items, and that of the results in the response. Returns the results of
    all items: the controller's, and what `failed` makes of a refusal.
    """
    allowed: list[ItemT] = []
    refusals: dict[Any, None] = {}
    for item in items:
        try:
            check(item)
        except RefusedError as refused:
            refusals[failed(item, refused)] = None
        else:
            allowed.append(item)
    if not allowed:
        return tuple(refusals)
    of_items, of_results = fields
    changes: dict[str, Any] = {of_items: tuple(allowed)}
    response = context.ask_controller(
        view,
        replace(request, **changes),  # type: ignore[type-var]  # all messages are dataclasses
    )
    if isinstance(response, Delayed):
        return response
    return (*getattr(response, of_results), *refusals)
