"""The committed offsets of groups as requests carry them; those of members are tested there."""

from __future__ import annotations

import pytest

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.codec import decode, encode_bytes
from spark_kafka_sink.protocol.group_offsets import offset_fetch_request, partitions_by_topic
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)


def test_partitions_are_grouped_in_their_order():
    """The topics are in the order of their first partitions."""
    partitions = [TopicPartition("u", 2), TopicPartition("t", 0), TopicPartition("u", 1)]
    assert [("u", [2, 1]), ("t", [0])] == list(partitions_by_topic(partitions).items())


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (2, OffsetFetchRequest(group_id="g", topics=None)),
        (7, OffsetFetchRequest(group_id="g", topics=None)),
        (8, OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=None),))),
        (10, OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=None),))),
    ],
)
def test_all_offsets_of_a_group_can_be_requested_from_outside(version, expected):
    """Without partitions, the list is null; without a member, none is named."""
    request = offset_fetch_request("g", None, version, require_stable=False)
    assert expected == decode(OffsetFetchRequest, encode_bytes(request, version), version)
