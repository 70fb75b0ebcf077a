"""A client of consumer groups that enforces no rules, for embedded and for other brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.protocol.messages.heartbeat import HeartbeatRequest
from spark_kafka_sink.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from spark_kafka_sink.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from spark_kafka_sink.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.support.devbroker.broker_requests import NOW, ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.devbroker.broker import Broker

#: The newest versions that Kafka 3.9 supports.
JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, FETCH_OFFSETS = 9, 5, 4, 5, 9, 9


def join_request(
    group_id: str,
    member_id: str = "",
    *,
    protocols: Sequence[str] = ("range",),
    metadata: bytes = b"m",
    protocol_type: str = "consumer",
    session_timeout_ms: int = 10_000,
    rebalance_timeout_ms: int = 30_000,
    instance_id: str | None = None,
) -> JoinGroupRequest:
    """Create a request to join a group."""
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=protocol_type,
        protocols=tuple(JoinGroupRequestProtocol(name=p, metadata=metadata) for p in protocols),
    )


def sync_request(
    group_id: str,
    member_id: str,
    generation_id: int,
    assignments: dict[str, bytes] | None = None,
    *,
    protocol: tuple[str | None, str | None] = ("consumer", "range"),
    instance_id: str | None = None,
) -> SyncGroupRequest:
    """Create a request for the member's assignment, or, with assignments, the leader's request."""
    return SyncGroupRequest(
        group_id=group_id,
        generation_id=generation_id,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=protocol[0],
        protocol_name=protocol[1],
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=name, assignment=assignment)
            for name, assignment in (assignments or {}).items()
        ),
    )


def heartbeat_request(
    group_id: str, member_id: str, generation_id: int, *, instance_id: str | None = None
) -> HeartbeatRequest:
    """Create a heartbeat of a member."""
    return HeartbeatRequest(
        group_id=group_id,
        generation_id=generation_id,
        member_id=member_id,
        group_instance_id=instance_id,
    )


def leave_request(group_id: str, *members: tuple[str, str | None]) -> LeaveGroupRequest:
    """Create a request to remove members, each given by member id and group instance id."""
    return LeaveGroupRequest(
        group_id=group_id,
        members=tuple(
            MemberIdentity(member_id=member_id, group_instance_id=instance_id)
            for member_id, instance_id in members
        ),
    )


def commit_request(
    group_id: str,
    offsets: dict[tuple[str, int], int],
    *,
    member_id: str = "",
    generation_id: int = -1,
    metadata: str | None = "",
    instance_id: str | None = None,
) -> OffsetCommitRequest:
    """Create a request to commit offsets by topic and partition."""
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=tuple(
            OffsetCommitRequestTopic(
                name=topic,
                partitions=(
                    OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_metadata=metadata,
                    ),
                ),
            )
            for (topic, partition), offset in offsets.items()
        ),
    )


#: The last version of TxnOffsetCommit whose requests name topics, as those made here do.
WITH_NAMES = 5


def txn_commit_request(
    group_id: str,
    identity: tuple[int, int],
    offsets: dict[tuple[str, int], int],
    *,
    transactional_id: str = "x",
    member_id: str = "",
    generation_id: int = -1,
) -> TxnOffsetCommitRequest:
    """Create a request to commit offsets in a transaction."""
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group_id,
        producer_id=identity[0],
        producer_epoch=identity[1],
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        topics=tuple(
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=(
                    TxnOffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset
                    ),
                ),
            )
            for (topic, partition), offset in offsets.items()
        ),
    )


def fetch_offsets_request(
    group_id: str, topic: str | None, *partitions: int, require_stable: bool = False
) -> OffsetFetchRequest:
    """Create a request for committed offsets; without a topic, for all of the group's."""
    topics = None
    if topic is not None:
        topics = (OffsetFetchRequestTopics(name=topic, partition_indexes=partitions),)
    return OffsetFetchRequest(
        groups=(OffsetFetchRequestGroup(group_id=group_id, topics=topics),),
        require_stable=require_stable,
    )


def fetched_offsets(answer: Any) -> dict[tuple[str, int], tuple[int, int]]:
    """Return error code and offset of each partition in a response about one group."""
    (group,) = answer.groups
    return {
        (topic.name, partition.partition_index): (partition.error_code, partition.committed_offset)
        for topic in group.topics
        for partition in topic.partitions
    }


class GroupClient:
    """A client of an embedded broker; a deferred request is returned as `Waiting`."""

    def __init__(self, broker: Broker, group_id: str = "g") -> None:
        """Create a client of one group."""
        self.broker = broker
        self.group_id = group_id
        self.now = NOW

    def ask(self, request: Any, version: int | None = None) -> Any:
        """Send a request; return its response, or a `Waiting`."""
        outcome = ask(self.broker, request, version, now=self.now)
        if isinstance(outcome, Delayed):
            return Waiting(self, request, version, outcome.kept)
        return outcome

    def join(self, member_id: str = "", *, version: int | None = JOIN, **fields: Any) -> Any:
        """Join the group; without a member id, join again with the id that the broker returns."""
        answer = self.ask(join_request(self.group_id, member_id, **fields), version)
        if not isinstance(answer, Waiting) and not member_id and answer.error_code == 79:
            return self.join(answer.member_id, version=version, **fields)
        return answer

    def sync(self, member_id: str, generation_id: int, *args: Any, **fields: Any) -> Any:
        """Request the member's assignment, or send the group's as its leader."""
        return self.ask(sync_request(self.group_id, member_id, generation_id, *args, **fields))

    def heartbeat(self, member_id: str, generation_id: int, **fields: Any) -> int:
        """Send a heartbeat; return the error code."""
        request = heartbeat_request(self.group_id, member_id, generation_id, **fields)
        return int(self.ask(request).error_code)

    def leave(self, *members: tuple[str, str | None]) -> list[int]:
        """Remove members from the group; return their error codes."""
        answer = self.ask(leave_request(self.group_id, *members))
        return [member.error_code for member in answer.members]

    def commit(self, offsets: dict[tuple[str, int], int], **fields: Any) -> list[int]:
        """Commit offsets; return the error codes."""
        answer = self.ask(commit_request(self.group_id, offsets, **fields), COMMIT)
        return [p.error_code for topic in answer.topics for p in topic.partitions]

    def offsets(self, topic: str | None, *partitions: int, **fields: Any) -> Any:
        """Fetch committed offsets; return error code and offset by partition."""
        request = fetch_offsets_request(self.group_id, topic, *partitions, **fields)
        return fetched_offsets(self.ask(request, FETCH_OFFSETS))

    def state(self) -> str | None:
        """Return the state of the group, or None if there is no such group."""
        group = self.broker.cluster.groups.find(self.group_id)
        return None if group is None else str(group.state)


class Waiting:
    """A request without a response so far."""

    def __init__(self, client: GroupClient, request: Any, version: int | None, kept: Any) -> None:
        """Store the request and the state that the broker keeps for it."""
        self.client = client
        self.request = request
        self.version = version
        self.kept = kept

    def answer(self) -> Any:
        """Check for the response again; return None if there is still none."""
        outcome = ask(
            self.client.broker, self.request, self.version, now=self.client.now, kept=self.kept
        )
        return None if isinstance(outcome, Delayed) else outcome
