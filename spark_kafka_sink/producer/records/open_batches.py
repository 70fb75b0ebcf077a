"""The batches that are being filled: one slot per partition, in the form the kernel works on.

The table belongs to the writing thread. The numbers of all slots are in one structured array that
the kernel reads and updates; fields that only Python needs are stored beside it. The slots of a
topic are adjacent, so `first_slot + partition` is a partition's slot. When a topic grows, its slots
move to the end of the array. A recreated topic may have fewer partitions: the slots of the others
remain, and their open batches end like any batch without a leader.

Batches can also be looked up by age. They are not opened in the order of their age: a batch is as
old as its first record, which may have been staged before a younger batch was opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.batch.produce_result import CallLater, ProduceResult, call_now
from spark_kafka_sink.record.kernel.kernel import SLOT_DTYPE, STICKY_DTYPE
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spark_kafka_sink.producer.batch.producer_batch import RowOrigin

NO_SLOT = -1
#: The number of closed batches that may remain in the heap by age before it is cleaned up.
MAX_STALE = 64
_NO_BLOCK: NDArray[np.uint8] = np.array([], np.uint8)


@dataclass(slots=True)
class TopicSlots:
    """The slots of a topic; `index` is the topic's row in the sticky table."""

    index: int
    first_slot: int
    #: The number of partitions the topic has now.
    partition_count: int
    #: The number of its slots: the most partitions it has ever had.
    slot_count: int


class FilledBlock(NamedTuple):
    """The contents of an open batch at the time it was closed."""

    topic_partition: TopicPartition
    slot: int
    result: ProduceResult
    #: When it was opened, in seconds.
    opened_at: float
    block: NDArray[np.uint8]
    #: Bytes used, including the space for the batch header.
    used_bytes: int
    record_count: int
    base_timestamp: int
    max_timestamp: int
    max_record_bytes: int
    origin: RowOrigin


@dataclass(slots=True)
class OpenBatch:
    """The part of an open batch that the kernel does not need."""

    block: NDArray[np.uint8]
    origin: RowOrigin
    #: In seconds.
    opened_at: float
    result: ProduceResult
    #: Its current slot; `NO_SLOT` once it is closed.
    slot: int


