"""The setting partition.assignment.strategy: which assignors a member supports.

Built-in assignors are named as in Java, by class, or by the short names that JoinGroup has. Others
are given as objects, or by the path from which they are imported.

Sources: org.apache.kafka.clients.consumer.ConsumerPartitionAssignor (getAssignorInstances);
org.apache.kafka.clients.consumer.internals.ConsumerCoordinator (its constructor,
validateCooperativeAssignment).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from spark_kafka_sink.config.plug_ins import PlugIns, check_signature
from spark_kafka_sink.config.plugin_reference import PluginReference
from spark_kafka_sink.consumer.assignors.cooperative_sticky_assignor import (
    CooperativeStickyAssignor,
    changing_owners,
)
from spark_kafka_sink.consumer.assignors.partition_assignor import RebalanceProtocol
from spark_kafka_sink.consumer.assignors.range_assignor import RangeAssignor
from spark_kafka_sink.consumer.assignors.round_robin_assignor import RoundRobinAssignor
from spark_kafka_sink.consumer.assignors.sticky_assignor import StickyAssignor
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_kafka_sink.consumer.assignors.abstract_partition_assignor import (
        AbstractPartitionAssignor,
    )
    from spark_kafka_sink.consumer.assignors.partition_assignor import (
        ConsumerPartitionAssignor,
        GroupAssignment,
        GroupSubscription,
    )

_SETTING: Final = "partition.assignment.strategy"
_JAVA_PACKAGE: Final = "org.apache.kafka.clients.consumer"
_BUILT_IN: Final[tuple[type[AbstractPartitionAssignor], ...]] = (
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    CooperativeStickyAssignor,
)
_BY_NAME: Final[Mapping[str, type[AbstractPartitionAssignor]]] = {
    **{assignor.name: assignor for assignor in _BUILT_IN},
    **{f"{_JAVA_PACKAGE}.{assignor.__name__}": assignor for assignor in _BUILT_IN},
}
#: The attributes of an assignor.
_VALUES: Final = ("name", "version", "supported_protocols")
#: And its methods, with the parameters that they are called with.
_METHODS: Final = {
    "subscription_user_data": "(topics)",
    "assign": "(cluster, group_subscription)",
    "on_assignment": "(assignment, metadata)",
}


def assignor_instances(
    strategies: Iterable[str | PluginReference | ConsumerPartitionAssignor],
    plug_ins: PlugIns | None = None,
) -> tuple[ConsumerPartitionAssignor, ...]:
    """Return new built-in assignors by name, and given ones as they are, in the same order.

    The plug-ins of a configuration are created, configured and later closed by `plug_ins`. Raises
    ConfigError for an unknown name, for an object that is not an assignor, and if two assignors
    have the same name.
    """
    assignors: dict[str, ConsumerPartitionAssignor] = {}
    for strategy in strategies:
        if isinstance(strategy, PluginReference):
            assignor = _of_plugin(strategy, plug_ins or PlugIns())
        else:
            assignor = _new(strategy.strip()) if isinstance(strategy, str) else strategy
        if assignor.name in assignors:
            raise ConfigError(
                f"{_SETTING} has the assignor {assignor.name!r} twice; name each only once"
            )
        assignors[assignor.name] = assignor
    return tuple(assignors.values())


def _new(name: str) -> AbstractPartitionAssignor:
    if name not in _BY_NAME:
        known = ", ".join(assignor.name for assignor in _BUILT_IN)
        raise ConfigError(
            f"{_SETTING}: there is no assignor {name!r}; use {known}, or names of Java's classes, "
            f"such as {_JAVA_PACKAGE}.{RangeAssignor.__name__}"
        )
    return _BY_NAME[name]()


def _of_plugin(reference: PluginReference, plug_ins: PlugIns) -> ConsumerPartitionAssignor:
    if reference.built_in is not None:
        return _new(reference.built_in)
    loaded = plug_ins.load(reference, _SETTING)
    missing = [name for name in _VALUES if not hasattr(loaded, name)]
    missing += [f"{name}()" for name in _METHODS if not callable(getattr(loaded, name, None))]
    if missing:
        raise ConfigError(
            f"{_SETTING}: {reference} is not an assignor: it does not have {', '.join(missing)}. "
            "Derive its class from ConsumerPartitionAssignor"
        )
    name: object = cast("ConsumerPartitionAssignor", loaded).name
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{_SETTING}: the name of {reference} must be a text, not {name!r}")
    for method, parameters in _METHODS.items():
        check_signature(getattr(loaded, method), parameters, f"{_SETTING}: {method} of {reference}")
    return cast("ConsumerPartitionAssignor", loaded)


def rebalance_protocol(assignors: Sequence[ConsumerPartitionAssignor]) -> RebalanceProtocol:
    """Return the highest protocol that all assignors support; raises ConfigError if none is."""
    common = set(RebalanceProtocol)
    for assignor in assignors:
        common.intersection_update(assignor.supported_protocols)
    if not assignors or not common:
        names = ", ".join(assignor.name for assignor in assignors)
        raise ConfigError(
            f"{_SETTING}: the assignors {names} have no rebalance protocol in common; use only "
            "eager or only cooperative ones"
            if assignors
            else f"{_SETTING} is empty; name at least one assignor"
        )
    return max(common)


def check_cooperative_assignment(subscribed: GroupSubscription, assigned: GroupAssignment) -> None:
    """Raise ValueError if an assignment moves partitions that a member has not given up.

    The leader checks the assignments of other cooperative assignors. That of
    `CooperativeStickyAssignor` is right by design, and may move what a member claims from an old
    generation.
    """
    partitions = {
        member: list(assignment.partitions) for member, assignment in assigned.assignments.items()
    }
    changing = changing_owners(subscribed.subscriptions, partitions)
    if changing:
        shown = ", ".join(str(topic_partition) for topic_partition in sorted(changing)[:3])
        raise ValueError(
            f"a cooperative assignor gives {len(changing)} partitions to members before their "
            f"owners have given them up, such as {shown}"
        )
