"""Checks of the arguments of `AdminClient`, before a request is sent.

A call about several items may be several requests. An argument that cannot be encoded would be an
error when some of them have been sent, so each is checked first. The errors name the argument, and
what to pass; of a value that may be a secret, they only have the type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from spark_kafka_sink.admin.cluster_values import TopicPartitionReplica
from spark_kafka_sink.admin.values import AlterConfigOp, ConfigResource, NewPartitions, OffsetSpec
from spark_kafka_sink.config.arguments import (
    INT64,
    number_of,
    number_of_seconds,
    offsets_of,
    partition_of,
    text_of,
)

if TYPE_CHECKING:
    from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition

T = TypeVar("T")


def seconds_of(timeout: object) -> float:
    """Return a positive timeout in seconds."""
    seconds = number_of_seconds(timeout)
    if not seconds > 0:
        raise ValueError(f"timeout must be a positive number of seconds, not {timeout}")
    return seconds


# --- several


def several(argument: str, names: object) -> tuple[str, ...]:
    """Return each name once; a single text would be taken for the names of its letters."""
    if isinstance(names, str):
        raise TypeError(f"{argument} are a list of texts, such as [{names!r}], not {names!r}")
    if not _may_be_list(names):
        raise TypeError(f"{argument} are a list of texts, not {names!r}")
    return tuple(dict.fromkeys(text_of(name, f"each of {argument}") for name in names))


def among(argument: str, names: object, known: Sequence[str]) -> tuple[str, ...]:
    """Return the given names, ignoring case, as they are in `known`.

    Raises ValueError for another name, as brokers would ignore it.
    """
    by_lower_case = {name.lower(): name for name in known}
    chosen = []
    for name in several(argument, names):
        if name.lower() not in by_lower_case:
            raise ValueError(f"{argument} must be among {', '.join(known)}, but one is {name!r}")
        chosen.append(by_lower_case[name.lower()])
    return tuple(dict.fromkeys(chosen))


def producer_ids_of(producer_ids: object) -> tuple[int, ...]:
    """Return several ids of producers."""
    if not _may_be_list(producer_ids):
        raise TypeError(f"producer_ids are a list of numbers, not {producer_ids!r}")
    return tuple(
        number_of(producer_id, "each of producer_ids", bits=INT64) for producer_id in producer_ids
    )


def broker_ids_of(argument: str, broker_ids: object) -> tuple[int, ...]:
    """Return several ids of brokers."""
    if not _may_be_list(broker_ids):
        raise TypeError(f"{argument} are a list of broker ids, not {broker_ids!r}")
    return tuple(number_of(broker_id, f"each of {argument}") for broker_id in broker_ids)


def value_of(what: str, value: object, kind: type[T]) -> T:
    """Return a value of a class."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be of the type {kind.__name__}, not {_type_of(value)}")
    return value


def values_of(argument: str, values: object, kind: type[T]) -> tuple[T, ...]:
    """Return several values of a class."""
    if not _may_be_list(values):
        raise TypeError(
            f"{argument} must be a list of {kind.__name__}, not of the type {_type_of(values)}"
        )
    return tuple(value_of(f"each of {argument}", value, kind) for value in values)


def _may_be_list(values: object) -> TypeGuard[Iterable[object]]:
    """Return whether there are several values; a text is none, although it has several letters."""
    return isinstance(values, Iterable) and not isinstance(values, str | bytes)


# --- mappings


def numbers_of(argument: str, numbers: object, what: str) -> dict[TopicPartition, int]:
    """Return numbers of partitions, such as offsets or timestamps."""
    checked = {}
    for key, number in _items_of(argument, numbers, f"TopicPartition to {what}"):
        partition = partition_of(key)
        checked[partition] = number_of(number, f"{partition}: {what}", bits=INT64)
    return checked


def committed_offsets_of(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets of partitions to commit.

    Brokers accept a negative one, such as that of an OffsetSpec, and the group has no offset then.
    """
    content = "TopicPartition to a number or an OffsetAndMetadata"
    by_partition: dict[Any, Any] = dict(_items_of("offsets", offsets, content))
    for key, offset in by_partition.items():
        if isinstance(offset, OffsetSpec):
            raise TypeError(
                f"{partition_of(key)}: an offset to commit is a number, such as list_offsets "
                f"returns for OffsetSpec.{offset.name}, not the OffsetSpec itself"
            )
    return offsets_of(by_partition)


def new_partitions_of(new_partitions: object) -> dict[str, NewPartitions]:
    """Return the new numbers of partitions, by topic."""
    content = "topic to NewPartitions, such as {'orders': NewPartitions(4)}"
    return {
        text_of(topic, "each topic of new_partitions"): value_of(
            f"new_partitions[{topic!r}]", new, NewPartitions
        )
        for topic, new in _items_of("new_partitions", new_partitions, content)
    }


def changes_of(changes: object) -> dict[ConfigResource, tuple[AlterConfigOp, ...]]:
    """Return the changes of settings, by resource."""
    content = "ConfigResource to a list of AlterConfigOp"
    by_resource = {}
    for key, of_one in _items_of("changes", changes, content):
        resource = value_of("each resource of changes", key, ConfigResource)
        by_resource[resource] = values_of(f"the changes of {resource}", of_one, AlterConfigOp)
    return by_resource


def paths_of(assignments: object) -> dict[TopicPartitionReplica, str]:
    """Return the directories of replicas."""
    content = "TopicPartitionReplica to the path of a directory"
    paths = {}
    for key, path in _items_of("assignments", assignments, content):
        replica = value_of("each replica of assignments", key, TopicPartitionReplica)
        paths[replica] = text_of(path, f"the directory of {replica}")
    return paths


def reassignments_of(reassignments: object) -> dict[TopicPartition, tuple[int, ...] | None]:
    """Return the new brokers of partitions; None for a move to cancel."""
    content = "TopicPartition to a list of broker ids, or None to cancel"
    replicas = {}
    for key, brokers in _items_of("reassignments", reassignments, content):
        partition = partition_of(key)
        what = f"the brokers of {partition}"
        replicas[partition] = None if brokers is None else broker_ids_of(what, brokers)
    return replicas


def _items_of(argument: str, mapping: object, content: str) -> Iterable[tuple[object, object]]:
    if not isinstance(mapping, Mapping):
        raise TypeError(
            f"{argument} must be a mapping of {content}, not of the type {_type_of(mapping)}"
        )
    return mapping.items()


def _type_of(value: object) -> str:
    return type(value).__name__
