"""The partitions that a read covers, and where it starts and ends, as the user wants them.

The cluster is not known here: a name may be missing, and "latest" has no number yet. All values are
plain, so that they can be pickled and compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from spark_kafka_sink.model import TopicPartition

#: The two offsets in JSON that stand for others, as in Kafka's ListOffsets request.
LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2
_STAND_INS: Final = {EARLIEST_OFFSET: "earliest", LATEST_OFFSET: "latest"}
#: The words for them.
STAND_IN_WORDS: Final = {name: offset for offset, name in _STAND_INS.items()}
#: How many partitions an error names.
_MOST_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics, in the order in which the user named them."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics whose names contain a match of a regular expression."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions, sorted."""

    partitions: tuple[TopicPartition, ...]


Selection: TypeAlias = Subscribe | SubscribePattern | Assign


@dataclass(frozen=True, slots=True)
class Earliest:
    """The earliest offset of each partition."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest offset of each partition."""


@dataclass(frozen=True, slots=True)
class SpecificOffsets:
    """An offset for each partition; LATEST_OFFSET and EARLIEST_OFFSET stand for others."""

    offsets: Mapping[TopicPartition, int]
    #: For each topic whose partitions all have the same, one of these two.
    topics: Mapping[str, int] = field(default_factory=dict)

    def of(self, assigned: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets of the partitions that are read, as far as they are given."""
        named = {one: self.topics[one.topic] for one in assigned if one.topic in self.topics}
        return {**named, **self.offsets}


@dataclass(frozen=True, slots=True)
class Timestamps:
    """In each partition, the first record at or after its timestamp, in ms since 1970."""

    timestamps: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class GlobalTimestamp:
    """In each partition, the first record at or after the same timestamp, in ms since 1970."""

    timestamp: int


OffsetSpec: TypeAlias = Earliest | Latest | SpecificOffsets | Timestamps | GlobalTimestamp


def accepted_numbers(stand_ins: Iterable[int] = ()) -> str:
    """Return what the number of a partition may be, for errors; `stand_ins` are among them."""
    *others, last = (
        "an integer from 0 to 2^63 - 1",
        *(f"{number} ({_STAND_INS[number]})" for number in stand_ins),
    )
    return f"{', '.join(others)} or {last}" if others else last


def check_same_partitions(
    option: str,
    named: Collection[TopicPartition],
    assigned: Collection[TopicPartition],
    stand_ins: Iterable[int] = (),
) -> None:
    """Raise ConfigError unless the JSON of an option names exactly the partitions of the read.

    `stand_ins` are the numbers that the option accepts for an offset that is not known.
    """
    missing = sorted(set(assigned).difference(named))
    unknown = sorted(set(named).difference(assigned))
    problems = [
        f"{text} {listed(partitions, _MOST_NAMED)}"
        for text, partitions in (
            ("it lacks", missing),
            ("the read does not cover", unknown),
        )
        if partitions
    ]
    if problems:
        raise ConfigError(
            f"{option} must name exactly the partitions that are read, but {' and '.join(problems)}"
            + (_meanings(stand_ins) if missing else "")
        )


def _meanings(stand_ins: Iterable[int]) -> str:
    return "".join(f"; {one} stands for the {_STAND_INS[one]} offset" for one in stand_ins)


def listed(partitions: Sequence[object], most: int) -> str:
    """Return at most `most` partitions, and how many there are besides, for errors and logs."""
    names = ", ".join(map(str, partitions[:most]))
    more = len(partitions) - most
    return f"{names} and {more} more" if more > 0 else names
