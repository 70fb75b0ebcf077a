"""Keeping a consumer's metadata fresh, and resolving its pattern (Kafka's ConsumerMetadata)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_kafka_sink.display import counted
from spark_kafka_sink.errors import DecodeError, NetworkError
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error

if TYPE_CHECKING:
    import re

    from spark_kafka_sink.consumer.consumer_context import ConsumerContext
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.network.metadata import MetadataSnapshot

logger = logging.getLogger(__name__)


class TopicUpdates:
    """The metadata requests of one consumer; `advance` is called under the lock."""

    def __init__(self, context: ConsumerContext) -> None:
        self._context = context
        self._is_updating = False
        self._is_matching = False
        #: The pattern that `matching_topics` belong to, and when to match it again.
        self._matched: re.Pattern[str] | None = None
        self._match_at = 0.0
        #: The last pattern that was looked up, perhaps without an answer.
        self._tried: re.Pattern[str] | None = None
        #: Whether the group is to be joined after another look, and whether that is over.
        self._is_requested = self._is_fresh = False
        self._warned: set[str] = set()

    def is_ready(self, *, is_joining: bool) -> bool:
        """Return whether the subscribed topics are known; needs the lock.

        A pattern's are only after a look-up. There is another one before each join, so that all
        members find a new topic in the same rebalance.

        Source: ConsumerCoordinator.poll.
        """
        pattern = self._context.subscriptions.subscription.pattern
        if pattern is None:
            return True
        if not is_joining:
            self._is_requested = self._is_fresh = False
        elif not self._is_fresh and not self._is_requested:
            self._is_requested = True
            self._match_at = 0.0
            self._context.wake()
        return pattern is self._matched and (self._is_fresh or not is_joining)

    def forget_pattern(self) -> None:
        """Forget what the pattern has matched: the same one is matched again. Needs the lock."""
        self._matched = self._tried = None

    def advance(self, now: float) -> float:
        """Start what is due at `now`, and return when to call again."""
        context = self._context
        pattern = context.subscriptions.subscription.pattern
        until = NEVER
        if pattern is not None:
            if pattern is not self._tried:
                self._tried, self._match_at = pattern, now
            if not self._is_matching and now >= self._match_at:
                self._is_matching = True
                is_new = self._is_requested or pattern is not self._matched
                context.start(lambda: self._match(pattern, is_new=is_new))
            until = self._match_at if not self._is_matching else NEVER
        topics = self._topics()
        if topics and not self._is_updating:
            metadata = context.client.metadata
            for topic in topics:
                metadata.add_topic(topic, now)
            due = metadata.next_update_at()
            if due <= now:
                self._is_updating = True
                context.start(self._update)
            else:
                until = min(until, due)
        return until

    def _topics(self) -> frozenset[str]:
        subscriptions = self._context.subscriptions
        assigned = {partition.topic for partition in subscriptions.assigned_partitions}
        return subscriptions.subscription.metadata_topics | assigned

    async def _update(self) -> None:
        context = self._context
        deadline = context.clock() + context.config.request_timeout_ms / 1000
        failure: Exception | None = None
        try:
            await context.client.update_metadata(deadline)
        except (NetworkError, DecodeError):
            pass
        except Exception as error:  # noqa: BLE001  the user's next call raises it
            failure = error
        with context.lock:
            self._is_updating = False
            if failure is not None:
                context.fail(failure)
            else:
                self._look_for_errors()
            context.tell_user()

    def _look_for_errors(self) -> None:
        """Raise what makes topics unreadable (Metadata.maybeThrowAnyException)."""
        context = self._context
        snapshot = context.client.metadata.snapshot
        for name in self._topics():
            topic = snapshot.topics.get(name)
            code = 0 if topic is None else topic.error_code
            if code in {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION}:
                advice = (
                    "Grant this user DESCRIBE and READ on the topic"
                    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    else None
                )
                context.fail(broker_error(code, f"topic {name!r} cannot be read", advice))
            self._warn_once(_missing_topic(name, snapshot))
        for partition in context.subscriptions.assigned_partitions:
            self._warn_once(why_missing(partition, snapshot))

    def _warn_once(self, why: str | None) -> None:
        if why is not None and why not in self._warned:
            self._warned.add(why)
            logger.warning("%s; it is read as soon as it exists", why)

    async def _match(self, pattern: re.Pattern[str], *, is_new: bool) -> None:
        context = self._context
        limit = context.config.request_timeout_ms / 1000
        names: list[str] | None = None
        failure: Exception | None = None
        try:
            names = await context.calls.topic_names(
                context.clock() + limit,
                includes_internal=not context.config.exclude_internal_topics,
            )
        except (NetworkError, DecodeError):
            pass
        except Exception as error:  # noqa: BLE001  the user's next call raises it
            failure = error
        with context.lock:
            self._is_matching = False
            config = context.config
            pause = config.retry_backoff_ms if names is None else config.metadata_max_age_ms
            self._match_at = context.clock() + pause / 1000
            if self._is_requested and not is_new:
                self._match_at = 0.0
            subscription = context.subscriptions.subscription
            if failure is not None:
                context.fail(failure)
            if names is not None and subscription.pattern is pattern:
                subscription.set_matching_topics(
                    [name for name in names if subscription.matches_pattern(name)]
                )
                self._matched = pattern
                if is_new:
                    self._is_fresh, self._is_requested = True, False
            context.tell_user()


def why_missing(partition: TopicPartition, snapshot: MetadataSnapshot) -> str | None:
    """Return why a partition does not exist, by the metadata; None if they do not say so."""
    count = snapshot.partition_count(partition.topic)
    if not count:
        return _missing_topic(partition.topic, snapshot)
    if partition.partition < count:
        return None
    return f"{partition} does not exist: its topic has {counted(count, 'partition')}"


def _missing_topic(name: str, snapshot: MetadataSnapshot) -> str | None:
    topic = snapshot.topics.get(name)
    if topic is None or topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    return f"topic {name!r} does not exist, or this user may not describe it"
