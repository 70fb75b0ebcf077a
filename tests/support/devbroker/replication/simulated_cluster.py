"""A cluster of brokers that replicate, on a clock and a network that a schedule of faults drives.

Everything follows from the seed: faults, the delay of each message, what clients write and when.
A cut link loses messages silently; a dead broker refuses them; responses to a broker that has been
restarted since are lost. Messages overtake each other.

After each event the cluster is checked, and `check_end` checks it once all faults are over:

- no two brokers lead a partition in the same epoch;
- below their high watermarks, all replicas have the same records, and always will: so no consumer
  has seen a record that is not there later;
- a record that was acknowledged with acks=all is below the high watermark of the leader, and is
  there at the end;
- all replicas are in sync and equal in the end.
"""

from __future__ import annotations

import heapq
import itertools
import random
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.metadata.records import (
    NO_LEADER,
    TOPIC_RESOURCE,
    ConfigRecord,
    ConfigResource,
    PartitionRecord,
    TopicIdPartition,
    TopicRecord,
)
from spark_kafka_sink.devbroker.replication.follower_fetcher import ReplicationSettings
from spark_kafka_sink.devbroker.replication.replica_manager import CONTROLLER, Envelope
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from spark_kafka_sink.protocol.schema import ApiRequest
from spark_kafka_sink.record.record_batch import decode_header, split_record_batches
from tests.support.devbroker.replication.simulated_broker import SimulatedBroker, SimulatedDisk
from tests.support.devbroker.replication.stand_in_controller import StandInController
from tests.support.record.plain_batches import PlainRecord, plain_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog

CLIENT = -2
#: Kafka's times, a sixtieth as long: a schedule of seconds is one of minutes.
SETTINGS = ReplicationSettings(
    replica_lag_time_max=0.5,
    replica_fetch_wait_max=0.25,
    replica_fetch_backoff=0.05,
    replica_socket_timeout=0.5,
    replica_high_watermark_checkpoint_interval=0.3,
)
SESSION_TIMEOUT = 0.6
HEARTBEAT_INTERVAL = 0.15
PRODUCE_TIMEOUT = 0.6
_READ_ALL = 1 << 30
TOPIC_ID = uuid.UUID(int=77)


class InvariantError(AssertionError):
    """Something that must never happen has happened."""


@dataclass(slots=True)
class Written:
    """A record that a client has sent."""

    key: TopicIdPartition
    record: int
    acks: int
    acknowledged: bool = False


