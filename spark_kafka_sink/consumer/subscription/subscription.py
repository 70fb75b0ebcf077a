"""The subscription of a consumer: to topics, a pattern, a broker's regex, or partitions.

A consumer has one kind of subscription at a time. Mixing two raises IllegalStateError and changes
nothing, until `clear` (Kafka's SubscriptionState.setSubscriptionType).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import IllegalStateError

if TYPE_CHECKING:
    import re
    from collections.abc import Collection, Iterable
    from uuid import UUID

    from spark_kafka_sink.model import TopicPartition

_NO_TOPICS: Final[frozenset[str]] = frozenset()


class SubscriptionType(Enum):
    """Kafka's types of a subscription (SubscriptionState.SubscriptionType)."""

    NONE = auto()
    #: A list of topics; the group assigns partitions.
    AUTO_TOPICS = auto()
    #: All topics that match a pattern, which this client evaluates.
    AUTO_PATTERN = auto()
    #: All topics that match a pattern in RE2 syntax, which the broker evaluates (KIP-848).
    AUTO_PATTERN_RE2J = auto()
    #: Partitions that the user names; there is no group membership.
    USER_ASSIGNED = auto()


_T = SubscriptionType
#: The types with which a group assigns the partitions.
_AUTO: Final = frozenset({_T.AUTO_TOPICS, _T.AUTO_PATTERN, _T.AUTO_PATTERN_RE2J})


class Subscription:
    """The kind of the subscription, and the topics that belong to it."""

    def __init__(self) -> None:
        self.type = _T.NONE
        self._topics = _NO_TOPICS
        self._group_topics = _NO_TOPICS
        #: The pattern that this client evaluates.
        self.pattern: re.Pattern[str] | None = None
        #: The pattern that the broker evaluates.
        self.broker_pattern: str | None = None
        #: The topic ids of the last target assignment, some of which may have no known name yet.
        self.assigned_topic_ids: frozenset[UUID] = frozenset()

    def __repr__(self) -> str:
        """Show the type, and the topics or the pattern."""
        match self.type:
            case _T.AUTO_PATTERN if self.pattern is not None:
                what = repr(self.pattern.pattern)
            case _T.AUTO_PATTERN_RE2J:
                what = repr(self.broker_pattern)
            case _:
                what = ", ".join(sorted(self._topics))
        return f"<{self.type.name}{': ' if what else ''}{what}>"

    def __str__(self) -> str:
        """Describe it to the user."""
        match self.type:
            case _T.NONE:
                return "not subscribed"
            case _T.AUTO_PATTERN if self.pattern is not None:
                return f"subscribed to the pattern {self.pattern.pattern!r}"
            case _T.AUTO_PATTERN_RE2J:
                return f"subscribed to the broker's pattern {self.broker_pattern!r}"
            case _T.USER_ASSIGNED:
                return f"assigned to partitions of {', '.join(sorted(self._topics))}"
            case _:
                return f"subscribed to {', '.join(sorted(self._topics))}"

    @property
    def is_auto_assigned(self) -> bool:
        """Whether a group assigns the partitions (hasAutoAssignedPartitions)."""
        return self.type in _AUTO

    @property
    def topics(self) -> frozenset[str]:
        """The topics subscribed to, by name or by a pattern; none for a manual assignment."""
        return self._topics if self.is_auto_assigned else _NO_TOPICS

    @property
    def metadata_topics(self) -> frozenset[str]:
        """The topics whose metadata are needed.

        The leader of a classic group also needs those of the other members, for its assignment.
        """
        return self._topics | self._group_topics

    def matches_pattern(self, topic: str) -> bool:
        """Return whether this client's pattern matches all of `topic`; False without one."""
        return self.pattern is not None and self.pattern.fullmatch(topic) is not None

    def is_assigned_by_broker_pattern(self, topic_id: UUID) -> bool:
        """Return whether the broker's regex has led to an assignment of the topic."""
        return self.type is _T.AUTO_PATTERN_RE2J and topic_id in self.assigned_topic_ids

    def covers(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether an assignment of a classic group fits the subscription.

        Source: SubscriptionState.checkAssignmentMatchedSubscription.
        """
        if self.pattern is not None:
            return all(self.matches_pattern(partition.topic) for partition in partitions)
        return all(partition.topic in self._topics for partition in partitions)

    def set_topics(self, topics: Collection[str]) -> bool:
        """Subscribe to `topics`; return whether they differ from the previous ones."""
        self._set_type(_T.AUTO_TOPICS)
        return self._change_topics(topics)

    def set_pattern(self, pattern: re.Pattern[str]) -> None:
        """Subscribe to the topics that match `pattern`, which `set_matching_topics` names."""
        self._set_type(_T.AUTO_PATTERN)
        self.pattern = pattern

    def set_matching_topics(self, topics: Collection[str]) -> bool:
        """Set the topics that match the pattern; return whether they differ from before.

        Raise IllegalStateError without a pattern.
        """
        if self.type is not _T.AUTO_PATTERN:
            raise IllegalStateError(f"there is no pattern: the subscription is {self!r}")
        return self._change_topics(topics)

    def set_broker_pattern(self, pattern: str) -> None:
        """Subscribe to the topics that the broker finds to match `pattern` (RE2 syntax)."""
        self._set_type(_T.AUTO_PATTERN_RE2J)
        self.broker_pattern = pattern

    def set_assigned(self, topics: Collection[str]) -> bool:
        """Read partitions of `topics` without a group; return whether the topics are others."""
        self._set_type(_T.USER_ASSIGNED)
        return self._change_topics(topics)

    def set_group_topics(self, topics: Collection[str]) -> bool:
        """Set the topics of all members, for the group's leader (SubscriptionState.groupSubscribe).

        Return whether the group has topics that this consumer does not subscribe to. Raise
        IllegalStateError without a group.
        """
        if not self.is_auto_assigned:
            raise IllegalStateError(f"no group assigns the partitions of {self!r}")
        self._group_topics = frozenset(topics)
        return not self._group_topics <= self._topics

    def reset_group_topics(self) -> None:
        """Forget the topics of the other members: this one no longer leads the group."""
        self._group_topics = _NO_TOPICS

    def clear(self) -> None:
        """End the subscription."""
        self.type = _T.NONE
        self._topics = self._group_topics = _NO_TOPICS
        self.pattern = self.broker_pattern = None
        self.assigned_topic_ids = frozenset()

    def _set_type(self, subscription_type: SubscriptionType) -> None:
        """Set the type, or raise if there is a subscription of another type."""
        if self.type not in {_T.NONE, subscription_type}:
            raise IllegalStateError(
                "a consumer can subscribe to topics, to one pattern or to partitions, but not to "
                f"two of these at once: it is {self}; unsubscribe first"
            )
        self.type = subscription_type

    def _change_topics(self, topics: Collection[str]) -> bool:
        previous, self._topics = self._topics, frozenset(topics)
        return previous != self._topics
