"""The user's side of commits: synchronous, asynchronous and automatic ones, and their callbacks.

The network side sends them (`group.offset_commits`); the user's side starts them, calls the
callbacks, and raises what prevents every later commit. The methods are called without the lock
unless they say otherwise.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kafka_sink.consumer.group.commit_rules import AutoCommit
from spark_kafka_sink.consumer.group.offset_commits import DELETED, OffsetCommits, PreparedCommit
from spark_kafka_sink.errors import BrokerError, KafkaError, KafkaTimeoutError, WakeupError
from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from spark_kafka_sink.consumer.consumer_context import Waiting
    from spark_kafka_sink.consumer.consumer_core import ConsumerCore
    from spark_kafka_sink.consumer.interceptors import ConsumerInterceptors

logger = logging.getLogger(__name__)

Offsets = dict[TopicPartition, OffsetAndMetadata]


class _CommitDone(NamedTuple):
    """An asynchronous commit that has ended, for the user's callback."""

    callback: (
        Callable[[Mapping[TopicPartition, OffsetAndMetadata], Exception | None], object] | None
    )
    offsets: Offsets
    error: Exception | None
    #: Whether the interceptors have been told.
    is_noted: bool = False


class Commits:
    """The commits of one consumer."""

    def __init__(self, core: ConsumerCore, interceptors: ConsumerInterceptors) -> None:
        """Use the parts of `core`; `interceptors` are told of each commit that succeeds."""
        self._core = core
        self._interceptors = interceptors
        self._context = core.context
        self._subscriptions = core.subscriptions
        config = core.config
        self._context.commit_positions = self._commit_positions
        self._done: deque[_CommitDone] = deque()
        #: The asynchronous commits that have not ended.
        self._pending: set[object] = set()
        #: The error of an asynchronous commit after which no call can succeed.
        self._fenced: KafkaError | None = None
        self._auto_commit = AutoCommit(
            config.auto_commit_interval_ms / 1000,
            core.clock(),
            is_enabled=config.enable_auto_commit,
        )

    @property
    def _requests(self) -> OffsetCommits:
        requests = self._core.offset_commits
        assert requests is not None  # noqa: S101  the callers have checked that there is a group
        return requests

    def commit(self, offsets: Offsets, timeout: float) -> Waiting[None]:
        """Commit offsets, and wait for it (`KafkaConsumer.commit`)."""
        try:
            yield from self._commit(offsets, timeout, is_wakeable=True)
        except WakeupError:
            # It must not be lost to the error of a callback, which a later call raises.
            raise
        except KafkaError:
            # As in Java: earlier commits may have ended, and their callbacks come first.
            yield from self.call_back()
            raise
        yield from self.run_callbacks()

    def _commit(self, offsets: Offsets, timeout: float, *, is_wakeable: bool) -> Waiting[None]:
        self._raise_fenced()
        prepared = self._requests.prepare(offsets)
        deadline = self._core.clock() + timeout
        # As in Java: an older commit must not overwrite this one.
        if not (yield from self.await_pending(deadline, is_wakeable=is_wakeable)):
            raise KafkaTimeoutError(
                f"OffsetCommit: asynchronous commits have had no answer within {timeout:g} s"
            )
        left = max(deadline - self._core.clock(), 0)
        call = partial(self._requests.commit, prepared, deadline)
        yield from self._core.call(call, left, "OffsetCommit", is_wakeable=is_wakeable)
        self._interceptors.on_commit(offsets)

    def commit_async(self, offsets: Offsets, callback: Any) -> None:
        """Commit offsets without waiting (`KafkaConsumer.commit_async`)."""
        self._raise_fenced()
        self._submit(offsets, callback)

    def _submit(self, offsets: Offsets, callback: Any) -> None:
        try:
            prepared = self._requests.prepare(offsets)
        except KafkaError as error:
            self._end_later(offsets, callback, error)
            return
        pending = object()
        try:
            with self._context.lock:
                self._pending.add(pending)
            self._core.submit(partial(self._commit_later, prepared, offsets, callback, pending))
        except BaseException:
            # After Ctrl-C it may not have been sent, and would never end.
            self._pending.discard(pending)
            raise

    async def _commit_later(
        self, prepared: PreparedCommit, offsets: Offsets, callback: Any, pending: object
    ) -> None:
        error: Exception | None = None
        limit = self._core.config.default_api_timeout_ms / 1000
        try:
            await self._requests.commit(prepared, self._core.clock() + limit, retries=False)
        except Exception as raised:  # noqa: BLE001  the callback gets it
            error = raised
        with self._context.lock:
            self._pending.discard(pending)
            self._note_fencing(error)
            self._end_later(offsets, callback, error)
            self._context.tell_user()

    def _end_later(self, offsets: Offsets, callback: Any, error: Exception | None) -> None:
        """Call the callback in a later call of the user's."""
        self._done.append(_CommitDone(callback, offsets, error))
        if callback is None and error is not None:
            logger.warning("an asynchronous commit has failed: %s", error)

    def _note_fencing(self, error: Exception | None) -> None:
        if isinstance(error, BrokerError) and error.code == ErrorCode.FENCED_INSTANCE_ID:
            self._fenced = error

    def _raise_fenced(self) -> None:
        """Raise the error of an earlier asynchronous commit, by each call.

        Another consumer has this one's group.instance.id, and would be fenced in turn.
        """
        if self._fenced is not None:
            raise self._fenced

    def run_callbacks(self) -> Waiting[None]:
        """Call the callbacks of asynchronous commits that have ended; raise if one was fenced."""
        yield from self.call_back()
        self._raise_fenced()

    def call_back(self) -> Waiting[None]:
        """Call the callbacks of asynchronous commits that have ended."""
        while self._done:
            done = self._done[0]
            # What is called may call this method, or be interrupted: the rest stays first.
            if done.error is None and not done.is_noted:
                self._done[0] = done._replace(is_noted=True)
                self._interceptors.on_commit(done.offsets)
                continue
            callback = done.callback
            # Ctrl-C comes at the beginning of a call at the earliest.
            del self._done[0]
            if callback is not None:
                yield from self._context.await_user(callback(done.offsets, done.error))

    def commit_if_due(self, now: float) -> float:
        """Commit the positions every auto.commit.interval.ms; return when it is due next.

        Needs the lock.
        """
        coordinator = self._core.coordinator
        if coordinator is not None and coordinator.for_user:
            # The positions are being committed before the group is joined.
            return NEVER
        if self._auto_commit.is_due(now):
            prepared = self._prepare_automatic()
            if prepared is not None:
                self._core.submit(partial(self._commit_automatically, prepared))
            # Not before, or none would follow after Ctrl-C. It ends later: that needs the lock.
            self._auto_commit.begin(now, is_sent=prepared is not None)
        return self._auto_commit.wake_up_at

    def restart_interval(self, now: float) -> None:
        """Start an interval of automatic commits: the consumer has a new assignment."""
        self._auto_commit.restart(now)

    def _prepare_automatic(self) -> PreparedCommit | None:
        """Return the commit of all positions; None without any, or outside of a generation."""
        offsets = self._subscriptions.all_consumed()
        if self._core.offset_commits is None or not offsets:
            return None
        try:
            return self._requests.prepare(offsets, is_of_user=False)
        except KafkaError:
            return None

    async def _commit_automatically(self, prepared: PreparedCommit) -> None:
        error: Exception | None = None
        limit = self._core.config.default_api_timeout_ms / 1000
        try:
            await self._requests.commit(prepared, self._core.clock() + limit, retries=False)
        except Exception as raised:  # noqa: BLE001  there is another one after the interval
            error = raised
        with self._context.lock:
            pause = None
            if error is not None:
                self._note_fencing(error)
                # A topic that was deleted is reported when it is read; the next interval suffices.
                is_gone = getattr(error, "code", None) in DELETED
                level = logging.DEBUG if is_gone else logging.WARNING
                logger.log(level, "automatic commit: %s", error)
                if isinstance(error, KafkaError) and error.retriable and not is_gone:
                    pause = self._core.config.retry_backoff_ms / 1000
            else:
                self._done.append(_CommitDone(None, dict(prepared.offsets), None))
            self._auto_commit.end(self._core.clock(), retry_after=pause)
            # A long poll does not know when the next one is due.
            self._context.tell_user()

    def commit_before_assignment(self) -> None:
        """Begin to commit all positions if that is automatic; a failure is only logged.

        It is not repeated, because a later commit may have been faster.
        """
        if offsets := self._automatic_offsets():
            self._submit(offsets, None)

    async def _commit_positions(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float
    ) -> None:
        """Commit offsets from the network side; a failure is only logged."""
        if offsets:
            try:
                prepared = self._requests.prepare(offsets, is_of_user=False)
                await self._requests.commit(prepared, deadline)
            except KafkaError as error:
                logger.warning("automatic commit before a rebalance: %s", error)
            else:
                with self._context.lock:
                    self._done.append(_CommitDone(None, dict(offsets), None))

    def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Waiting[dict[TopicPartition, OffsetAndMetadata | None]]:
        """Return the committed offsets; None where there is none."""
        call = partial(self._requests.fetch, partitions, self._core.clock() + timeout)
        return self._core.call(call, timeout, "OffsetFetch")

    def commit_before_close(self, timeout: float) -> Waiting[None]:
        """Commit all positions if that is automatic; a failure is only logged."""
        offsets = self._automatic_offsets()
        if not offsets:
            return
        try:
            if timeout > 0:
                yield from self._commit(offsets, timeout, is_wakeable=False)
            else:
                # It is sent before LeaveGroup, and its answer is not waited for.
                prepared = self._requests.prepare(offsets, is_of_user=False)
                self._core.submit(partial(self._requests.commit_last, prepared))
        except KafkaError as error:
            logger.warning("automatic commit while the consumer is closed: %s", error)

    def _automatic_offsets(self) -> Offsets:
        """Return the positions if they are committed automatically; otherwise none."""
        if not self._auto_commit.is_enabled:
            return {}
        with self._context.lock:
            return self._subscriptions.all_consumed()

    def begin_pending(self) -> Waiting[None]:
        """Start the asynchronous commits, as the member that is about to leave.

        They need no broker for that, so that it does not take long.
        """
        if self._pending:
            limit = self._core.config.request_timeout_ms / 1000
            yield from self._core.call(_nothing, limit, "OffsetCommit", is_wakeable=False)

    def await_pending(self, deadline: float, *, is_wakeable: bool = False) -> Waiting[bool]:
        """Wait for the asynchronous commits; return whether they have ended."""
        while self._pending and (left := deadline - self._core.clock()) > 0:
            if is_wakeable:
                self._core.raise_wakeup()
            yield from self._context.wait(left)
        return not self._pending


async def _nothing() -> None:
    """Do nothing: returns once everything submitted earlier has started."""
