"""A workload against a broker whose disk may fail, and the checks that must hold after any failure.

A story is a list of steps. Each step sends a request to the broker and retries it upon retriable
errors. `Acknowledged` stores what the broker acknowledged, to compare it with the broker's state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.devbroker.log.partition_log import committed_records
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsRequest
from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.devbroker.admin_requests import (
    SET,
    TOPIC,
    alter_configs,
    create_partitions,
    delete_records,
    delete_topics,
)
from tests.support.devbroker.broker_asker import creatable
from tests.support.devbroker.durable_cluster import DurableCluster
from tests.support.devbroker.group_client import (
    COMMIT,
    WITH_NAMES,
    GroupClient,
    commit_request,
    txn_commit_request,
)
from tests.support.devbroker.transactional_client import PRODUCE_TV2, TransactionalClient
from tests.support.record.plain_batches import PlainRecord, plain_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.support.devbroker.faulty_disk import FaultyDisk

#: The errors upon which a client retries.
RETRIED = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,  # The coordinator did not respond.
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)
#: With these sizes, logs roll a segment and add an index entry after a few batches.
SMALL = TopicConfig(segment_bytes=400, index_interval_bytes=0)
SMALL_COORDINATOR = TopicConfig(cleanup_policy="compact", segment_bytes=600)
_TOPICS = {
    "t": {},
    "flushed": {"flush.messages": "2"},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
    "retained": {"retention.bytes": "300"},
}
_ATTEMPTS = 10
_TRANSACTION_TIMEOUT_MS = 900_000


@dataclass
class Acknowledged:
    """What the broker has acknowledged, and must therefore retain."""

    #: Visible records by partition.
    records: dict[TopicPartition, list[tuple[bytes | None, bytes]]] = field(default_factory=dict)
    #: The group's committed offsets by partition.
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    #: The minimal log start offset by partition.
    starts: dict[TopicPartition, int] = field(default_factory=dict)


class Story:
    """A broker, its clients, and what was acknowledged to them."""

    def __init__(self, path: Path, disk: FaultyDisk, *, kills: bool) -> None:
        """Start with an empty directory; `kills` says to kill the broker after a failure."""
        self.disk = disk
        self.kills = kills
        self.cluster = DurableCluster(path, topic_defaults=SMALL)
        self.client = TransactionalClient(self.cluster.broker)
        self.acknowledged = Acknowledged()
        self._sequences: dict[TopicPartition, int] = {}
        self._producer = (-1, -1)
        self._identity = (-1, -1)

    def tell(self) -> None:
        """Run every kind of change that a broker with a data directory supports."""
        for name, configs in _TOPICS.items():
            self.create(name, configs)
        self._until_done(self._init_producer)
        for number in range(5):
            self.produce("t", b"a%d" % number)
            self.produce("flushed", b"f%d" % number)
            self.produce("retained", b"r%d" % number)
        for number in range(8):
            self.produce("compacted", b"c%d" % number, key=b"key%d" % (number % 3))
        self._until_done(self._init_transactions)
        self.transaction(b"committed", committed=True, offset=3)
        self.transaction(b"aborted", committed=False, offset=99)
        self.commit("g", "t", 4)
        self.pass_time(61)
        self.join_and_leave()
        self.produce("retained", b"r5")
        self.pass_time(301)
        self.delete_records("t", 3)
        self.ask(create_partitions(("flushed", 2)), lambda answer: answer.results)
        self.ask(
            alter_configs((TOPIC, "flushed", [("flush.messages", SET, "1")])),
            lambda answer: answer.responses,
        )
        self.create("gone", {})
        self.produce("gone", b"old")
        self.commit("g", "gone", 1)
        self.commit("other", "t", 1)
        self.ask(DeleteGroupsRequest(groups_names=("other",)), lambda answer: answer.results)
        self.delete("gone")
        self.create("gone", {})
        self.produce("gone", b"new")
        self.restart()
        for number in range(3):
            self.produce("t", b"b%d" % number)
            self.produce("flushed", b"g%d" % number)
            self.produce("compacted", b"d%d" % number, key=b"key%d" % (number % 3))
        self.transaction(b"later", committed=True, offset=5)
        self.pass_time(16)
        self.transaction(b"gone", committed=False, offset=98)

    # The clients' requests.

    def ask(
        self, request: Any, results: Callable[[Any], Iterable[Any]], version: int | None = None
    ) -> None:
        """Send a request until none of its results is an error."""

        def attempt() -> ErrorCode:
            answer = self.client.ask(request, version)
            if isinstance(answer, Delayed):  # The previous transaction is still ending.
                return ErrorCode.CONCURRENT_TRANSACTIONS
            return ErrorCode(max(result.error_code for result in results(answer)))

        self._until_done(attempt)

    def create(self, topic: str, configs: dict[str, str]) -> None:
        """Create a topic."""
        request = CreateTopicsRequest(topics=(creatable(topic, **configs),), timeout_ms=1000)
        self.ask(request, lambda answer: answer.topics)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.ask(delete_topics(topic), lambda answer: answer.responses)
        for acknowledged in (self.acknowledged.records, self.acknowledged.offsets, self._sequences):
            acknowledged.pop(TopicPartition(topic, 0), None)

    def produce(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        """Append a record with the next sequence number."""
        partition = TopicPartition(topic, 0)
        sequence = self._sequences.setdefault(partition, 0)
        batch = plain_batch(
            [PlainRecord(value, key, timestamp=int(self.client.now * 1000))],
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=sequence,
        )
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=1000,
            topic_data=(
                TopicProduceData(
                    name=topic, partition_data=(PartitionProduceData(index=0, records=batch),)
                ),
            ),
        )
        self.ask(request, lambda answer: answer.responses[0].partition_responses, PRODUCE_TV2)
        self._sequences[partition] = sequence + 1
        self.acknowledged.records.setdefault(partition, []).append((key, value))

    def transaction(self, value: bytes, *, committed: bool, offset: int) -> None:
        """Append records and offsets in a transaction, and end it."""
        partition = TopicPartition("t", 0)
        for sequence in range(2):
            request = self.client.produce_request(self._identity, sequence, value=value)
            self.ask(request, lambda answer: answer.responses[0].partition_responses, PRODUCE_TV2)
        self.ask(
            txn_commit_request("g", self._identity, {("t", 0): offset}),
            lambda answer: answer.topics[0].partitions,
            WITH_NAMES,
        )

        def end() -> ErrorCode:
            code, identity = self.client.end(self._identity, committed=committed)
            if not code:
                self._identity = identity
            return ErrorCode(code)

        self._until_done(end)
        if committed:
            self.acknowledged.records[partition] += [(None, value), (None, value)]
            self.acknowledged.offsets[partition] = offset

    def commit(self, group: str, topic: str, offset: int) -> None:
        """Commit a group's offset."""
        request = commit_request(group, {(topic, 0): offset})
        self.ask(request, lambda answer: answer.topics[0].partitions, COMMIT)
        if group == "g":
            self.acknowledged.offsets[TopicPartition(topic, 0)] = offset

    def join_and_leave(self) -> None:
        """Join a group as its only member, and leave it."""
        group = GroupClient(self.client.broker, "members")
        member_id = ""

        def join_and_sync() -> ErrorCode:
            nonlocal member_id
            group.broker, group.now = self.client.broker, self.client.now
            answer = group.join(member_id, session_timeout_ms=1_000_000)
            member_id = answer.member_id
            if not answer.error_code:
                answer = group.sync(member_id, answer.generation_id, {member_id: b"all"})
            if not answer.error_code:
                group.leave((member_id, None))
            if answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                member_id = ""
            return ErrorCode(answer.error_code)

        self._until_done(join_and_sync)

    def delete_records(self, topic: str, offset: int) -> None:
        """Delete the records of a partition before an offset."""
        self.ask(delete_records((topic, 0, offset)), lambda answer: answer.topics[0].partitions)
        self.acknowledged.starts[TopicPartition(topic, 0)] = offset

    def _init_producer(self) -> ErrorCode:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        answer = self.client.ask(request)
        self._producer = (answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def _init_transactions(self) -> ErrorCode:
        code, self._identity = self.client.init(timeout_ms=_TRANSACTION_TIMEOUT_MS)
        return ErrorCode(code)

    # What happens to the broker.

    def pass_time(self, seconds: float) -> None:
        """Advance the clock and make the broker do what is due."""
        self.client.now += seconds
        self.client.broker.tick(self.client.now)

    def restart(self) -> None:
        """Close the broker cleanly, if the disk permits, and open the next one."""
        self.cluster.now = self.client.now
        try:
            self.cluster.close()
        except OSError:
            self.disk.free()
        self._open()

    def kill(self) -> None:
        """Kill the broker and open the next one."""
        self.cluster.now = self.client.now
        self.cluster.end()
        self._open()

    def _open(self) -> None:
        try:
            self.client.broker = self.cluster.open()
        except (OSError, RefusedError):
            self.disk.free()
            self.client.broker = self.cluster.open()

    def _until_done(self, attempt: Callable[[], ErrorCode]) -> None:
        for number in range(_ATTEMPTS):
            code = attempt()
            if code is ErrorCode.NONE:
                return
            if code not in RETRIED:
                raise AssertionError(f"{code.name} is the end")
            if self.disk.is_failing and number == 1:
                # This is long enough for checkpoints, retention and compaction to fail as well.
                self.pass_time(400)
            if number == 2:
                self.disk.free()
                if self.kills:
                    self.kill()
            self.pass_time(1)
        raise AssertionError(f"{code.name} for ever")

    # Checks.

    def check(self) -> None:
        """Compare the broker's state with what it acknowledged."""
        self.pass_time(1)
        for topic_partition in self.acknowledged.records:
            self._check_partition(topic_partition)
        groups = self.client.broker.cluster.groups
        committed = groups.offsets.committed("g")
        _expect(
            self.acknowledged.offsets, {place: each.offset for place, each in committed.items()}
        )
        _expect(None, groups.find("other"))
        _expect(True, self.client.state() in {None, "Empty", "CompleteCommit", "CompleteAbort"})

    def _check_partition(self, topic_partition: TopicPartition) -> None:
        acknowledged = self.acknowledged.records[topic_partition]
        log = self.client.broker.cluster.partition(topic_partition).log
        found = [(record.key, record.value) for record in committed_records(log)]
        _expect(log.log_end_offset, log.last_stable_offset)
        match topic_partition.topic:
            case "compacted":
                _expect(dict(acknowledged), dict(found))
                _expect(sorted(found, key=acknowledged.index), found)
            case "retained":
                _expect(acknowledged[-2:], found[-2:])
                _expect(acknowledged[len(acknowledged) - len(found) :], found)
                _expect(len(acknowledged), log.log_end_offset)
            case _:
                start = self.acknowledged.starts.get(topic_partition, 0)
                _expect(start, log.log_start_offset)
                _expect(acknowledged[start:], found)


def _expect(expected: object, found: object) -> None:
    """Raise AssertionError with both values unless they are equal."""
    if expected != found:
        raise AssertionError(f"{found!r} instead of {expected!r}")
