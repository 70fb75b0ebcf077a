"""Requests of the public admin client about many groups, sent together to coordinators."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink import AdminClient, AdminError, KafkaTimeoutError, TopicPartition
from spark_kafka_sink.admin.cluster_calls import ClusterCalls
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AlterResponse, AnswerError, CloseConnection
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_groups import DescribeGroupsResponse
from tests.support.admin.late_calls import end_at_back_off
from tests.support.devbroker.older_broker import cap_version

FIRST = TopicPartition("data", 0)
BAD = "bad"
NAMES = [BAD, *(f"g{number}" for number in range(204))]


@pytest.fixture
def groups(broker):
    """Create the groups, which a client of their coordinators need not have looked up."""
    broker.call(lambda one: [one.cluster.groups.create(name) for name in NAMES])


def watch(broker, api_key, names_of):
    """Return the list of the numbers of names in each request of an API."""
    sizes = []

    def decide(request, _):
        sizes.append(len(names_of(request)))

    broker.on(api_key, decide)
    return sizes


def refusing(code, *, several=(BAD,)):
    """Return a fault that makes FindCoordinator fail for one group, or in lists for `several`."""

    def alter(response):
        refused = several if len(response.coordinators) > 1 else (BAD,)
        return replace(
            response,
            coordinators=tuple(
                replace(it, error_code=code, node_id=-1, host="", port=-1)
                if it.key in refused
                else it
                for it in response.coordinators
            ),
        )

    return AlterResponse(alter)


def note_described(monkeypatch):
    """Return the set of the groups whose descriptions have arrived."""
    described = set()
    send = ClusterCalls._send

    async def note(calls, connection, call, deadline):
        response = await send(calls, connection, call, deadline)
        if isinstance(response, DescribeGroupsResponse):
            described.update(group.group_id for group in response.groups)
        return response

    monkeypatch.setattr(ClusterCalls, "_send", note)
    return described


def names_of(errors):
    return {item: error.name for item, error in errors.items()}


@pytest.mark.usefixtures("groups")
def test_groups_are_described_and_deleted_in_few_requests(broker, admin):
    """One request finds all coordinators; then a hundred groups go together."""
    found = watch(broker, ApiKey.FIND_COORDINATOR, lambda request: request.coordinator_keys)
    new = watch(broker, ApiKey.CONSUMER_GROUP_DESCRIBE, lambda request: request.group_ids)
    classic = watch(broker, ApiKey.DESCRIBE_GROUPS, lambda request: request.groups)
    deleted = watch(broker, ApiKey.DELETE_GROUPS, lambda request: request.groups_names)

    described = admin.describe_consumer_groups(NAMES)
    admin.delete_consumer_groups(NAMES)

    assert NAMES == list(described)
    assert NAMES == [it.group_id for it in described.values()]
    assert [[205], *[[5, 100, 100]] * 3] == [
        found,
        *(sorted(sizes) for sizes in (new, classic, deleted)),
    ]
    assert [] == admin.list_consumer_groups()


@pytest.mark.usefixtures("groups")
def test_known_coordinators_are_not_looked_up_again(broker, admin):
    """A group that is new to the client is looked up alone."""
    admin.describe_consumer_groups(NAMES[1:])
    found = watch(broker, ApiKey.FIND_COORDINATOR, lambda request: request.coordinator_keys)

    admin.describe_consumer_groups(NAMES)

    assert [1] == found


def test_groups_of_several_coordinators_are_separated():
    """Each broker is asked about its own groups."""
    with DevBroker(brokers=3, topics={"data": 1}) as broker:
        asked = {}

        def decide(request, context):
            asked.setdefault(context.node_id, []).extend(request.groups)

        broker.on(ApiKey.DESCRIBE_GROUPS, decide)
        with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            for name in NAMES:
                admin.alter_consumer_group_offsets(name, {FIRST: 0})
            described = admin.describe_consumer_groups(NAMES)

    assert set(NAMES) == described.keys()
    assert 3 == len(asked)
    for node_id, names in asked.items():
        assert {node_id} == {described[name].coordinator.node_id for name in names}
    assert len(NAMES) == sum(map(len, asked.values()))


@pytest.mark.usefixtures("groups")
def test_a_group_that_is_refused_does_not_affect_the_others(broker, admin):
    """Neither its coordinator nor its description is known, but those of all others are."""
    broker.on(ApiKey.FIND_COORDINATOR, refusing(ErrorCode.GROUP_AUTHORIZATION_FAILED))

    with pytest.raises(AdminError) as caught:
        admin.describe_consumer_groups([*NAMES, "missing"])

    assert {BAD: "GROUP_AUTHORIZATION_FAILED", "missing": "GROUP_ID_NOT_FOUND"} == names_of(
        caught.value.errors
    )
    assert NAMES[1:] == list(caught.value.results)


@pytest.mark.usefixtures("groups")
def test_results_are_in_the_order_of_the_groups(broker, admin):
    """A group whose coordinator was found later than those of others keeps its place."""
    broker.on(ApiKey.FIND_COORDINATOR, refusing(ErrorCode.COORDINATOR_NOT_AVAILABLE), times=1)

    assert ["g1", BAD, "g0"] == list(admin.describe_consumer_groups(["g1", BAD, "g0"]))


@pytest.mark.parametrize("several", [(BAD,), (BAD, "g0"), (BAD, "g0", "g1")], ids=len)
@pytest.mark.usefixtures("groups")
def test_a_group_without_a_coordinator_does_not_use_up_the_time_of_others(
    broker, admin, several, monkeypatch
):
    """Others are described, however they are looked up, and that group's error is a timeout."""
    described = note_described(monkeypatch)
    end_at_back_off(monkeypatch, lambda: {"g0", "g1"} <= described)
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.on(ApiKey.FIND_COORDINATOR, refusing(code, several=several))

    with pytest.raises(AdminError) as caught:
        admin.describe_consumer_groups(["g1", BAD, "g0"])

    assert [BAD] == list(caught.value.errors)
    assert isinstance(caught.value.errors[BAD], KafkaTimeoutError)
    assert ["g1", "g0"] == list(caught.value.results)


