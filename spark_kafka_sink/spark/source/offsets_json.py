"""The offsets of a stream as Spark keeps them: `{"topic": {"partition": offset}}`.

Offsets mean something only in the topic in which they were found: one that was deleted and created
again has other records, and so may a log have whose leader was not in sync when it was elected. So
the id of each topic is stored, too, and for each partition the epoch of the leader whose log had
the offset (KIP-320). They are in the key of an entry without partitions:
`{"t": {"0": 7, "1": 9}, "t?topicId=...&leaderEpochs=0:2,1:5": {}}`. No topic has such a name, and
whatever reads the offsets of partitions finds none there: Spark's own source, which accepts nothing
but numbers of partitions and offsets, and anything that reads the progress of a query.

Spark stores the offsets of a Python source as the text that `json.dumps` makes of them, and
compares texts: the same offsets in another order count as new data, in every trigger. So all
offsets that leave this package are in one form: topics sorted, partitions sorted as numbers, plain
`int`.

The shape is that of Spark's own Kafka source, so a checkpoint of either can be read by the other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

#: For each partition, the offset of the next record to read.
Offsets: TypeAlias = "Mapping[TopicPartition, int]"

_LOG: Final = re.compile(
    r"(?P<topic>[^?]+)\?"
    r"(?:topicId=(?P<topic_id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}))?&?"
    r"(?:leaderEpochs=(?P<epochs>[0-9]{1,10}:[0-9]{1,10}(?:,[0-9]{1,10}:[0-9]{1,10})*))?"
)
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_PARTITION: Final = 2**31 - 1
_MAX_OFFSET: Final = 2**63 - 1


class StreamOffsets(dict[TopicPartition, int]):
    """Offsets, and the logs in which they were found; they are equal if the offsets are."""

    def __init__(
        self,
        offsets: Offsets,
        topic_ids: Mapping[str, UUID] | None = None,
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Store the offsets, and the ids of topics and the leader epochs that are known."""
        super().__init__(offsets)
        self.topic_ids = dict(topic_ids or {})
        self.epochs = dict(epochs or {})

    def at(self, offsets: Offsets) -> StreamOffsets:
        """Return other offsets in the same logs."""
        return StreamOffsets(offsets, self.topic_ids, self.epochs)

    def without(self, topics: Collection[str]) -> StreamOffsets:
        """Return what is known about all other topics."""
        return StreamOffsets(
            {partition: at for partition, at in self.items() if partition.topic not in topics},
            {topic: its_id for topic, its_id in self.topic_ids.items() if topic not in topics},
            {
                partition: epoch
                for partition, epoch in self.epochs.items()
                if partition.topic not in topics
            },
        )

    def remaining(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[str, UUID]
    ) -> StreamOffsets:
        """Return the offsets of those of `partitions` that still have the same logs."""
        existing = frozenset(partitions)
        replaced = StreamOffsets({}, topic_ids).replaced(self)
        return self.at(
            {partition: at for partition, at in self.items() if partition in existing}
        ).without(replaced)

    def is_still(self, start: StreamOffsets) -> bool:
        """Return whether there is nothing to read from `start` up to these offsets, the latest.

        Equal offsets are not enough: another topic of the same name, or a log that was cut, may
        have other records up to the same offset. In a later epoch the log may have been cut.
        """
        return (
            self == start
            and not self.replaced(start)
            and all(
                self.epochs.get(partition, epoch) <= epoch
                for partition, epoch in start.epochs.items()
            )
        )

    def replaced(self, before: StreamOffsets) -> frozenset[str]:
        """Return the topics that are others here than they were before."""
        return frozenset(
            topic
            for topic, topic_id in self.topic_ids.items()
            if before.topic_ids.get(topic, topic_id) != topic_id
        )


def offsets_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return offsets in the canonical form that Spark stores.

    >>> offsets_json({TopicPartition("b", 10): 3, TopicPartition("b", 9): 2, ("a", 0): 1})
    {'a': {'0': 1}, 'b': {'9': 2, '10': 3}}
    """
    by_topic: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        offset = offsets[TopicPartition(topic, partition)]
        by_topic.setdefault(topic, {})[str(int(partition))] = int(offset)
    if isinstance(offsets, StreamOffsets):
        by_topic |= {
            key: {} for topic in by_topic if (key := _log_key(topic, by_topic[topic], offsets))
        }
    return by_topic


def _log_key(topic: str, partitions: Iterable[str], offsets: StreamOffsets) -> str | None:
    """Return the key with what is known of the logs of a topic; None if that is nothing."""
    known = []
    if topic in offsets.topic_ids:
        known.append(f"topicId={offsets.topic_ids[topic]}")
    epochs = [
        f"{partition}:{offsets.epochs[topic_partition]}"
        for partition in partitions
        if (topic_partition := TopicPartition(topic, int(partition))) in offsets.epochs
    ]
    if epochs:
        known.append(f"leaderEpochs={','.join(epochs)}")
    return f"{topic}?{'&'.join(known)}" if known else None


def parse_offsets(stored: Any) -> StreamOffsets:
    """Parse offsets that Spark has stored, in any order; raises ConfigError for anything else."""
    if not isinstance(stored, dict):
        raise _not_offsets(stored)
    offsets = StreamOffsets({})
    for topic, partitions in stored.items():
        if not isinstance(partitions, dict):
            raise _not_offsets(partitions)
        for partition, offset in partitions.items():
            if _PARTITION.fullmatch(partition) is None or int(partition) > _MAX_PARTITION:
                raise _not_offsets(partition)
            # bool is a subclass of int.
            if type(offset) is not int or not 0 <= offset <= _MAX_OFFSET:
                raise _not_offsets(offset)
            offsets[TopicPartition(topic, int(partition))] = offset
        if not partitions and (known := _LOG.fullmatch(topic)):
            _add_log(offsets, known)
    return offsets


def _add_log(offsets: StreamOffsets, known: re.Match[str]) -> None:
    """Add what the key of an entry without partitions says."""
    topic = known["topic"]
    if known["topic_id"]:
        offsets.topic_ids[topic] = UUID(known["topic_id"])
    for entry in known["epochs"].split(",") if known["epochs"] else ():
        partition, epoch = entry.split(":")
        offsets.epochs[TopicPartition(topic, int(partition))] = int(epoch)


def _not_offsets(stored: object) -> ConfigError:
    return ConfigError(
        'the checkpoint does not have the offsets of a Kafka source, {"topic": {"partition": '
        f"offset}}}}: it has {str(stored)[:60]!r}; use the checkpoint of this query, or a new one"
    )
