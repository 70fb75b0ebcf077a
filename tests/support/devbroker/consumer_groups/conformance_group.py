"""A group of the new consumer protocol (KIP-848) on any broker, and the answers about it.

What is recorded has no names or ids that differ between brokers, so that the records of the
embedded broker and Apache Kafka can be compared.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, TypeVar

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
)
from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsRequest
from spark_kafka_sink.protocol.messages.describe_groups import DescribeGroupsRequest
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.list_groups import ListGroupsRequest
from spark_kafka_sink.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.support.devbroker.broker_asker import Asker
from tests.support.devbroker.consumer_groups.consumer_group_client import (
    COMMIT,
    DESCRIBE,
    FETCH_OFFSETS,
    HEARTBEAT,
    consumer_heartbeat,
    joining,
)
from tests.support.devbroker.group_client import commit_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

PATIENCE_SECONDS = 120
#: The errors of a coordinator that is still loading.
LOADING = {14, 15, 16}


class Group:
    """A group, its topics, and the recorded answers about them."""

    def __init__(self, port: int) -> None:
        """Wait until the coordinator of the group is ready."""
        self.port = port
        self.asker = Asker(port)
        self.group_id = f"conformance-{uuid.uuid4().hex}"
        self.notes: list[tuple[Any, ...]] = []
        #: Names of topics by their ids.
        self.topics: dict[uuid.UUID, str] = {}
        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=(self.group_id,))
        self.wait_for(lambda: self.asker.ask(asked, 4).coordinators[0].error_code not in LOADING)
        beat = consumer_heartbeat(self.group_id, "m", 1)
        self.wait_for(lambda: self.asker.ask(beat, HEARTBEAT).error_code not in LOADING)

    def close(self) -> None:
        """Close the connection."""
        self.asker.close()

    def wait_for(self, condition: Callable[[], T]) -> T:
        """Wait until a condition holds; return what it returned."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := condition()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return found

    def topic(self, partitions: int) -> tuple[str, uuid.UUID]:
        """Create a topic; wait until the coordinator assigns it, and return its name and id."""
        name = self.asker.topic(partitions)
        topic_id = self.asker.topic_id(name)
        group_id, epoch = f"probe-{uuid.uuid4().hex}", 0

        def is_assigned() -> bool:
            nonlocal epoch
            fields: dict[str, Any] = (
                {} if epoch else {"topics": [name], "owned": {}, "timeout_ms": 30_000}
            )
            answer = self.send(consumer_heartbeat(group_id, "probe", epoch, **fields))
            epoch = answer.member_epoch
            return answer.assignment is not None and bool(answer.assignment.topic_partitions)

        self.wait_for(is_assigned)
        self.send(consumer_heartbeat(group_id, "probe", -1))
        self.asker.ask(DeleteGroupsRequest(groups_names=(group_id,)), 2)
        self.topics[topic_id] = f"topic {len(self.topics)}"
        return name, topic_id

    def note(self, what: str, *values: object) -> None:
        """Record what matters in an answer."""
        self.notes.append((what, *values))

    def partitions(self, assignment: Any) -> dict[str, list[int]]:
        """Return the partitions of an assignment by topic."""
        return {
            self.topics[topic.topic_id]: sorted(topic.partitions)
            for topic in sorted(assignment.topic_partitions, key=lambda t: self.topics[t.topic_id])
        }

    def send(self, request: Any, version: int = HEARTBEAT) -> Any:
        """Send a heartbeat; return the answer."""
        return self.asker.ask(request, version)

    def noted(self, what: str, answer: Any, *, counts: bool = False) -> Any:
        """Record the answer to a heartbeat; with `counts` only how many partitions it has."""
        assignment: dict[str, list[int]] | int | None = None
        if answer.assignment is not None:
            found = self.partitions(answer.assignment)
            assignment = sum(map(len, found.values())) if counts else found
        self.note(
            what,
            answer.error_code,
            answer.member_id,
            answer.member_epoch,
            answer.heartbeat_interval_ms,
            assignment,
        )
        return answer

    def join(self, what: str, member_id: str, **fields: Any) -> Any:
        """Send a member's first heartbeat, and record the answer."""
        counts = fields.pop("counts", False)
        request = joining(self.group_id, member_id, **fields)
        return self.noted(what, self.send(request), counts=counts)

    def beat(self, what: str, member_id: str, epoch: int, **fields: Any) -> Any:
        """Send a heartbeat, and record the answer."""
        counts = fields.pop("counts", False)
        request = consumer_heartbeat(self.group_id, member_id, epoch, **fields)
        return self.noted(what, self.send(request), counts=counts)

    def beat_until(
        self,
        what: str,
        member_id: str,
        epoch: int,
        condition: Callable[[Any], object],
        **fields: Any,
    ) -> Any:
        """Send heartbeats until the answer meets a condition, and record that answer."""
        request = consumer_heartbeat(self.group_id, member_id, epoch, **fields)
        answers: list[Any] = []

        def done() -> object:
            answers.append(self.send(request))
            return condition(answers[-1])

        self.wait_for(done)
        return self.noted(what, answers[-1])

    def wait_until_classic(self) -> None:
        """Wait until the group is none of the new protocol: Kafka describes what is committed."""
        request = ConsumerGroupDescribeRequest(
            group_ids=(self.group_id,), include_authorized_operations=False
        )
        self.wait_for(
            lambda: (
                self.asker.ask(request, DESCRIBE).groups[0].error_code
                == ErrorCode.GROUP_ID_NOT_FOUND
            )
        )

    def describe(self, what: str, *, counts: bool = False) -> None:
        """Record what ConsumerGroupDescribe, DescribeGroups and ListGroups say of the group."""
        request = ConsumerGroupDescribeRequest(
            group_ids=(self.group_id,), include_authorized_operations=True
        )
        (group,) = self.asker.ask(request, DESCRIBE).groups

        def partitions(assignment: Any) -> object:
            found = self.partitions(assignment)
            return sum(map(len, found.values())) if counts else found

        self.note(
            what,
            group.error_code,
            group.group_state,
            group.group_epoch,
            group.assignment_epoch,
            group.assignor_name,
            group.authorized_operations,
            [
                (
                    member.member_id,
                    member.instance_id,
                    member.rack_id,
                    member.member_epoch,
                    member.client_id,
                    member.client_host,
                    len(member.subscribed_topic_names),
                    member.subscribed_topic_regex[-2:],
                    partitions(member.assignment),
                    partitions(member.target_assignment),
                    member.member_type,
                )
                for member in sorted(group.members, key=lambda m: m.member_id)
            ],
        )
        classic = {}
        for version in (5, 6):
            classic_request = DescribeGroupsRequest(
                groups=(self.group_id,), include_authorized_operations=False
            )
            (described,) = self.asker.ask(classic_request, version).groups
            classic[version] = (described.error_code, described.group_state, described.members)
        self.note("classic", classic)
        listed = {
            filtered: [
                (found.group_state, found.protocol_type, found.group_type.lower())
                for found in self.asker.ask(
                    ListGroupsRequest(states_filter=(), types_filter=filtered), 5
                ).groups
                if found.group_id == self.group_id
            ]
            for filtered in ((), ("CONSUMER",), ("classic",))
        }
        self.note("listed", listed)

    def commit(
        self,
        what: str,
        offsets: Mapping[tuple[str, int], int],
        member_id: str = "",
        epoch: int = -1,
        version: int = COMMIT,
    ) -> None:
        """Send an OffsetCommit request, and record the answer."""
        request = commit_request(self.group_id, offsets, member_id=member_id, generation_id=epoch)
        answer = self.asker.ask(request, version)
        self.note(what, sorted(p.error_code for topic in answer.topics for p in topic.partitions))

    def look(self, what: str, topic: str, member_id: str | None = None, epoch: int = -1) -> None:
        """Send an OffsetFetch request for partition 0 and record the answer."""
        request = OffsetFetchRequest(
            groups=(
                OffsetFetchRequestGroup(
                    group_id=self.group_id,
                    member_id=member_id,
                    member_epoch=epoch,
                    topics=(OffsetFetchRequestTopics(name=topic, partition_indexes=(0,)),),
                ),
            )
        )
        (group,) = self.asker.ask(request, FETCH_OFFSETS).groups
        offsets = [(p.committed_offset, p.error_code) for t in group.topics for p in t.partitions]
        self.note(what, group.error_code, offsets)

    def delete_offsets(
        self, what: str, *partitions: tuple[str, int], group_id: str | None = None
    ) -> None:
        """Send an OffsetDelete request, and record the answer."""
        topics: dict[str, list[int]] = {}
        for name, partition in partitions:
            topics.setdefault(name, []).append(partition)
        request = OffsetDeleteRequest(
            group_id=self.group_id if group_id is None else group_id,
            topics=tuple(
                OffsetDeleteRequestTopic(
                    name=name,
                    partitions=tuple(
                        OffsetDeleteRequestPartition(partition_index=p) for p in found
                    ),
                )
                for name, found in topics.items()
            ),
        )
        answer = self.asker.ask(request, 0)
        codes = sorted(
            (p.partition_index, p.error_code) for t in answer.topics for p in t.partitions
        )
        self.note(what, answer.error_code, codes)

    def delete(self, what: str) -> None:
        """Send a DeleteGroups request, and record the answer."""
        request = DeleteGroupsRequest(groups_names=(self.group_id,))
        self.note(what, [result.error_code for result in self.asker.ask(request, 2).results])
