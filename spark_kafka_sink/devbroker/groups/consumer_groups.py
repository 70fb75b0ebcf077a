"""The coordinator of consumer groups of the new protocol (KIP-848).

The part of Kafka's GroupMetadataManager 4.3 that handles ConsumerGroupHeartbeat. A heartbeat takes
three steps: it creates or updates the member, which may raise the group's epoch; it computes a new
target assignment if the epoch is ahead of it; it moves the member towards its target. The response
has the member's epoch, and its assignment if that changed.

Members and groups are not converted between the classic protocol and this one, except for a group
without members: the broker behaves as Kafka with group.consumer.migration.policy=disabled.
"""

from __future__ import annotations

import base64
import logging
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.regular_expression import (
    RegularExpression,
    TooMuchWorkError,
    Work,
)
from spark_kafka_sink.devbroker.groups.classic_group import ClassicGroup, RequestSender
from spark_kafka_sink.devbroker.groups.consumer_group import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    ResolvedRegex,
    TopicIdPartition,
    reconcile,
)
from spark_kafka_sink.devbroker.groups.group_records import (
    encode_changes,
    encode_deleted_group,
    partitions_by_topic,
)
from spark_kafka_sink.devbroker.groups.partition_assignors import ASSIGNORS, AssignedMember, assign
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.consumer_group_heartbeat import (
    JOIN_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_kafka_sink.devbroker.base.timers import Timer
    from spark_kafka_sink.devbroker.cluster.cluster_state import ClusterState
    from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorLog
    from spark_kafka_sink.protocol.messages.leave_group import MemberIdentity

logger = logging.getLogger(__name__)

#: Since this version members create their own ids (KIP-1082).
_FIRST_VERSION_WITH_MEMBER_IDS = 1
#: Regular expressions are not resolved more often than this.
_REGEX_REFRESH_MIN_INTERVAL_MS = 10_000
#: The steps of a regular expression that a heartbeat may take: about a quarter of a second, and
#: enough to compile the largest expression.
MAX_WORK = 600_000


class ConsumerGroups:
    """The consumer groups among all groups."""

    def __init__(
        self,
        cluster: ClusterState,
        groups: dict[str, ClassicGroup | ConsumerGroup],
        log: CoordinatorLog,
    ) -> None:
        """Manage the consumer groups in `groups`, which has the classic groups too."""
        self._settings = cluster.settings
        self._timers = cluster.timers
        self._topics = cluster.topic_index
        self._groups = groups
        self._log = log
        #: By group and member id.
        self._session_timers: dict[tuple[str, str], Timer] = {}
        self._rebalance_timers: dict[tuple[str, str], Timer] = {}

    # Sessions.

    def restart_sessions(self, group: ConsumerGroup, now: float) -> None:
        """Restart the sessions of all members: the group was loaded, or the broker restarted."""
        for member in group.members.values():
            self._restart_session(group.group_id, member.member_id, now)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                self._start_rebalance_timeout(group.group_id, member, now)

    def unload(self, group: ConsumerGroup) -> None:
        """Stop the sessions of a group that another broker coordinates now."""
        for member_id in group.members:
            _cancel(self._session_timers, group.group_id, member_id)
            _cancel(self._rebalance_timers, group.group_id, member_id)

    def _restart_session(self, group_id: str, member_id: str, now: float) -> None:
        _cancel(self._session_timers, group_id, member_id)
        self._session_timers[group_id, member_id] = self._timers.schedule(
            now + self._settings.group_consumer_session_timeout_ms / 1000,
            partial(self._expire, group_id, member_id, "its session expired"),
        )

    def _start_rebalance_timeout(self, group_id: str, member: ConsumerMember, now: float) -> None:
        def expire(then: float) -> None:
            group = self._groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                current = group.members.get(member.member_id)
                if current is not None and current.member_epoch == member.member_epoch:
                    reason = f"it did not leave epoch {member.member_epoch} in time"
                    self._expire(group_id, member.member_id, reason, then)

        _cancel(self._rebalance_timers, group_id, member.member_id)
        self._rebalance_timers[group_id, member.member_id] = self._timers.schedule(
            now + member.rebalance_timeout_ms / 1000, expire
        )

    def _expire(self, group_id: str, member_id: str, reason: str, now: float) -> None:
        _cancel(self._session_timers, group_id, member_id)
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or member_id not in group.members:
            return
        logger.info("member %s of group %s is fenced: %s", member_id, group_id, reason)
        try:
            self._fence(group, [member_id], now)
        except RefusedError as refused:
            # Kafka retries as well, after half a second.
            logger.warning("cannot fence member %s of %s: %s", member_id, group_id, refused)
            self._restart_session(group_id, member_id, now)

    # Heartbeats.

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, sender: RequestSender, now: float
    ) -> ConsumerGroupHeartbeatResponse:
        """Handle a heartbeat. Raises RefusedError; then nothing has changed."""
        _check_request(request, sender.version)
        if request.member_epoch in {LEAVE_GROUP_MEMBER_EPOCH, LEAVE_GROUP_STATIC_MEMBER_EPOCH}:
            return self._leave(request, now)
        is_joining = request.member_epoch == JOIN_GROUP_MEMBER_EPOCH
        before = self._find_or_create(request.group_id, create=is_joining)
        self._check_size(before, request.member_id)
        group = before.copy()
        old = self._find_member(group, request, is_joining=is_joining)
        member = _updated(old, request, sender)
        group.members[member.member_id] = member
        changed = self._update_epoch(group, old, member)
        self._update_target(group, now)
        member = reconcile(
            member,
            group.target.get(member.member_id, ()),
            group.assignment_epoch,
            subscribed=group.subscribed_topics(member, self._topics),
            subscription_changed=changed,
            taken=group.owners(except_for=member.member_id),
            owned=_owned(request),
        )
        group.members[member.member_id] = member
        self._keep(before, group, now)
        self._update_timers(group, old, member, now)
        # After the response, as in Kafka, where a thread of its own does this.
        self._resolve_regexes(group, sender, now)
        is_full = (
            request.rebalance_timeout_ms != -1
            and request.topic_partitions is not None
            and (request.subscribed_topic_names, request.subscribed_topic_regex) != (None, None)
        )
        shows_assignment = is_joining or is_full or old.assigned != member.assigned
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self._settings.group_consumer_heartbeat_interval_ms,
            assignment=_assignment(member) if shows_assignment else None,
        )

    def _find_or_create(self, group_id: str, *, create: bool) -> ConsumerGroup:
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if create and (group is None or group.is_empty):
            return ConsumerGroup(group_id)
        raise RefusedError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Consumer group {group_id} not found."
            if group is None
            else f"Cannot upgrade classic group {group_id} to consumer group because online "
            "upgrade is disabled."
            if create
            else f"Group {group_id} is not a consumer group.",
        )

    def _check_size(self, group: ConsumerGroup, member_id: str) -> None:
        limit = self._settings.group_consumer_max_size
        if len(group.members) >= limit and member_id not in group.members:
            raise RefusedError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def _find_member(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, *, is_joining: bool
    ) -> ConsumerMember:
        """Return the member that sends a heartbeat, or a new one; one that is replaced is removed.

        Raises RefusedError.
        """
        member_id, instance_id = request.member_id or _new_member_id(), request.instance_id
        if is_joining:
            if instance_id is None:
                return group.members.get(member_id, ConsumerMember(member_id=member_id))
            return self._join_static(group, member_id, instance_id)
        member = group.member(member_id, instance_id)
        member.check_epoch(request.member_epoch, _owned(request))
        return member

    def _join_static(
        self, group: ConsumerGroup, member_id: str, instance_id: str
    ) -> ConsumerMember:
        """Return a new static member; one that left for a while passes its assignment on."""
        existing = group.static_member(instance_id)
        if existing is None:
            return group.members.get(member_id, ConsumerMember(member_id=member_id))
        if existing.member_epoch != LEAVE_GROUP_STATIC_MEMBER_EPOCH:
            raise RefusedError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by {existing.member_id} member.",
            )
        del group.members[existing.member_id]
        target = group.target.pop(existing.member_id, None)
        if target is not None:
            group.target[member_id] = target
        return replace(existing, member_id=member_id, member_epoch=0, previous_member_epoch=0)

    def _update_epoch(
        self, group: ConsumerGroup, old: ConsumerMember, member: ConsumerMember
    ) -> bool:
        """Raise the group's epoch if needed; return whether the member's subscription changed.

        A regular expression that is not resolved yet raises it later.
        """
        names_changed = old.subscribed_topic_names != member.subscribed_topic_names
        regex = member.subscribed_topic_regex
        regex_changed = old.subscribed_topic_regex != regex
        if regex_changed and regex and regex not in group.resolved_regexes:
            _compile_regex(regex, Work(MAX_WORK))
        group.forget_regexes()
        metadata_hash = group.compute_metadata_hash(self._topics)
        if (
            names_changed
            or (regex_changed and (not regex or regex in group.resolved_regexes))
            or metadata_hash != group.metadata_hash
        ):
            group.group_epoch += 1
            group.metadata_hash = metadata_hash
        return names_changed or regex_changed

    def _update_target(self, group: ConsumerGroup, now: float) -> None:
        """Compute a new target assignment if the group's epoch is ahead of it.

        But not again within group.consumer.assignment.interval.ms (KIP-1263).
        """
        now_ms = int(now * 1000)
        interval_ms = self._settings.group_consumer_assignment_interval_ms
        if group.assignment_epoch >= group.group_epoch or (
            interval_ms and now_ms < group.assignment_timestamp_ms + interval_ms
        ):
            return
        subscribed = {
            member.member_id: group.subscribed_topics(member, self._topics)
            for member in group.members.values()
        }
        group.target = assign(
            group.assignor,
            [
                AssignedMember(
                    member.member_id,
                    member.instance_id,
                    frozenset(subscribed[member.member_id]),
                    group.target.get(member.member_id, frozenset()),
                )
                for member in group.members.values()
            ],
            {
                topic_id: len(topic.partitions)
                for topics in subscribed.values()
                for topic_id, topic in topics.items()
            },
        )
        group.assignment_epoch = group.group_epoch
        group.assignment_timestamp_ms = now_ms

    # Regular expressions.

    def _resolve_regexes(self, group: ConsumerGroup, sender: RequestSender, now: float) -> None:
        """Resolve the group's regular expressions again, or a portion of them, if it is time.

        They match topics that the sender may describe.
        """
        resolution = group.resolution or self._begin_resolution(group, int(now * 1000))
        group.resolution = resolution
        if resolution is None or not resolution.advance():
            return
        resolved = group.copy()
        resolved.resolution = None
        resolved.known_topics = resolution.names
        for regex in group.regexes & resolution.topics.keys():
            topics = frozenset(filter(sender.sees_topic, resolution.topics[regex]))
            resolved.resolved_regexes[regex] = ResolvedRegex(topics, int(now * 1000))
        metadata_hash = resolved.compute_metadata_hash(self._topics)
        if metadata_hash != group.metadata_hash or any(
            resolved_regex.topics != group.matching_topics(regex)
            for regex, resolved_regex in resolved.resolved_regexes.items()
        ):
            resolved.group_epoch += 1
            resolved.metadata_hash = metadata_hash
        try:
            self._keep(group, resolved, now)
        except RefusedError as refused:
            logger.warning(
                "cannot store the resolved regular expressions of group %s: %s",
                group.group_id,
                refused,
            )

    def _begin_resolution(self, group: ConsumerGroup, now_ms: int) -> RegexResolution | None:
        """Begin to resolve the group's regular expressions, if it is time.

        That is the case if one is new, if there are new topics, or after
        group.consumer.regex.refresh.interval.ms, but only ten seconds after the last time.
        """
        last_ms = group.last_resolved_ms
        if not group.regexes:
            return None
        if last_ms is not None and now_ms <= last_ms + _REGEX_REFRESH_MIN_INTERVAL_MS:
            return None
        names = frozenset(self._topics.names)
        if (
            last_ms is not None
            and group.regexes == group.resolved_regexes.keys()
            and names <= group.known_topics
            and now_ms <= last_ms + self._settings.group_consumer_regex_refresh_interval_ms
        ):
            return None
        return RegexResolution(group.group_id, group.regexes, names)

    # Leaving.

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest, now: float
    ) -> ConsumerGroupHeartbeatResponse:
        group = self._find_or_create(request.group_id, create=False)
        member = group.member(request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
            after = group.copy()
            after.members[member.member_id] = replace(
                member,
                member_epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH,
                assigned=dict.fromkeys(member.assigned, 0),
                pending_revocation={},
            )
            self._keep(group, after, now)
        else:
            self._fence(group, [member.member_id], now)
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=member.member_id,
            member_epoch=request.member_epoch,
        )

    def remove_members(
        self, group: ConsumerGroup, leaving: Iterable[MemberIdentity], now: float
    ) -> list[ErrorCode]:
        """Remove members, as LeaveGroup requires; return an error code for each.

        Raises RefusedError.
        """
        codes: list[ErrorCode] = []
        removed: list[str] = []
        for identity in leaving:
            try:
                member = self._leaving_member(group, identity)
            except RefusedError as refused:
                codes.append(refused.error_code)
            else:
                codes.append(ErrorCode.NONE)
                removed.append(member.member_id)
        if removed:
            self._fence(group, removed, now)
        return codes

    def _leaving_member(self, group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
        instance_id, member_id = identity.group_instance_id, identity.member_id
        if instance_id is not None and not member_id:
            # Administrators remove static members by instance id.
            existing = group.static_member(instance_id)
            member_id = "" if existing is None else existing.member_id
        return group.member(member_id, instance_id)

    def _fence(self, group: ConsumerGroup, member_ids: Iterable[str], now: float) -> None:
        """Remove members and raise the group's epoch. Raises RefusedError."""
        after = group.copy()
        for member_id in member_ids:
            after.remove(member_id)
        after.group_epoch += 1
        after.metadata_hash = after.compute_metadata_hash(self._topics)
        if not after.members:
            # There is nothing left to assign (since Kafka 4.4).
            after.assignment_epoch, after.assignment_timestamp_ms = after.group_epoch, 0
        self._keep(group, after, now)
        for member_id in member_ids:
            _cancel(self._session_timers, group.group_id, member_id)
            _cancel(self._rebalance_timers, group.group_id, member_id)

    # Storage and timers.

    def _keep(self, before: ConsumerGroup, after: ConsumerGroup, now: float) -> None:
        """Write the changes of a group, then apply them. Raises RefusedError."""
        if self._log.is_durable:
            records = list(encode_changes(before, after))
            if isinstance(self._groups.get(after.group_id), ClassicGroup):
                records.insert(0, encode_deleted_group(after.group_id))
            self._log.append(after.group_id, records, now_ms=int(now * 1000))
        self._groups[after.group_id] = after

    def _update_timers(
        self, group: ConsumerGroup, old: ConsumerMember, member: ConsumerMember, now: float
    ) -> None:
        self._restart_session(group.group_id, member.member_id, now)
        if (old.state, old.owned, old.member_epoch) == (
            member.state,
            member.owned,
            member.member_epoch,
        ):
            return
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            self._start_rebalance_timeout(group.group_id, member, now)
        else:
            _cancel(self._rebalance_timers, group.group_id, member.member_id)


def _check_request(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """Raise RefusedError with INVALID_REQUEST or UNSUPPORTED_ASSIGNOR."""
    epoch = request.member_epoch
    needs_id = (
        version >= _FIRST_VERSION_WITH_MEMBER_IDS or epoch > 0 or epoch == LEAVE_GROUP_MEMBER_EPOCH
    )
    problems = {
        "MemberId can't be empty.": needs_id and not request.member_id.strip(),
        "GroupId can't be empty.": not request.group_id.strip(),
        "InstanceId can't be empty.": _is_blank(request.instance_id),
        "RackId can't be empty.": _is_blank(request.rack_id),
        "MemberEpoch is invalid.": epoch < LEAVE_GROUP_STATIC_MEMBER_EPOCH,
        "InstanceId can't be null.": epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH
        and request.instance_id is None,
    }
    if epoch == JOIN_GROUP_MEMBER_EPOCH:
        problems |= {
            "RebalanceTimeoutMs must be provided in first request.": request.rebalance_timeout_ms
            == -1,
            "TopicPartitions must be empty when (re-)joining.": request.topic_partitions != (),
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.": request.subscribed_topic_names is None
            and request.subscribed_topic_regex is None,
        }
    for problem, exists in problems.items():
        if exists:
            raise RefusedError(ErrorCode.INVALID_REQUEST, problem)
    assignor = request.server_assignor
    if assignor is not None and assignor not in ASSIGNORS:
        raise RefusedError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {assignor} is not supported. Supported assignors: "
            f"{', '.join(ASSIGNORS)}.",
        )


def _new_member_id() -> str:
    """Return a random id in the form of Kafka's Uuid."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _is_blank(text: str | None) -> bool:
    return text is not None and not text.strip()


def _updated(
    old: ConsumerMember, request: ConsumerGroupHeartbeatRequest, sender: RequestSender
) -> ConsumerMember:
    """Return a member with the fields of a request that are not null."""
    names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
    regex, assignor = request.subscribed_topic_regex, request.server_assignor
    return replace(
        old,
        instance_id=old.instance_id if request.instance_id is None else request.instance_id,
        rack_id=old.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=old.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=old.server_assignor if assignor is None else assignor,
        subscribed_topic_names=old.subscribed_topic_names if names is None else frozenset(names),
        subscribed_topic_regex=old.subscribed_topic_regex if regex is None else regex,
        client_id=sender.client_id,
        client_host=sender.client_host,
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> set[TopicIdPartition] | None:
    if request.topic_partitions is None:
        return None
    return {
        TopicIdPartition(topic.topic_id, index)
        for topic in request.topic_partitions
        for index in topic.partitions
    }


def _assignment(member: ConsumerMember) -> Assignment:
    return Assignment(
        topic_partitions=tuple(
            TopicPartitions(topic_id=topic_id, partitions=tuple(indexes))
            for topic_id, indexes in partitions_by_topic(member.assigned).items()
        )
    )


def _cancel(timers: dict[tuple[str, str], Timer], group_id: str, member_id: str) -> None:
    timer = timers.pop((group_id, member_id), None)
    if timer is not None:
        timer.cancel()


def _compile_regex(regex: str, work: Work) -> RegularExpression:
    """Compile a member's expression. Raises RefusedError if it is invalid, TooMuchWorkError."""
    try:
        return RegularExpression(regex, work)
    except ValueError as error:
        raise RefusedError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
        ) from None


class RegexResolution:
    """Resolves the regular expressions of a group: a portion with each heartbeat.

    Kafka resolves them on a thread of its own, so members get their topics with a later heartbeat.
    This broker has one thread, which a hostile expression could keep busy for minutes: each
    heartbeat takes a limited number of steps, and the next one continues. Usual subscriptions take
    one.
    """

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
            expression = _compile_regex(regex, work)
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
