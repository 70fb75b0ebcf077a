"""The user's view of rebalances: `ConsumerRebalanceListener`, and how it is called."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self

from spark_kafka_sink.errors import KafkaError, WakeupError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from spark_kafka_sink.consumer.consumer_context import ConsumerContext, Waiting
    from spark_kafka_sink.model import TopicPartition

logger = logging.getLogger(__name__)


class ConsumerRebalanceListener:
    """Methods that `poll` calls when the group changes what this consumer reads.

    Override those that you need; each gets the partitions concerned and may use the consumer. An
    exception is raised by `poll`, after the rebalance. Java's interface has the same name.

    >>> class Committing(ConsumerRebalanceListener):
    ...     def __init__(self, consumer):
    ...         self.consumer = consumer
    ...
    ...     def on_partitions_revoked(self, partitions):
    ...         self.consumer.commit()
    """

    def on_partitions_assigned(
        self,
        partitions: Collection[TopicPartition],  # noqa: ARG002  for those that override it
    ) -> Awaitable[None] | None:
        """Handle new partitions, before they are read: a place to `seek`."""
        return None

    def on_partitions_revoked(
        self,
        partitions: Collection[TopicPartition],  # noqa: ARG002  likewise
    ) -> Awaitable[None] | None:
        """Handle partitions that another member gets next: a place to commit what was done."""
        return None

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """Handle partitions that another member may have already; offsets cannot be committed.

        Unless it is overridden, it calls `on_partitions_revoked`.
        """
        return self.on_partitions_revoked(partitions)


def call_listener(
    context: ConsumerContext,
    listener: object | None,
    method: str,
    partitions: Iterable[TopicPartition],
    *,
    always: bool = False,
) -> Waiting[bool]:
    """Call a method of the user's listener, if there is one; `always` also without partitions.

    Return whether it was called. Raises KafkaError with the listener's error as its cause.
    """
    concerned = tuple(partitions)
    if concerned:
        logger.info("%s: %s", method, ", ".join(map(str, sorted(concerned))))
    if listener is None or not (concerned or always):
        return False
    try:
        yield from context.await_user(getattr(listener, method)(concerned))
    except WakeupError:
        # Of a call within the listener; it is the user's, as in Java.
        raise
    except Exception as error:
        raise KafkaError(
            f"the rebalance listener's {method} raised {type(error).__name__}: {error}. The "
            "rebalance has gone on without it"
        ) from error
    return True


class FirstError:
    """Calls several functions although one may fail, and then raises the first error."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None

    def of(self, call: Callable[[], Waiting[None]]) -> Waiting[None]:
        """Call a function; keep its error for the end."""
        try:
            yield from call()
        except KafkaError as error:
            self._error = self._error or error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        """Raise the first error, unless the block itself has raised one."""
        if exc is None and self._error is not None:
            raise self._error
