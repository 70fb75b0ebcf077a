"""Consumer groups and their offsets, in the public admin client."""

from __future__ import annotations

import pytest

from spark_kafka_sink import (
    AclOperation,
    AdminError,
    DecodeError,
    OffsetAndMetadata,
    TopicPartition,
)
from spark_kafka_sink.admin.requests.groups import assigned_partitions
from tests.support.admin.admin_errors import failed
from tests.support.spark.source_groups import joined_consumer

FIRST, SECOND = TopicPartition("data", 0), TopicPartition("data", 1)


def test_a_group_that_stores_offsets_is_listed_and_described(admin):
    """A group without members is empty and simple."""
    admin.alter_consumer_group_offsets("g", {FIRST: 1})

    [listed] = admin.list_consumer_groups()
    group = admin.describe_consumer_groups(["g"], include_authorized_operations=True)["g"]

    assert ("g", "Empty", True) == (listed.group_id, listed.state, listed.is_simple)
    assert ("Empty", (), True) == (group.state, group.members, group.is_simple)
    assert {AclOperation.READ, AclOperation.DELETE} <= group.authorized_operations
    assert [] == admin.list_consumer_groups(states=["Stable"])
    assert [listed] == admin.list_consumer_groups(states=["EMPTY"], types=["classic"])
    assert [] == admin.list_consumer_groups(types=["Consumer"])


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"states": ["Stable", "Bogus"]}, "states must be among Stable, .* but one is 'Bogus'"),
        ({"types": ["Share"]}, "types must be among Classic, Consumer, but one is 'Share'"),
    ],
)
def test_an_unknown_state_or_type_is_not_an_empty_list(admin, filters, message):
    """Brokers would ignore a mistyped filter, and list no groups."""
    with pytest.raises(ValueError, match=message):
        admin.list_consumer_groups(**filters)


def test_members_are_described_with_their_partitions(broker, admin):
    """A member has its client id, its host and the partitions that it reads."""
    with joined_consumer(broker.bootstrap_servers, "g", "data", client_id="reader"):
        group = admin.describe_consumer_groups(["g"])["g"]

    [member] = group.members
    assert ("Stable", "Classic", "range") == (group.state, group.type, group.partition_assignor)
    assert ("reader", (FIRST, SECOND)) == (member.client_id, member.assignment)
    assert "127.0.0.1" in member.host
    assert 1 == group.coordinator.node_id


def test_a_missing_group_does_not_affect_others(admin):
    """A group that does not exist is an error, for descriptions and deletions."""
    admin.alter_consumer_group_offsets("g", {FIRST: 1})
    for call in (admin.describe_consumer_groups, admin.delete_consumer_groups):
        with pytest.raises(AdminError) as caught:
            call(["g", "missing"])
        assert {"missing": "GROUP_ID_NOT_FOUND"} == failed(caught)
        assert {"g"} == caught.value.results.keys()

    assert [] == admin.list_consumer_groups()


def test_committed_offsets_are_read_as_they_were_set(admin):
    """Offsets, leader epochs and metadata come back; partitions without one are left out."""
    committed = OffsetAndMetadata(7, 0, "by hand")
    admin.alter_consumer_group_offsets("g", {FIRST: committed, TopicPartition("more", 0): 3})

    assert {FIRST: committed, TopicPartition("more", 0): OffsetAndMetadata(3)} == (
        admin.list_consumer_group_offsets("g")
    )
    assert {FIRST: committed} == (
        admin.list_consumer_group_offsets("g", [FIRST, SECOND], require_stable=True)
    )
    assert {} == admin.list_consumer_group_offsets("missing")


def test_offsets_of_a_group_with_members_are_not_changed(broker, admin):
    """Only members may commit while there are any, and the group cannot be deleted."""
    with joined_consumer(broker.bootstrap_servers, "g", "data"):
        with pytest.raises(AdminError) as caught:
            admin.alter_consumer_group_offsets("g", {FIRST: 1, SECOND: 1})
        assert dict.fromkeys([FIRST, SECOND], "UNKNOWN_MEMBER_ID") == failed(caught)
        with pytest.raises(AdminError) as caught:
            admin.delete_consumer_groups(["g"])
        assert {"g": "NON_EMPTY_GROUP"} == failed(caught)


def test_an_assignment_of_a_newer_version_is_read():
    """What all versions have in common is read, and what follows it is not."""
    encoded = bytes.fromhex("0003 00000001 0004 64617461 00000002 00000001 00000000 ffffffff 99")

    assert (FIRST, SECOND) == assigned_partitions(encoded)
    assert () == assigned_partitions(b"")


@pytest.mark.parametrize(
    "encoded",
    ["00", "ffff 00000000", "0000 ffffffff", "0000 7fffffff", "0000 00000001 0004 6461"],
)
def test_a_wrong_assignment_is_a_decode_error(encoded):
    """Whatever members of a group store, it is read or it is a DecodeError."""
    with pytest.raises(DecodeError):
        assigned_partitions(bytes.fromhex(encoded))