class SimulatedCluster:
    """Brokers, the controller, the network between them, and what clients have written."""

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 3,
        partitions: int = 2,
        min_insync_replicas: int = 1,
        unclean: bool = False,
    ) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.controller = StandInController(SESSION_TIMEOUT, unclean=unclean)
        self.unclean = unclean
        self.disks = {node_id: SimulatedDisk() for node_id in range(brokers)}
        #: The running brokers.
        self.brokers: dict[int, SimulatedBroker] = {}
        self.paused_until: dict[int, float] = {}
        self.cuts: set[frozenset[int]] = set()
        #: How much longer messages take on a slow link.
        self.slow: dict[frozenset[int], float] = {}
        self.keys = [TopicIdPartition(TOPIC_ID, index) for index in range(partitions)]
        #: What was committed: for each partition the records in their order.
        self.committed: dict[TopicIdPartition, list[int]] = {key: [] for key in self.keys}
        self.written: dict[int, Written] = {}
        self.events = 0
        self._leaders: dict[tuple[TopicIdPartition, int], int] = {}
        #: Up to where each replica's records were compared.
        self._compared: dict[tuple[int, TopicIdPartition], int] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._ticking: dict[int, float] = {}
        self._create_topic(partitions, min_insync_replicas)
        for node_id in self.disks:
            self.start(node_id)
        self._tick_controller()

    def _create_topic(self, partitions: int, min_insync_replicas: int) -> None:
        nodes = list(self.disks)
        self.controller.append(
            TopicRecord(topic_id=TOPIC_ID, name="t"),
            ConfigRecord(
                resource=ConfigResource(TOPIC_RESOURCE, "t"),
                name="min.insync.replicas",
                value=str(min_insync_replicas),
            ),
        )
        for index in range(partitions):
            replicas = tuple(nodes[(index + each) % len(nodes)] for each in range(3))
            self.controller.append(
                PartitionRecord(
                    topic_id=TOPIC_ID,
                    partition=index,
                    replicas=replicas,
                    isr=replicas,
                    leader=NO_LEADER,
                )
            )

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

    def _tick_controller(self) -> None:
        self.controller.tick(self.now)
        self.at(self.now + HEARTBEAT_INTERVAL, self._tick_controller)

    def _plan_tick(self, node_id: int) -> None:
        broker = self.brokers.get(node_id)
        if broker is not None:
            due = max(broker.deadline, self.now)
            if due < self._ticking.get(node_id, float("inf")):
                self._ticking[node_id] = due
                self.at(due, lambda: self._tick(node_id, broker, due))

    def _tick(self, node_id: int, broker: SimulatedBroker, due: float) -> None:
        if self.brokers.get(node_id) is not broker or self._ticking.get(node_id) != due:
            return
        if not self._postponed(node_id, lambda: self._tick(node_id, broker, due)):
            del self._ticking[node_id]
            self._after(node_id, broker.tick(self.now))

    def _postponed(self, node_id: int, action: Callable[[], None]) -> bool:
        """Delay what a paused broker would do; return whether it is paused."""
        until = self.paused_until.get(node_id, 0.0)
        if until > self.now:
            self.at(until, action)
        return until > self.now

    def _after(self, node_id: int, outgoing: list[Envelope]) -> None:
        for envelope in outgoing:
            self.send(envelope)
        self._check(node_id)
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
            if envelope.receiver == CONTROLLER:
                for answer in self.controller.handle(envelope, self.now):
                    self.send(answer)
            elif envelope.receiver == CLIENT:
                self._acknowledge(envelope)
            elif self.brokers.get(envelope.receiver) is not receiver or receiver is None:
                self._refuse(envelope, sender)
            elif not self._postponed(envelope.receiver, arrive):
                self._after(envelope.receiver, receiver.handle(envelope, self.now))

        self.at(self.now + delay, arrive)

    def _refuse(self, envelope: Envelope, sender: SimulatedBroker | None) -> None:
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
            self.brokers[node_id] = SimulatedBroker(
                node_id,
                self.disks[node_id],
                uuid.UUID(int=self.random.getrandbits(128)),
                SETTINGS,
                heartbeat_interval=HEARTBEAT_INTERVAL,
                patience=SETTINGS.replica_socket_timeout,
            )
            self.paused_until.pop(node_id, None)
            self._plan_tick(node_id)

    def kill(self, node_id: int) -> None:
        """End the process of a broker; its disk remains."""
        self.brokers.pop(node_id, None)
        self._ticking.pop(node_id, None)
        for key in self.keys:
            # Its high watermark is read from the last checkpoint when it starts.
            self._compared.pop((node_id, key), None)

    def pause(self, node_id: int, seconds: float) -> None:
        """Stop a broker for a while, as the scheduler of a busy machine does."""
        self.paused_until[node_id] = self.now + seconds

    def heal(self) -> None:
        """End all faults."""
        self.cuts.clear()
        self.slow.clear()
        self.paused_until.clear()
        for node_id in self.disks:
            self.start(node_id)

    # Clients.

    def produce(self, key: TopicIdPartition, acks: int) -> None:
        """Write a record to the broker that some broker takes for the leader."""
        record = len(self.written) + 1
        if not self.brokers:
            return
        partition = self.random.choice(list(self.brokers.values())).image.find_partition(key)
        if partition is None or partition.leader == NO_LEADER:
            return
        self.written[record] = Written(key, record, acks)
        batch = plain_batch([PlainRecord(timestamp=record)])
        request = ProduceRequest(
            acks=acks,
            timeout_ms=int(PRODUCE_TIMEOUT * 1000),
            topic_data=(
                TopicProduceData(
                    topic_id=key.topic_id,
                    partition_data=(PartitionProduceData(index=key.partition, records=batch),),
                ),
            ),
        )
        self.send(Envelope(CLIENT, partition.leader, record, request))

    def _acknowledge(self, envelope: Envelope) -> None:
        response = envelope.message
        if not isinstance(response, ProduceResponse):
            return
        result = response.responses[0].partition_responses[0]
        written = self.written[envelope.correlation_id]
        if result.error_code != ErrorCode.NONE or written.acks != -1 or self.unclean:
            return
        written.acknowledged = True
        committed = self.committed[written.key]
        if committed[result.base_offset : result.base_offset + 1] != [written.record]:
            raise InvariantError(f"{written} was acknowledged and is not committed")

    # Invariants.

    def _check(self, node_id: int) -> None:
        broker = self.brokers.get(node_id)
        if broker is None:
            return
        for key in self.keys:
            leader = broker.replicas.leader(key)
            if leader is not None:
                first = self._leaders.setdefault((key, leader.leader_epoch), node_id)
                if first != node_id:
                    raise InvariantError(
                        f"{node_id} and {first} lead {key} in epoch {leader.leader_epoch}"
                    )
            log = broker.replicas.log(key)
            if log is not None and not self.unclean:
                self._compare(node_id, key, log)

    def _compare(self, node_id: int, key: TopicIdPartition, log: PartitionLog) -> None:
        """Compare the records that the high watermark has passed with those of other replicas."""
        end = log.high_watermark
        begin = self._compared.get((node_id, key), 0)
        if begin == end:
            return
        self._compared[node_id, key] = end
        begin = min(begin, end)
        committed = self.committed[key]
        found = records_of(log, begin, end)
        known = committed[begin:end]
        if found[: len(known)] != known or len(committed) < begin:
            raise InvariantError(f"{node_id} has {found} from {begin} of {key}, others {known}")
        committed += found[len(known) :]

    def check_end(self) -> None:
        """Check what must be true when all faults have been over for a while."""
        for key in self.keys:
            partition = self.controller.image.find_partition(key)
            logs = [self.disks[node_id].logs[key] for node_id in partition.replicas]
            contents = [records_of(log, 0, log.log_end_offset) for log in logs]
            if set(partition.isr) != set(partition.replicas):
                raise InvariantError(f"only {partition.isr} of {partition.replicas} are in sync")
            if any(content != contents[0] for content in contents):
                raise InvariantError(f"the replicas of {key} differ: {contents}")
            leader = self.disks[partition.leader].logs[key]
            if leader.high_watermark != leader.log_end_offset:
                raise InvariantError(f"{key} is committed up to {leader.high_watermark} only")
            if self.unclean:
                continue
            committed = self.committed[key]
            if contents[0] != committed:
                raise InvariantError(f"{key} has {contents[0]}, but {committed} was committed")
            lost = [
                each.record
                for each in self.written.values()
                if each.acknowledged and each.key == key and each.record not in set(committed)
            ]
            if lost:
                raise InvariantError(f"{lost} were acknowledged and are lost")


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