class OpenBatches:
    """The slot table and the blocks behind it."""

    def __init__(self, call_later: CallLater = call_now) -> None:
        """Create an empty table; `call_later` runs the callbacks of batches that have ended."""
        self._call_later = call_later
        self.slots: NDArray[np.void] = np.zeros(0, dtype=SLOT_DTYPE)
        self.sticky: NDArray[np.void] = np.zeros(0, dtype=STICKY_DTYPE)
        #: Per slot, the size of its last batch in bytes, but at least half of what this was before:
        #: a flush, which ends a batch early, says little about the next one.
        self.last_bytes: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        #: How often slots were renumbered because a topic grew.
        self.moves = 0
        self._topics: dict[str, TopicSlots] = {}
        self._partitions: list[TopicPartition] = []
        #: By slot.
        self._batches: dict[int, OpenBatch] = {}
        #: The size of all blocks together.
        self.allocated_bytes = 0
        #: A heap of all open batches and some closed ones, by `opened_at`.
        self._by_age: list[tuple[float, int, OpenBatch]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, slot: int) -> bool:
        return slot in self._batches

    def __getitem__(self, slot: int) -> OpenBatch:
        return self._batches[slot]

    def topic(self, name: str, partition_count: int) -> TopicSlots:
        """Return a topic's slots; add slots if it has more partitions than before."""
        known = self._topics.get(name)
        if known is not None and partition_count <= known.slot_count:
            if partition_count != known.partition_count:
                self._resize(known, partition_count)
            return known
        first_slot = len(self.slots)
        self.slots = np.concatenate([self.slots, np.zeros(partition_count, dtype=SLOT_DTYPE)])
        self.last_bytes = np.concatenate(
            [self.last_bytes, np.zeros(partition_count, dtype=np.int64)]
        )
        self._partitions += [TopicPartition(name, p) for p in range(partition_count)]
        if known is None:
            index = len(self.sticky)
            self.sticky = np.concatenate([self.sticky, np.zeros(1, dtype=STICKY_DTYPE)])
            self.sticky["slot"][index] = NO_SLOT
            self._topics[name] = TopicSlots(index, first_slot, partition_count, partition_count)
            return self._topics[name]
        self._move(known, first_slot)
        known.first_slot = first_slot
        known.partition_count = known.slot_count = partition_count
        return known

    def _resize(self, topic: TopicSlots, partition_count: int) -> None:
        topic.partition_count = partition_count
        if self.sticky["slot"][topic.index] >= topic.first_slot + partition_count:
            self.sticky["slot"][topic.index] = NO_SLOT

    def _move(self, topic: TopicSlots, first_slot: int) -> None:
        self.moves += 1
        offset = first_slot - topic.first_slot
        old = slice(topic.first_slot, topic.first_slot + topic.slot_count)
        new = slice(first_slot, first_slot + topic.slot_count)
        self.slots[new] = self.slots[old]
        self.slots[old] = np.zeros(topic.slot_count, dtype=SLOT_DTYPE)
        self.last_bytes[new] = self.last_bytes[old]
        if self.sticky["slot"][topic.index] != NO_SLOT:
            self.sticky["slot"][topic.index] += offset
        for slot in range(old.start, old.stop):
            if slot in self._batches:
                batch = self._batches.pop(slot)
                batch.slot = slot + offset
                self._batches[batch.slot] = batch

    def topic_partition(self, slot: int) -> TopicPartition:
        """Return the partition of a slot."""
        return self._partitions[slot]

    def new_result(self, slot: int) -> ProduceResult:
        """Return a pending result for a batch of a slot's partition."""
        return ProduceResult(self._partitions[slot], self._call_later)

    def open(
        self, slot: int, block: NDArray[np.uint8], limit: int, *, origin: RowOrigin, now: float
    ) -> None:
        """Open a batch in an empty block, of which `limit` bytes may be used."""
        batch = OpenBatch(block, origin, now, self.new_result(slot), NO_SLOT)
        if len(self._by_age) > 2 * (len(self._batches) + 1) + MAX_STALE:
            self._by_age = [item for item in self._by_age if item[2].slot != NO_SLOT]
            heapify(self._by_age)
        heappush(self._by_age, (now, next(self._numbers), batch))
        # From here on the block belongs to the table.
        self._batches[slot] = batch
        batch.slot = slot
        self.allocated_bytes += block.nbytes
        entry = self.slots[slot]
        entry["address"] = block.ctypes.data
        entry["position"] = RECORD_BATCH_OVERHEAD
        entry["limit"] = limit
        entry["record_count"] = 0
        entry["max_record_bytes"] = 0

    @property
    def record_count(self) -> int:
        """The number of records in all open batches."""
        return int(self.slots["record_count"].sum())

    def used_bytes(self, slot: int) -> int:
        """Return the bytes an open batch has used, including the header's space."""
        return int(self.slots["position"][slot])

    def largest_bytes(self, topic: TopicSlots) -> int:
        """Return the size of a topic's largest batch among the open ones and the last ones."""
        slots = slice(topic.first_slot, topic.first_slot + topic.slot_count)
        return int(max(self.slots["position"][slots].max(), self.last_bytes[slots].max()))

    def due(self, now: float, linger: float) -> tuple[list[int], float | None]:
        """Return the slots whose batch has been open for `linger` seconds, oldest first.

        Also returns when the oldest of the other batches was opened; None if there is no other.
        """
        due_entries = []
        while self._by_age:
            opened_at, _, batch = self._by_age[0]
            if batch.slot != NO_SLOT:
                if opened_at + linger > now:
                    break
                due_entries.append(self._by_age[0])
            heappop(self._by_age)
        next_opened_at = self._by_age[0][0] if self._by_age else None
        # These batches remain open until `take`.
        for entry in due_entries:
            heappush(self._by_age, entry)
        return [batch.slot for _, _, batch in due_entries], next_opened_at

    def grow(self, slot: int, block: NDArray[np.uint8], limit: int) -> None:
        """Move an open batch to a larger block."""
        old = self._batches[slot].block
        used = self.used_bytes(slot)
        block[:used] = old[:used]
        self._batches[slot].block = block
        self.allocated_bytes += block.nbytes - old.nbytes
        entry = self.slots[slot]
        entry["address"] = block.ctypes.data
        entry["limit"] = limit

    def take(self, slot: int) -> FilledBlock:
        """Close an open batch and return its contents."""
        entry = self.slots[slot]
        batch = self._batches[slot]
        filled = FilledBlock(
            topic_partition=self._partitions[slot],
            slot=slot,
            result=batch.result,
            opened_at=batch.opened_at,
            block=batch.block,
            used_bytes=int(entry["position"]),
            record_count=int(entry["record_count"]),
            base_timestamp=int(entry["base_timestamp"]),
            max_timestamp=int(entry["max_timestamp"]),
            max_record_bytes=int(entry["max_record_bytes"]),
            origin=batch.origin,
        )
        self.last_bytes[slot] = max(filled.used_bytes, self.last_bytes[slot] // 2)
        self.discard(slot)
        return filled

    def discard(self, slot: int) -> None:
        """Remove an open batch with its records; its block belongs to the caller."""
        entry = self.slots[slot]
        entry["address"] = 0
        entry["position"] = 0
        entry["limit"] = 0
        entry["record_count"] = 0
        batch = self._batches.pop(slot)
        self.allocated_bytes -= batch.block.nbytes
        batch.slot = NO_SLOT
        # The entry stays in the heap for a while, and must not keep the block in memory.
        batch.block = _NO_BLOCK

    def open_slots(self) -> list[int]:
        """Return the slots with an open batch."""
        return list(self._batches)

    def fullest(self) -> int:
        """Return the slot whose open batch has used the most bytes."""
        # A slot without an open batch has used 0 bytes.
        return int(np.argmax(self.slots["position"]))
