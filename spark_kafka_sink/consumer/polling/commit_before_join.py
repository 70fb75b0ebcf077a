"""The automatic commit before a member of a classic group joins again.

It goes on while the user's thread returns from `poll` and calls it again, so that `poll` keeps to
its timeout (Kafka's ConsumerCoordinator.onJoinPrepare).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.consumer.membership.group_values import PrepareJoin
    from spark_kafka_sink.consumer.polling.consumer_context import ConsumerContext
    from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition


class CommitBeforeJoin:
    """The commits of one consumer, each for one step; `is_done` is called under the lock."""

    def __init__(self, context: ConsumerContext) -> None:
        """Start without a commit."""
        self._context = context
        self._step: PrepareJoin | None = None
        self._is_done = False

    def is_done(self, step: PrepareJoin, now: float, *, is_eager: bool) -> bool:
        """Begin the commit of all positions, unless it has begun; return whether it has ended.

        With an eager assignor no further records are returned, which the commit would not cover.
        """
        context = self._context
        if step != self._step:
            self._step = step
            offsets = context.subscriptions.all_consumed()
            self._is_done = not (context.config.enable_auto_commit and offsets)
            if not self._is_done:
                if is_eager:
                    subscriptions = context.subscriptions
                    subscriptions.mark_pending_revocation(subscriptions.assigned_partitions)
                limit = now + context.config.max_poll_interval_ms / 1000
                context.start(partial(self._commit, step, offsets, limit))
        return self._is_done

    async def _commit(
        self,
        step: PrepareJoin,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: float,
    ) -> None:
        try:
            await self._context.commit_positions(offsets, deadline)
        finally:
            with self._context.lock:
                if step == self._step:
                    self._is_done = True
                self._context.tell_user()