def run_schedule(seed: int, *, unclean: bool = False) -> SimulatedCluster:
    """Run one schedule of faults, and check the cluster all the time."""
    choose = random.Random(seed)
    cluster = SimulatedCluster(
        seed,
        brokers=choose.choice([3, 3, 3, 4]),
        partitions=choose.choice([1, 2]),
        min_insync_replicas=choose.choice([1, 2]),
        unclean=unclean,
    )
    cluster.run(0.6)
    for _ in range(choose.randrange(4, 14)):
        _fault(cluster, choose)
        for _ in range(choose.randrange(6)):
            at = cluster.now + choose.uniform(0, 0.2)
            key, acks = choose.choice(cluster.keys), choose.choice([-1, -1, 0, 1])
            cluster.at(at, lambda key=key, acks=acks: cluster.produce(key, acks))
        cluster.run(cluster.now + choose.choice([0.01, 0.05, 0.2, 0.5]))
    cluster.heal()
    cluster.run(cluster.now + 3.0)
    cluster.check_end()
    return cluster


def _fault(cluster: SimulatedCluster, choose: random.Random) -> None:
    nodes = list(cluster.disks)
    node = choose.choice(nodes)
    other = choose.choice([CONTROLLER, *(each for each in nodes if each != node)])
    link = frozenset((node, other))
    match choose.randrange(8):
        case 0:
            cluster.kill(node)
        case 1:
            cluster.kill(node)
            cluster.start(node)
        case 2:
            cluster.start(node)
        case 3:
            cluster.cuts.add(link)
        case 4:
            cluster.cuts.discard(link)
        case 5:
            cluster.slow[link] = choose.uniform(0.02, 0.8)
        case 6:
            cluster.pause(node, choose.uniform(0.05, 1.0))
        case 7:
            cluster.controller.elect(choose.choice(cluster.keys), node)
