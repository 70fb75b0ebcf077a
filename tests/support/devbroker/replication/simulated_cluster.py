"""A cluster of brokers that replicate, on a clock and a network that a schedule of faults drives.

Everything follows from the seed: faults, the delay of each message, what clients write and when.
A cut link loses messages silently; a dead broker refuses them; responses to a broker that has been
restarted since are lost. Messages overtake each other. Any broker may be the controller, and may
lose that to another one. Some schedules send all messages as bytes.

After each event the cluster is checked, and `check_end` checks it once all faults are over:

- no two brokers lead a partition in the same epoch;
- below their high watermarks, all replicas have the same records, and always will: so no consumer
  has seen a record that is not there later;
- a record that was acknowledged with acks=all is committed, and is there at the end; so is the end
  of a transaction;
- all replicas are in sync and equal in the end, also in which transactions were aborted, and none
  is open; and the brokers agree on the metadata.

`fault_schedules` has the faults, and says which of them may come together.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
from spark_kafka_sink.devbroker.metadata.envelope import (
    Envelope,
    ForwardedRequest,
    ForwardedResponse,
)
from spark_kafka_sink.devbroker.metadata.quorum import (
    FetchMetadataRequest,
    FetchMetadataResponse,
    MetadataQuorum,
)
from spark_kafka_sink.devbroker.metadata.records import NO_LEADER, TopicIdPartition
from spark_kafka_sink.devbroker.replication.leader_replica import ACKS_ALL
from spark_kafka_sink.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from spark_kafka_sink.protocol.codec import decode, encode
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from spark_kafka_sink.protocol.messages.broker_registration import BrokerRegistrationRequest
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from spark_kafka_sink.protocol.schema import ApiRequest
from spark_kafka_sink.record.record_batch import decode_header, split_record_batches
from tests.support.devbroker.replication.simulated_broker import (
    LEASE,
    SimulatedDisk,
    start_broker,
    stop_broker,
)
from tests.support.record.plain_batches import PlainRecord, plain_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.devbroker.controller.controller import Controller
    from spark_kafka_sink.devbroker.lifecycle.broker_node import BrokerNode
    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
    from spark_kafka_sink.devbroker.metadata.records import PartitionRecord
    from spark_kafka_sink.devbroker.replication.replica_manager import ReplicaManager

CLIENT = -2
PRODUCE_TIMEOUT = 0.6
_LONGEST_RECOVERY = 6.0
#: How long a forwarded request may take, with retries, on a slow link, to a paused broker.
_LONGEST_MOVE_REQUEST = 2.5
_READ_ALL = 1 << 30
_TRANSACTIONAL = 0x10
#: Messages that stand for those of Kafka, and have no format of their own.
_NOT_ON_WIRE = (
    FetchMetadataRequest,
    FetchMetadataResponse,
    ForwardedRequest,
    ForwardedResponse,
)
REPLICATION_FACTOR = 3


class InvariantError(AssertionError):
    """Something that must never happen has happened."""


@dataclass(slots=True)
class Written:
    """A record that a client has sent."""

    key: TopicIdPartition
    record: int
    acks: int
    #: The producer of the transaction that it belongs to or ends; None if there is none.
    producer_id: int | None = None
    #: Whether it is a marker that commits or aborts the transaction; None for a record.
    committed: bool | None = None
    acknowledged: bool = False


class _Waiting(NamedTuple):
    """A record with acks=all that was appended."""

    written: Written
    offset: int
    term: int
    expires_at: float


class SimulatedCluster:
    """Brokers, the network between them, and what clients have written."""

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 3,
        partitions: int = 2,
        min_insync_replicas: int = 1,
        unclean: bool = False,
        on_wire: bool = False,
    ) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.quorum = MetadataQuorum(lease=LEASE, stagger=0.05)
        self.unclean = unclean
        self._on_wire = on_wire
        self.disks = {node_id: SimulatedDisk() for node_id in range(brokers)}
        #: The running brokers.
        self.brokers: dict[int, BrokerNode] = {}
        self.paused_until: dict[int, float] = {}
        self.cuts: set[frozenset[int]] = set()
        #: How much longer messages take on a slow link.
        self.slow: dict[frozenset[int], float] = {}
        self.written: dict[int, Written] = {}
        #: The producers of transactions whose markers were not acknowledged, with the partition.
        self.open_transactions: dict[int, TopicIdPartition] = {}
        self.events = 0
        self._leaders: dict[tuple[TopicIdPartition, int], int] = {}
        #: Up to where each replica's records were compared.
        self._compared: dict[tuple[int, TopicIdPartition], int] = {}
        #: Up to where records of a partition were deleted, at some leader.
        self._deleted: dict[TopicIdPartition, int] = defaultdict(int)
        self._move_arrives_by: dict[TopicIdPartition, float] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._ticking: dict[int, float] = {}
        #: By broker, the writes that are not acknowledged yet.
        self._waiting: dict[int, list[_Waiting]] = defaultdict(list)
        for node_id in self.disks:
            self.start(node_id)
        self.keys: list[TopicIdPartition] = []
        self.run(1.0)
        self.keys = self._create_topic(partitions, min_insync_replicas)
        #: What was committed: for each partition the records in their order.
        self.committed: dict[TopicIdPartition, list[int]] = {key: [] for key in self.keys}

    def _create_topic(self, partitions: int, min_insync_replicas: int) -> list[TopicIdPartition]:
        nodes = list(self.disks)
        controller = self.controller
        if controller is None:
            raise InvariantError("no controller was elected")
        topic = CreatableTopic(
            name="t",
            num_partitions=-1,
            replication_factor=-1,
            assignments=tuple(
                CreatableReplicaAssignment(
                    partition_index=index,
                    broker_ids=tuple(
                        nodes[(index + each) % len(nodes)] for each in range(REPLICATION_FACTOR)
                    ),
                )
                for index in range(partitions)
            ),
            configs=(
                CreatableTopicConfig(name="min.insync.replicas", value=str(min_insync_replicas)),
                CreatableTopicConfig(
                    name="unclean.leader.election.enable", value=str(self.unclean).lower()
                ),
            ),
        )
        (result,) = controller.handle(CreateTopicsRequest(topics=(topic,)), self.now).topics
        if result.error_code != ErrorCode.NONE:
            raise InvariantError(f"the topic was not created: {result}")
        return [TopicIdPartition(result.topic_id, index) for index in range(partitions)]

    @property
    def controller(self) -> Controller | None:
        """The controller, if a running broker is it and can reach the others."""
        broker = self.brokers.get(self.quorum.controller_id)
        controller = None if broker is None else broker.controller.controller
        return controller if controller is not None and controller.is_active else None

    # The clock.

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._queue, (time, next(self._numbers), action))

    def run(self, until: float) -> None:
        """Wait."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action = heapq.heappop(self._queue)
            self.events += 1
            action()
        self.now = until

    def _plan_tick(self, node_id: int) -> None:
        broker = self.brokers.get(node_id)
        if broker is not None:
            due = max(broker.deadline, self.now)
            if due < self._ticking.get(node_id, float("inf")):
                self._ticking[node_id] = due
                self.at(due, lambda: self._tick(node_id, broker, due))

    def _tick(self, node_id: int, broker: BrokerNode, due: float) -> None:
        if self.brokers.get(node_id) is not broker or self._ticking.get(node_id) != due:
            return
        if not self._postponed(node_id, lambda: self._tick(node_id, broker, due)):
            del self._ticking[node_id]
            outgoing = broker.tick(self.now)
            if outgoing:
                self._check(node_id)
            self._after(node_id, outgoing)

    def _postponed(self, node_id: int, action: Callable[[], None]) -> bool:
        """Delay what a paused broker would do; return whether it is paused."""
        until = self.paused_until.get(node_id, 0.0)
        if until > self.now:
            self.at(until, action)
        return until > self.now

    def _after(self, node_id: int, outgoing: list[Envelope]) -> None:
        for envelope in outgoing:
            self.send(envelope)
        broker = self.brokers.get(node_id)
        if broker is not None:
            self._acknowledge_replicated(broker)
        if broker is not None and broker.may_stop:
            self._stop(node_id, broker)
        self._plan_tick(node_id)

    # The network.

    def send(self, envelope: Envelope) -> None:
        """Send a message, which may be lost."""
        link = frozenset((envelope.sender, envelope.receiver))
        delay = self.random.uniform(0.001, 0.01) + self.slow.get(link, 0.0)
        sender = self.brokers.get(envelope.sender)
        receiver = self.brokers.get(envelope.receiver)

        def arrive() -> None:
            if link in self.cuts:
                return
            if (
                isinstance(envelope.message, BrokerRegistrationRequest)
                and self.brokers.get(envelope.sender) is not sender
            ):
                # A process that has ended does not register after the next one.
                return
            if envelope.receiver == CLIENT:
                return
            if self.brokers.get(envelope.receiver) is not receiver or receiver is None:
                self._refuse(envelope, sender)
            elif not self._postponed(envelope.receiver, arrive):
                sent = self._sent(envelope) if self._on_wire else envelope
                outgoing = receiver.handle(sent, self.now)
                self._check(envelope.receiver)
                self._after(envelope.receiver, outgoing)

        self.at(self.now + delay, arrive)

    @staticmethod
    def _sent(envelope: Envelope) -> Envelope:
        """Encode and decode a message in its latest version."""
        message = envelope.message
        if isinstance(message, _NOT_ON_WIRE):
            return envelope
        version = message.versions.max
        return envelope._replace(
            message=decode(type(message), b"".join(encode(message, version)), version)
        )

    def _refuse(self, envelope: Envelope, sender: BrokerNode | None) -> None:
        if (
            isinstance(envelope.message, ApiRequest)
            and sender is not None
            and self.brokers.get(envelope.sender) is sender
        ):
            self._after(envelope.sender, sender.failed(envelope.correlation_id, self.now))

    # Faults.

    def start(self, node_id: int) -> None:
        """Start a broker that is not running."""
        if node_id not in self.brokers:
            self.quorum.start(node_id)
            self.brokers[node_id] = start_broker(
                node_id, self.disks, self.disks[node_id], self.quorum, self.random
            )
            self.paused_until.pop(node_id, None)
            self._plan_tick(node_id)

    def kill(self, node_id: int) -> None:
        """End the process of a broker; its disk remains."""
        self.brokers.pop(node_id, None)
        self._waiting.pop(node_id, None)
        self.quorum.stop(node_id)
        self._ticking.pop(node_id, None)
        for key in self.keys:
            # Its high watermark is read from the last checkpoint when it starts.
            self._compared.pop((node_id, key), None)

    def fail_power(self, node_id: int) -> None:
        """End a broker, and lose what it has not flushed."""
        self.kill(node_id)
        self.disks[node_id].fail()

    def shut_down(self, node_id: int) -> None:
        """Request that a broker stops once another one leads what it leads."""
        broker = self.brokers.get(node_id)
        if broker is not None:
            self._after(node_id, broker.begin_controlled_shutdown(self.now))

    def _stop(self, node_id: int, broker: BrokerNode) -> None:
        stop_broker(broker, self.disks[node_id], self.now)
        self.kill(node_id)

    def pause(self, node_id: int, seconds: float) -> None:
        """Stop a broker for a while, as the scheduler of a busy machine does."""
        self.paused_until[node_id] = self.now + seconds

    def heal(self) -> None:
        """End all faults; brokers that shut down wait no longer, and are started again."""
        self.cuts.clear()
        self.slow.clear()
        self.paused_until.clear()
        for node_id in self.disks:
            broker = self.brokers.get(node_id)
            if broker is not None and broker.lifecycle.is_shutting_down:
                self._stop(node_id, broker)
            self.start(node_id)

    # Clients.

    def move(self, key: TopicIdPartition, replicas: list[int]) -> None:
        """Begin to move the replicas of a partition, unless a move is under way.

        A move that replaces another one may never end, as in Kafka: a replica that the first one
        adds and the second one removes is then both. A request for the last one may still arrive.
        """
        controller = self.controller
        if (
            controller is None
            or controller.image.find_partition(key).is_reassigning
            or self.now < self._move_arrives_by.get(key, 0.0)
        ):
            return
        self._move_arrives_by[key] = self.now + _LONGEST_MOVE_REQUEST
        partition = ReassignablePartition(partition_index=key.partition, replicas=tuple(replicas))
        topic = ReassignableTopic(name="t", partitions=(partition,))
        request = AlterPartitionReassignmentsRequest(topics=(topic,))
        forwarded = ForwardedRequest(request=request, version=request.versions.max)
        broker = self.random.choice(list(self.brokers.values()))
        envelope = Envelope(CLIENT, broker.node_id, 0, forwarded)
        self._after(broker.node_id, broker.forward(envelope, forwarded, self.now))

    def produce(self, key: TopicIdPartition, acks: int) -> None:
        """Write a record to the broker that some broker takes for the leader."""
        self._write(Written(key, len(self.written) + 1, acks))

    def begin_transaction(self, key: TopicIdPartition) -> None:
        """Write the first record of a transaction, with acks=all."""
        record = len(self.written) + 1
        if self._write(Written(key, record, ACKS_ALL, producer_id=record)):
            self.open_transactions[record] = key

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Write the marker of a transaction, as its coordinator does until it is acknowledged."""
        key = self.open_transactions[producer_id]
        self._write(Written(key, len(self.written) + 1, ACKS_ALL, producer_id, committed))

    def _write(self, written: Written) -> bool:
        """Send a record, if some broker knows a leader."""
        if not self.brokers:
            return False
        image = self.random.choice(list(self.brokers.values())).image
        partition = image.find_partition(written.key)
        if partition is None or partition.leader == NO_LEADER:
            return False
        self.written[written.record] = written
        node_id = partition.leader
        receiver = self.brokers.get(node_id)

        def arrive() -> None:
            if (
                receiver is not None
                and self.brokers.get(node_id) is receiver
                and not self._postponed(node_id, arrive)
            ):
                self._append(receiver, written)

        self._later(arrive)
        return True

    def _append(self, broker: BrokerNode, written: Written) -> None:
        """Append a record as the handlers of Produce and WriteTxnMarkers do."""
        replicas = broker.replicas
        try:
            if written.committed is None:
                offset = _append_record(replicas, written, self.now)
            else:
                offset = replicas.append_marker(written.key, _marker(written), self.now)
        except RefusedError:
            return
        if written.acks == ACKS_ALL:
            term = replicas.find(written.key).term
            self._waiting[broker.node_id].append(
                _Waiting(written, offset, term, self.now + PRODUCE_TIMEOUT)
            )
        outgoing = broker.collect(self.now)
        self._check(broker.node_id)
        self._after(broker.node_id, outgoing)

    def _acknowledge_replicated(self, broker: BrokerNode) -> None:
        """Respond to the writes that are replicated by now, as the handler does."""
        if not broker.replicas.take_changed():
            return
        self._check(broker.node_id)
        waiting, self._waiting[broker.node_id] = self._waiting[broker.node_id], []
        for each in waiting:
            code = broker.replicas.check_replicated(each.written.key, each.offset + 1, each.term)
            if code is ErrorCode.NONE:
                self._later(partial(self._acknowledge, each))
            elif code is None and self.now < each.expires_at:
                self._waiting[broker.node_id].append(each)

    def _acknowledge(self, waiting: _Waiting) -> None:
        written = waiting.written
        if written.committed is not None and written.producer_id is not None:
            self.open_transactions.pop(written.producer_id, None)
        if self.unclean:
            return
        written.acknowledged = True
        committed = self.committed[written.key]
        if committed[waiting.offset : waiting.offset + 1] != [written.record]:
            raise InvariantError(f"{written} was acknowledged and is not committed")

    def _later(self, action: Callable[[], None]) -> None:
        """Do what a client or broker does when a message of the other one arrives."""
        self.at(self.now + self.random.uniform(0.001, 0.01), action)

    def delete(self, key: TopicIdPartition) -> None:
        """Delete some of the committed records of a partition, if it has a leader.

        What stands at these offsets then is not checked. In Kafka as here a follower whose log
        differs truncates it to where the leader's begins, and may come in sync and lead before a
        response says that its own must begin there, too (AbstractFetcherThread, processFetchRequest
        takes the log start of no response that says where logs diverge).
        """
        for broker in self.brokers.values():
            leader = broker.replicas.leader(key)
            if leader is not None:
                log = leader.log
                log.delete_records(self.random.randint(log.log_start_offset, log.high_watermark))
                self._deleted[key] = max(self._deleted[key], log.log_start_offset)

    # Invariants.

    def _check(self, node_id: int) -> None:
        replicas = self.brokers[node_id].replicas
        for key in self.keys:
            leader = replicas.leader(key)
            if leader is not None:
                first = self._leaders.setdefault((key, leader.leader_epoch), node_id)
                if first != node_id:
                    raise InvariantError(
                        f"{node_id} and {first} lead {key} in epoch {leader.leader_epoch}"
                    )
            log = replicas.log(key)
            if log is not None and not self.unclean:
                self._compare(node_id, key, log)

    def _compare(self, node_id: int, key: TopicIdPartition, log: PartitionLog) -> None:
        """Compare the records that the high watermark has passed with those of other replicas."""
        end = log.high_watermark
        begin = self._compared.get((node_id, key), 0)
        if begin == end:
            return
        self._compared[node_id, key] = end
        begin = max(min(begin, end), log.log_start_offset, self._deleted[key])
        committed = self.committed[key]
        found = records_of(log, begin, end)
        known = committed[begin:end]
        if found[: len(known)] != known or len(committed) < begin:
            raise InvariantError(f"{node_id} has {found} from {begin} of {key}, others {known}")
        committed += found[len(known) :]

    def settle(self) -> None:
        """Wait until all is well again; raise InvariantError if that takes too long."""
        end = self.now + _LONGEST_RECOVERY
        while True:
            for producer_id in self.open_transactions:
                self.end_transaction(producer_id, committed=False)
            self.run(self.now + 0.5)
            try:
                self.check_end()
            except InvariantError:
                if self.now >= end:
                    raise
            else:
                return

    def check_end(self) -> None:
        """Check what must be true when all faults have been over for a while."""
        controller = self.controller
        if controller is None:
            raise InvariantError("there is no controller")
        for broker in self.brokers.values():
            if broker.image != controller.image:
                raise InvariantError(f"broker {broker.node_id} has other metadata")
        for key in self.keys:
            partition = controller.image.find_partition(key)
            if not _waits_for_a_removed_replica(partition):
                self._check_partition(key, partition)

    def _check_partition(self, key: TopicIdPartition, partition: PartitionRecord) -> None:
        if set(partition.isr) != set(partition.replicas) or partition.is_reassigning:
            raise InvariantError(f"not all replicas are in sync: {partition}")
        logs = [self.disks[node_id].logs[key] for node_id in partition.replicas]
        # Records may be deleted on some replicas only, if the leader changes meanwhile.
        start = max(self._deleted[key], *(log.log_start_offset for log in logs))
        contents = [records_of(log, start, log.log_end_offset) for log in logs]
        if any(content != contents[0] for content in contents):
            raise InvariantError(f"the replicas of {key} differ: {contents}")
        aborted = [_aborted(log, start) for log in logs]
        if any(each != aborted[0] for each in aborted):
            raise InvariantError(f"the replicas of {key} aborted different transactions: {aborted}")
        stable = [log.last_stable_offset for log in logs]
        # An unclean leader may lack the marker of a transaction, which then stays open. So does one
        # whose records only a follower has, if the leader deletes its own at these offsets: as in
        # Kafka, the follower does not notice that they differ.
        expected = stable[0] if self.unclean else logs[0].log_end_offset
        differs = start == 0 and any(each != expected for each in stable)
        opened = [each for each, its_key in self.open_transactions.items() if its_key == key]
        if opened or differs:
            raise InvariantError(f"{key} is stable up to {stable}; {opened} are open")
        leader = self.disks[partition.leader].logs[key]
        if leader.high_watermark != leader.log_end_offset:
            raise InvariantError(f"{key} is committed up to {leader.high_watermark} only")
        committed = self.committed[key]
        if contents[0] != committed[start:] and not self.unclean:
            raise InvariantError(
                f"{key} has {contents[0]} from {start} on, but {committed} was committed"
            )
        acknowledged = {
            each.record for each in self.written.values() if each.acknowledged and each.key == key
        }
        if not acknowledged.issubset(committed):
            raise InvariantError(f"{acknowledged} were acknowledged, {committed} are there")


def _waits_for_a_removed_replica(partition: PartitionRecord) -> bool:
    """Return whether only an unclean election, by an administrator, gives a partition a leader.

    As the goldens of Kafka 4.3.1 show, a replica in sync that a move removes stays eligible if the
    ISR is then too small. While it is, the last known leader may not lead again either
    (PartitionChangeBuilder.canElectLastKnownLeader), and it cannot lead itself.
    """
    return (
        partition.leader == NO_LEADER
        and bool(partition.elr)
        and not {*partition.isr, *partition.elr}.intersection(partition.replicas)
    )


def _append_record(replicas: ReplicaManager, written: Written, now: float) -> int:
    """Append a record that the coordinator has verified if it is in a transaction."""
    producer_id = NO_PRODUCER_ID if written.producer_id is None else written.producer_id
    is_transactional = producer_id != NO_PRODUCER_ID
    batch = memoryview(
        bytearray(
            plain_batch(
                [PlainRecord(timestamp=written.record)],
                producer_id=producer_id,
                producer_epoch=0 if is_transactional else NO_PRODUCER_EPOCH,
                base_sequence=0 if is_transactional else NO_SEQUENCE,
                attributes=_TRANSACTIONAL if is_transactional else 0,
            )
        )
    )
    if is_transactional:
        replicas.find(written.key).log.producer_state.start_verification(
            producer_id, 0, 0, supports_epoch_bump=False, now_ms=0
        )
    header = decode_header(batch)
    return replicas.append(written.key, batch, header, acks=written.acks, now=now).first_offset


def _marker(written: Written) -> TransactionMarker:
    return TransactionMarker(
        producer_id=written.producer_id or 0,
        # Bumped, so that a late record of the transaction does not begin it again (KIP-890).
        producer_epoch=1,
        committed=bool(written.committed),
        coordinator_epoch=0,
        transaction_version=2,
        timestamp=written.record,
    )


def _aborted(log: PartitionLog, start: int) -> set[tuple[int, int]]:
    """Return the aborted transactions that begin at or after an offset."""
    return {
        (each.producer_id, each.first_offset)
        for each in log.aborted_transactions(start, log.log_end_offset)
        if each.first_offset >= start
    }


def records_of(log: PartitionLog, begin: int, end: int) -> list[int]:
    """Return the records between two offsets, as the numbers that clients gave them."""
    records: list[int] = []
    while begin < end:
        read = log.read(begin, max_bytes=_READ_ALL, min_one_batch=True, end_offset=end)
        for piece in read.batches:
            for batch in split_record_batches(piece):
                header = decode_header(batch)
                if header.base_offset != begin:
                    raise InvariantError(f"offset {header.base_offset} follows {begin - 1}")
                records.append(header.max_timestamp)
                begin = header.last_offset + 1
    return records
