"""The setting partition.assignment.strategy."""

from __future__ import annotations

import re

import pytest

from spark_kafka_sink.config.consumer_config import KafkaConsumerConfig
from spark_kafka_sink.config.plug_ins import PlugIns
from spark_kafka_sink.config.plugin_reference import ASSIGNORS
from spark_kafka_sink.consumer.assignors.assignment_strategies import (
    assignor_instances,
    check_cooperative_assignment,
    rebalance_protocol,
)
from spark_kafka_sink.consumer.assignors.cooperative_sticky_assignor import (
    CooperativeStickyAssignor,
)
from spark_kafka_sink.consumer.assignors.partition_assignor import (
    Assignment,
    Cluster,
    ConsumerPartitionAssignor,
    GroupAssignment,
    GroupSubscription,
    RebalanceProtocol,
    Subscription,
)
from spark_kafka_sink.consumer.assignors.range_assignor import RangeAssignor
from spark_kafka_sink.consumer.assignors.round_robin_assignor import RoundRobinAssignor
from spark_kafka_sink.consumer.assignors.sticky_assignor import StickyAssignor
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import ConsumerGroupMetadata, TopicPartition

BUILT_IN = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


class OneForAll:
    """An assignor of a user that only works with the cooperative protocol."""

    name = "one-for-all"
    version = 7
    supported_protocols = (RebalanceProtocol.COOPERATIVE,)


@pytest.mark.parametrize(("name", "expected"), BUILT_IN.items())
def test_an_assignor_has_two_names(name, expected):
    """A built-in assignor is found by the name in JoinGroup and by Java's class name."""
    java_name = f"org.apache.kafka.clients.consumer.{expected.__name__}"
    for given in (name, java_name, f" {java_name} "):
        [found] = assignor_instances([given])
        assert expected is type(found)
        assert (name, 0) == (found.name, found.version)


def test_assignors_keep_their_order():
    """The order of preference is that of the setting, and an object stays the same object."""
    own = OneForAll()
    found = assignor_instances(["sticky", own, "range"])
    assert ["sticky", "one-for-all", "range"] == [it.name for it in found]
    assert own is found[1]


def test_the_names_of_the_settings_are_those_of_the_assignors():
    """The settings accept exactly the names by which assignors are found."""
    assert list(BUILT_IN) == list(ASSIGNORS.names)
    assert set(BUILT_IN) == set(ASSIGNORS.aliases.values())
    for java_name, name in ASSIGNORS.aliases.items():
        [found] = assignor_instances([java_name])
        assert name == found.name


def test_the_assignors_of_a_configuration_are_created():
    """By default, these are the range and the cooperative sticky assignor, as in Java."""
    config = KafkaConsumerConfig.from_mapping({"bootstrap.servers": "a:1"})
    found = assignor_instances(config.partition_assignment_strategy)
    assert [RangeAssignor, CooperativeStickyAssignor] == [type(each) for each in found]


class Plugged(RangeAssignor):
    """An assignor that is configured and closed as all plug-ins are."""

    def __init__(self):
        super().__init__()
        self.life = []

    def configure(self, settings):
        """Record the group."""
        self.life.append(settings["group.id"])

    def close(self):
        """Record the end."""
        self.life.append("closed")


def test_an_assignor_of_a_user_is_configured_and_closed():
    """A class is instantiated, configured with the settings, and closed with the plug-ins."""
    plug_ins = PlugIns({"group.id": "billing"})
    [found] = assignor_instances([ASSIGNORS.read(Plugged)], plug_ins)
    plug_ins.close()
    assert isinstance(found, Plugged)
    assert ["billing", "closed"] == found.life


def test_an_imported_assignor_is_created():
    """An assignor can be named by the path from which it is imported."""
    path = f"{StickyAssignor.__module__}:StickyAssignor"
    [found] = assignor_instances([ASSIGNORS.read(path)])
    assert StickyAssignor is type(found)


@pytest.mark.parametrize(
    ("plug_in", "missing"),
    [
        (
            dict,
            (
                "name, version, supported_protocols, subscription_user_data(), assign(), "
                "on_assignment()"
            ),
        ),
        (OneForAll, "subscription_user_data(), assign(), on_assignment()"),
    ],
)
def test_an_object_that_is_not_an_assignor_is_refused(plug_in, missing):
    """The error names the setting, the class and what it does not have."""
    with pytest.raises(ConfigError) as caught:
        assignor_instances([ASSIGNORS.read(plug_in)])
    assert (
        f"partition.assignment.strategy: {plug_in.__module__}.{plug_in.__qualname__} is not an "
        f"assignor: it does not have {missing}. Derive its class from ConsumerPartitionAssignor"
        == str(caught.value)
    )


class OfTheOldest(ConsumerPartitionAssignor):
    """An assignor with no more than it needs."""

    name = "of-the-oldest"

    def assign(self, cluster, group_subscription):
        """Assign everything to the first member."""
        first, *others = group_subscription.subscriptions
        everything = Assignment(cluster.partitions_for_topic("a"))
        return GroupAssignment({first: everything} | dict.fromkeys(others, Assignment(())))


