"""Resolving the regular expressions of a consumer group: a portion with each heartbeat.

Kafka resolves them on a thread of its own, so members get their topics with a later heartbeat. This
broker has one thread, which a hostile expression could keep busy for minutes: each heartbeat takes
a limited number of steps, and the next one continues. Usual subscriptions take one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.regular_expression import (
    RegularExpression,
    TooMuchWorkError,
    Work,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger(__name__)

#: The steps that a heartbeat may take: about a quarter of a second, and enough to compile the
#: largest expression.
MAX_WORK = 600_000


def compile_regex(regex: str, work: Work) -> RegularExpression:
    """Compile a member's expression. Raises RefusedError if it is invalid, TooMuchWorkError."""
    try:
        return RegularExpression(regex, work)
    except ValueError as error:
        raise RefusedError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
        ) from None


class RegexResolution:
    """The expressions of a group, the names of all topics, and the matches found so far."""

    def __init__(self, group_id: str, regexes: Iterable[str], names: frozenset[str]) -> None:
        self.names = names
        #: The topics of the expressions that are resolved.
        self.topics: dict[str, frozenset[str]] = {}
        self._group_id = group_id
        self._regexes = sorted(regexes, reverse=True)
        self._left = sorted(names, reverse=True)
        self._matching: set[str] = set()
        self._steps = MAX_WORK

    def advance(self) -> bool:
        """Check as many names as the steps suffice for; return whether all are checked."""
        work = Work(self._steps)
        before = len(self._regexes), len(self._left)
        try:
            while self._regexes:
                self._resolve(self._regexes[-1], work)
        except TooMuchWorkError:
            if before == (len(self._regexes), len(self._left)):
                # The largest expressions need more for the longest names.
                self._steps *= 2
            return False
        return True

    def _resolve(self, regex: str, work: Work) -> None:
        """Check the names that are left for matches with one expression."""
        try:
            expression = compile_regex(regex, work)
        except RefusedError as refused:
            # A version of this broker with other limits may have accepted it. As in Kafka, where
            # the broker ignores it, that must not keep the members from sending heartbeats.
            logger.warning(
                "a regular expression of group %s matches no topics: %s",
                self._group_id,
                refused.message,
            )
            self._left = []
        while self._left:
            if expression.matches(self._left[-1]):
                self._matching.add(self._left[-1])
            del self._left[-1]
        self.topics[regex] = frozenset(self._matching)
        del self._regexes[-1]
        self._left = sorted(self.names, reverse=True)
        self._matching = set()
