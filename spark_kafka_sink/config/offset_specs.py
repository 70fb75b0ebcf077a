"""The partitions that a read covers, and where it starts and ends, as its options specify them.

The rules are those of Spark's own source. The cluster is not known here: a name may be missing, and
"latest" has no number yet. All values are plain, so that they can be pickled and compared.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from spark_kafka_sink.config.config_def import INT_MAX, LONG_MAX
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition, is_topic_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

#: The two offsets in JSON that stand for others, as in Kafka's ListOffsets request.
LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2
_STAND_INS: Final = {EARLIEST_OFFSET: "earliest", LATEST_OFFSET: "latest"}
#: The words for them.
STAND_IN_WORDS: Final = {name: offset for offset, name in _STAND_INS.items()}
#: How many partitions an error names.
_MOST_NAMED: Final = 10
#: How many characters of an option an error shows.
_SHOWN_CHARACTERS: Final = 200
_PARTITION: Final = re.compile(r"[0-9]{1,10}")

#: The options that set which partitions a read covers; exactly one is required.
SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
#: The options that set a start or an end; the first that is given takes precedence: a timestamp for
#: all partitions over timestamps by partition, and these over offsets. An option that gives way is
#: not even parsed, as in Spark.
STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")


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
        named = {
            partition: self.topics[partition.topic]
            for partition in assigned
            if partition.topic in self.topics
        }
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


# --- errors about partitions


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
    return "".join(
        f"; {stand_in} stands for the {_STAND_INS[stand_in]} offset" for stand_in in stand_ins
    )


def listed(partitions: Sequence[object], most: int) -> str:
    """Return at most `most` partitions, and how many there are besides, for errors and logs."""
    names = ", ".join(map(str, partitions[:most]))
    more = len(partitions) - most
    return f"{names} and {more} more" if more > 0 else names


# --- the JSON in which users name partitions, and an offset or a timestamp for each
#
# `{"topic": [0, 1]}` names partitions, `{"topic": {"0": 23, "1": -1}}` has a number for each.
# Numbers are integers, as Spark's own source requires. A word may stand for a number of all
# partitions of a topic, as in `{"topic": "earliest"}` (SPARK-58774). A name that occurs twice is an
# error; Spark takes the last one.


class PartitionJsonError(Exception):
    """The JSON is wrong; the message says how, as the end of a sentence."""


def shown(text: str) -> str:
    """Return the text for an error, with its end cut off if it is long."""
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}..."


def parse_partitions(text: str) -> tuple[TopicPartition, ...]:
    """Return the partitions, sorted; raise PartitionJsonError if it is wrong."""
    named = list(_partitions(_parse(text)))
    if len(set(named)) < len(named):
        raise PartitionJsonError("names a partition twice")
    return tuple(sorted(named))


def parse_numbers(text: str, lowest: int, requirement: str) -> dict[TopicPartition, int]:
    """Return the number of each partition, sorted; raise PartitionJsonError if it is wrong.

    No number may be less than `lowest`. `requirement` says in errors what a number must be.
    """
    numbers, _ = parse_numbers_and_words(text, lowest, requirement, {})
    return numbers


def parse_numbers_and_words(
    text: str, lowest: int, requirement: str, words: Mapping[str, int]
) -> tuple[dict[TopicPartition, int], dict[str, int]]:
    """Return the number of each partition, and those of whole topics, which are given as words.

    Otherwise it is as `parse_numbers`. `words` has the words in lower case with their numbers.
    """
    numbers = {}
    of_topics = {}
    for topic, by_partition in _parse(text).items():
        if isinstance(by_partition, str) and by_partition.lower() in words:
            of_topics[topic] = words[by_partition.lower()]
            continue
        if not isinstance(by_partition, dict):
            raise PartitionJsonError(f"has no object of partitions{_or(words)} for topic {topic!r}")
        for name, number in by_partition.items():
            partition = _partition(topic, int(name) if _PARTITION.fullmatch(name) else name)
            if type(number) is not int or not lowest <= number <= LONG_MAX:
                raise PartitionJsonError(
                    f"has {number!r} for {partition}, which must be {requirement}"
                )
            if partition in numbers:
                raise PartitionJsonError(f"names {partition} twice")
            numbers[partition] = number
    return dict(sorted(numbers.items())), of_topics


def _or(words: Iterable[str]) -> str:
    return "".join(f" or {word}" for word in words)


def _partitions(topics: dict[str, Any]) -> Iterator[TopicPartition]:
    for topic, numbers in topics.items():
        if not isinstance(numbers, list):
            raise PartitionJsonError(f"has no list of partitions for topic {topic!r}")
        for number in numbers:
            yield _partition(topic, number)


def _partition(topic: str, number: object) -> TopicPartition:
    if type(number) is not int or not 0 <= number <= INT_MAX:
        raise PartitionJsonError(f"has {number!r} as a partition of topic {topic!r}")
    return TopicPartition(topic, number)


def _parse(text: str) -> dict[str, Any]:
    try:
        topics = json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise PartitionJsonError(f"is not JSON ({error})") from None
    except (ValueError, RecursionError):
        # Too many digits, or too many brackets.
        raise PartitionJsonError("is not JSON") from None
    if not isinstance(topics, dict):
        raise PartitionJsonError("is not an object of topics")
    for topic in topics:
        if not is_topic_name(topic):
            raise PartitionJsonError(f"has {topic!r}, which is not a valid topic name")
    return topics


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise PartitionJsonError(f"names {name!r} twice")
        values[name] = value
    return values


# --- which partitions a read covers


def selection(values: Mapping[str, Any]) -> Selection:
    """Return the selection that one of the parsed options describes.

    Raises ConfigError if there is none or more than one, or if it is malformed or empty.
    """
    given = [name for name in SELECTIONS if values[name] is not None]
    if not given:
        raise ConfigError(
            "one of subscribe, subscribePattern and assign is required: set subscribe to the topic"
        )
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} exclude each other: set only one of them")
    text = values[given[0]]
    match given[0]:
        case "subscribe":
            return Subscribe(_topics(text))
        case "subscribePattern":
            return SubscribePattern(_pattern(text))
        case _:
            return _assign(text)


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if not topics:
        raise ConfigError("subscribe contains no topic: set it to a topic, or several")
    for topic in topics:
        if not is_topic_name(topic):
            raise ConfigError(
                f"subscribe: {topic!r} is not a valid topic name: use up to 249 letters, digits, "
                "'.', '_' and '-'; for a regular expression, set subscribePattern"
            )
    return topics


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(
            f"subscribePattern {text!r} is not a valid regular expression in Python: {error}"
        ) from None
    return text


def _assign(text: str) -> Assign:
    try:
        partitions = parse_partitions(text)
    except PartitionJsonError as error:
        raise ConfigError(
            f'assign {error}: write JSON such as {{"topicA": [0, 1]}}, not {shown(text)}'
        ) from None
    if not partitions:
        raise ConfigError(f"assign names no partition: {text!r}")
    return Assign(partitions)


# --- where a read starts and ends


class Accepted(NamedTuple):
    """What an option accepts, for errors."""

    #: The values of the option, as the object of "write".
    values: str
    #: The numbers that it accepts instead of an offset.
    stand_ins: tuple[int, ...] = ()

    @property
    def numbers(self) -> str:
        """What the number of one partition may be."""
        return accepted_numbers(self.stand_ins)


STREAM_START: Final = Accepted(
    'earliest, latest (the default) or JSON such as {"topicA": {"0": 23, "1": -2}, "topicB": '
    '"latest"}',
    (EARLIEST_OFFSET, LATEST_OFFSET),
)
BATCH_START: Final = Accepted(
    'earliest (the default) or JSON such as {"topicA": {"0": 23, "1": -2}, "topicB": "earliest"}',
    (EARLIEST_OFFSET,),
)
BATCH_END: Final = Accepted(
    'latest (the default) or JSON such as {"topicA": {"0": 23, "1": -1}, "topicB": "latest"}',
    (LATEST_OFFSET,),
)
_TIMESTAMPS: Final = Accepted('JSON such as {"topicA": {"0": 1700000000000}}')


class Position(NamedTuple):
    """A start or an end."""

    spec: OffsetSpec
    #: The option that it comes from.
    option: str
    #: The options that were given as well, and have no effect.
    overridden: tuple[str, ...]


def stream_start(values: Mapping[str, Any]) -> Position:
    """Return where a stream starts without a checkpoint, which is `latest` unless set."""
    for name in ENDS:
        if values[name] is not None:
            raise ConfigError(f"{name} is for batches: a stream has no end; remove it")
    return _position(values, STARTS, Latest(), STREAM_START)


def batch_range(values: Mapping[str, Any]) -> tuple[Position, Position]:
    """Return where a batch starts and ends: `earliest` and `latest` unless set."""
    start = _position(values, STARTS, Earliest(), BATCH_START)
    end = _position(values, ENDS, Latest(), BATCH_END)
    _check_reads_something(start, Latest, " in a batch, which would read nothing", BATCH_START)
    _check_reads_something(end, Earliest, ", since the batch would read nothing", BATCH_END)
    match start.spec, end.spec:
        case SpecificOffsets() as first, SpecificOffsets() as last:
            # What the partitions of a topic are is not known yet.
            check_same_partitions(
                end.option,
                [partition for partition in last.offsets if partition.topic not in first.topics],
                [partition for partition in first.offsets if partition.topic not in last.topics],
                BATCH_END.stand_ins,
            )
            _check_order(start, first.offsets, end, last.offsets)
        case Timestamps(first), Timestamps(last):
            check_same_partitions(end.option, last, first)
            _check_order(start, first, end, last)
    return start, end


def _position(
    values: Mapping[str, Any], names: tuple[str, ...], default: OffsetSpec, accepted: Accepted
) -> Position:
    given = tuple(name for name in names if values[name] is not None)
    if not given:
        return Position(default, names[-1], ())
    option = given[0]
    value = values[option]
    if option == names[0]:
        spec: OffsetSpec = GlobalTimestamp(value)
    elif option == names[1]:
        with _naming(option, value, _TIMESTAMPS):
            spec = Timestamps(parse_numbers(value, 0, _TIMESTAMPS.numbers))
    else:
        spec = _offsets(option, value, accepted)
    return Position(spec, option, given[1:])


def _offsets(option: str, text: str, accepted: Accepted) -> OffsetSpec:
    match text.lower():
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
        case _:
            with _naming(option, text, accepted):
                return SpecificOffsets(
                    *parse_numbers_and_words(
                        text, EARLIEST_OFFSET, accepted.numbers, STAND_IN_WORDS
                    )
                )


@contextmanager
def _naming(option: str, text: str, accepted: Accepted) -> Iterator[None]:
    """Raise ConfigError with the name of the option for JSON that is wrong."""
    try:
        yield
    except PartitionJsonError as error:
        raise ConfigError(f"{option} {error}: write {accepted.values}, not {shown(text)}") from None


def _check_reads_something(
    position: Position, empty: type[Earliest | Latest], consequence: str, accepted: Accepted
) -> None:
    """Raise ConfigError for a start at the latest offsets, or an end at the earliest ones."""
    offset = LATEST_OFFSET if empty is Latest else EARLIEST_OFFSET
    refused = f"{position.option} must not be {_STAND_INS[offset]}"
    if isinstance(position.spec, empty):
        raise ConfigError(f"{refused}{consequence}: write {accepted.values}")
    target = _first_with(position.spec, offset)
    if target is not None:
        raise ConfigError(
            f"{refused} ({offset}) for {target}{consequence}: write {accepted.numbers}"
        )


def _first_with(spec: OffsetSpec, offset: int) -> TopicPartition | str | None:
    """Return the first partition, or else topic, with an offset that stands for others."""
    if not isinstance(spec, SpecificOffsets):
        return None
    offsets: list[tuple[TopicPartition | str, int]] = [*spec.offsets.items(), *spec.topics.items()]
    return next((target for target, number in offsets if number == offset), None)


def _check_order(
    start: Position,
    first: Mapping[TopicPartition, int],
    end: Position,
    last: Mapping[TopicPartition, int],
) -> None:
    for partition, offset in first.items():
        # Negative offsets stand for others, which are not known yet.
        if 0 <= last.get(partition, -1) < offset:
            raise ConfigError(
                f"{end.option} is {last[partition]} for {partition}, before {start.option}, which "
                f"is {offset}"
            )