def test_an_assignor_of_a_user_needs_a_name_and_a_method():
    """All else has the default that it has in Java's interface."""
    [found] = assignor_instances([ASSIGNORS.read(OfTheOldest)])
    group = GroupSubscription(dict.fromkeys(("m", "n"), Subscription(topics=("a", "gone"))))
    assigned = found.assign(Cluster.without_racks({"a": 2}), group).assignments

    assert (0, (RebalanceProtocol.EAGER,)) == (found.version, found.supported_protocols)
    assert found.subscription_user_data(frozenset({"a"})) is None
    assert found.on_assignment(assigned["m"], ConsumerGroupMetadata("group", 1, "m")) is None
    assert (TopicPartition("a", 0), TopicPartition("a", 1)) == assigned["m"].partitions
    assert () == assigned["n"].partitions


def test_a_topic_that_does_not_exist_has_no_partitions():
    """An assignor that asks for them assigns none."""
    assert () == Cluster.without_racks({"a": 2}).partitions_for_topic("gone")


class WithoutName(OfTheOldest):
    """An assignor that was copied without its name."""

    name = ""


class WithOtherParameters(OfTheOldest):
    """An assignor that was written from memory."""

    def assign(self, subscriptions):
        """Implement something else."""


class Abstract(ConsumerPartitionAssignor):
    """An assignor without anything."""


@pytest.mark.parametrize(
    ("plug_in", "problem"),
    [
        (WithoutName, "the name of {} must be a text, not ''"),
        (
            WithOtherParameters,
            (
                "assign of {} takes (subscriptions), but is called with (cluster, "
                "group_subscription): give it these parameters, in this order"
            ),
        ),
        (Abstract, "{} could not be created without arguments: TypeError: "),
    ],
)
def test_a_mistake_in_an_assignor_is_reported_when_the_consumer_is_created(plug_in, problem):
    """The error names the setting, the class and the mistake, before the group is joined."""
    named = problem.format(f"{__name__}.{plug_in.__qualname__}")
    with pytest.raises(ConfigError, match=re.escape(f"partition.assignment.strategy: {named}")):
        assignor_instances([ASSIGNORS.read(plug_in)])


def test_what_a_member_gets_is_an_assignment():
    """The error is raised in the assignor, where the mistake is."""
    with pytest.raises(TypeError, match=re.escape("what member 'm' gets is an Assignment, not []")):
        GroupAssignment({"m": []})


def test_each_consumer_has_its_own_assignor():
    """An assignor remembers its member's assignment, so none is shared."""
    [first], [second] = assignor_instances(["sticky"]), assignor_instances(["sticky"])
    first.on_assignment(
        Assignment((TopicPartition("a", 1),)), ConsumerGroupMetadata("group", 1, "member")
    )
    assert first.subscription_user_data(frozenset()) is not None
    assert second.subscription_user_data(frozenset()) is None


def test_eager_assignors_without_memory_send_no_user_data():
    """Range and round robin send no user data, whatever was assigned before."""
    for assignor in assignor_instances(["range", "roundrobin"]):
        assignor.on_assignment(
            Assignment((TopicPartition("a", 1),)), ConsumerGroupMetadata("group", 1, "member")
        )
        assert assignor.subscription_user_data(frozenset({"a"})) is None


@pytest.mark.parametrize("name", ["Range", "org.apache.kafka.clients.consumer.range", ""])
def test_an_unknown_assignor_is_refused(name):
    """The error names the setting, the unknown assignor and those that exist."""
    with pytest.raises(ConfigError) as caught:
        assignor_instances([name])
    for part in ("partition.assignment.strategy", repr(name), *BUILT_IN):
        assert part in str(caught.value)


def test_an_assignor_is_named_only_once():
    """Two assignors with the same name are refused, also if they are named differently."""
    with pytest.raises(ConfigError, match="'range' twice"):
        assignor_instances(["range", "org.apache.kafka.clients.consumer.RangeAssignor"])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["range", "roundrobin"], RebalanceProtocol.EAGER),
        (["cooperative-sticky"], RebalanceProtocol.COOPERATIVE),
        # The default of Java's consumer, from which a group can move to the cooperative protocol.
        (["range", "cooperative-sticky"], RebalanceProtocol.EAGER),
    ],
)
def test_the_highest_common_protocol_is_used(names, expected):
    """A consumer uses the cooperative protocol if all its assignors support it."""
    assert expected is rebalance_protocol(assignor_instances(names))


@pytest.mark.parametrize(
    ("strategies", "expected"),
    [([], "is empty"), (["range", OneForAll()], "range, one-for-all have no rebalance protocol")],
)
def test_assignors_need_a_common_protocol(strategies, expected):
    """Without a protocol that all assignors support the setting is refused."""
    with pytest.raises(ConfigError, match=expected):
        rebalance_protocol(assignor_instances(strategies))


def cooperative(assigned):
    owned = {"m1": (TopicPartition("a", 0), TopicPartition("a", 1)), "m2": ()}
    check_cooperative_assignment(
        GroupSubscription(
            {
                member: Subscription(topics=("a",), owned_partitions=partitions)
                for member, partitions in owned.items()
            }
        ),
        GroupAssignment(
            {
                member: Assignment(tuple(TopicPartition("a", number) for number in numbers))
                for member, numbers in assigned.items()
            }
        ),
    )


def test_an_owned_partition_does_not_move_at_once():
    """A cooperative assignor that gives an owned partition to another member is wrong."""
    with pytest.raises(ValueError, match=r"gives 1 partitions .* such as a-1"):
        cooperative({"m1": [0], "m2": [1, 2]})


@pytest.mark.parametrize("assigned", [{"m1": [0], "m2": [2]}, {"m1": [0, 1], "m2": [2]}])
def test_a_withheld_partition_is_correct(assigned):
    """A cooperative assignor may take an owned partition away, or leave it."""
    cooperative(assigned)
