"""The offsets of a stream as Spark keeps them: `{"topic": {"partition": offset}}`.

Spark stores the offsets of a Python source as the text that `json.dumps` makes of them, and
compares texts: the same offsets in another order count as new data, in every trigger. So all
offsets that leave this package are in one form: topics sorted, partitions sorted as numbers, plain
`int`.

The shape is that of Spark's own Kafka source, so a checkpoint of it can be read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

#: For each partition, the offset of the next record to read.
Offsets: TypeAlias = "Mapping[TopicPartition, int]"

_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_PARTITION: Final = 2**31 - 1
_MAX_OFFSET: Final = 2**63 - 1


def offsets_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return offsets in the canonical form that Spark stores.

    >>> offsets_json({TopicPartition("b", 10): 3, TopicPartition("b", 9): 2, ("a", 0): 1})
    {'a': {'0': 1}, 'b': {'9': 2, '10': 3}}
    """
    found: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        offset = offsets[TopicPartition(topic, partition)]
        found.setdefault(topic, {})[str(int(partition))] = int(offset)
    return found


def parse_offsets(stored: Any) -> dict[TopicPartition, int]:
    """Parse offsets that Spark has stored, in any order; raises ConfigError for anything else."""
    if not isinstance(stored, dict):
        raise _not_offsets(stored)
    offsets: dict[TopicPartition, int] = {}
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
    return offsets


def _not_offsets(found: object) -> ConfigError:
    return ConfigError(
        'the checkpoint does not have the offsets of a Kafka source, {"topic": {"partition": '
        f"offset}}}}: it has {str(found)[:60]!r}; use the checkpoint of this query, or a new one"
    )