@pytest.mark.parametrize(
    "fault", [AnswerError(ErrorCode.NOT_COORDINATOR), CloseConnection()], ids=str
)
@pytest.mark.parametrize("api_key", [ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.DESCRIBE_GROUPS])
@pytest.mark.usefixtures("groups")
def test_coordinators_that_have_moved_are_looked_up_again(broker, admin, api_key, fault):
    """The groups of a request that failed are sent again, together."""
    found = watch(broker, ApiKey.FIND_COORDINATOR, lambda request: request.coordinator_keys)
    broker.on(api_key, fault, times=1)

    assert set(NAMES) == admin.describe_consumer_groups(NAMES).keys()
    first, *later = found
    assert 205 == first
    assert 1 <= len(later) <= 4


@pytest.mark.usefixtures("groups")
def test_older_brokers_are_asked_for_one_coordinator_at_a_time(broker, settings):
    """Before version 4 a request has one key; without KIP-848 all groups are classic ones."""
    cap_version(broker, ApiKey.FIND_COORDINATOR, 3, hidden=(ApiKey.CONSUMER_GROUP_DESCRIBE,))
    described_anew = watch(
        broker, ApiKey.CONSUMER_GROUP_DESCRIBE, lambda request: request.group_ids
    )
    versions = []
    broker.on(
        ApiKey.FIND_COORDINATOR,
        lambda _, context: versions.append(context.header.request_api_version),
    )

    with AdminClient(settings) as admin:
        described = admin.describe_consumer_groups(NAMES[:3])
        admin.delete_consumer_groups(NAMES[:3])

    assert NAMES[:3] == list(described)
    assert [3] * 3 == versions
    assert [] == described_anew


@pytest.mark.usefixtures("groups")
def test_a_coordinator_of_another_key_is_ignored(broker, admin):
    """A broker that answers about other groups is asked about each one."""

    def alter(response):
        return replace(
            response, coordinators=tuple(replace(it, key="x") for it in response.coordinators)
        )

    broker.on(ApiKey.FIND_COORDINATOR, AlterResponse(alter), times=1)

    assert ["g1", "g2"] == list(admin.describe_consumer_groups(["g1", "g2"]))
