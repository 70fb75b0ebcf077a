"""Elections of leaders and reassignments that one broker alone is asked for.

Those of several brokers are the controller's: see `controller/test_partitions`.
"""

from __future__ import annotations

import pytest

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.elect_leaders import PREFERRED, UNCLEAN
from tests.support.devbroker.admin_requests import elect_leaders, list_reassignments, reassign
from tests.support.devbroker.broker_requests import ask, broker_with

OK = ErrorCode.NONE
MISSING = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NOT_NEEDED = ErrorCode.ELECTION_NOT_NEEDED
BAD = ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.fixture
def broker():
    return broker_with({"t": 2})


def elected(broker, topics, election_type):
    """Request elections, and return the code of each partition."""
    response = ask(broker, elect_leaders(topics, election_type))
    assert OK == response.error_code
    return {
        (topic.topic, partition.partition_id): partition.error_code
        for topic in response.replica_election_results
        for partition in topic.partition_result
    }


@pytest.mark.parametrize("election_type", [PREFERRED, UNCLEAN])
def test_one_broker_leads_already(broker, election_type):
    """Only partitions that exist, also of internal topics, need no election."""
    internal = "__consumer_offsets"
    expected = {
        ("t", 0): NOT_NEEDED,
        ("t", 7): MISSING,
        ("no", 0): MISSING,
        (internal, 49): NOT_NEEDED,
        (internal, 50): MISSING,
    }
    topics = {"t": [0, 7], "no": [0], internal: [49, 50]}
    assert expected == elected(broker, topics, election_type)
    assert {} == elected(broker, None, election_type)


@pytest.mark.parametrize("version", [1, 2])
def test_another_type_of_election_is_refused(broker, version):
    """An unknown type is the error of the request and of each partition."""
    response = ask(broker, elect_leaders({"t": [0]}, 5), version)

    [topic] = response.replica_election_results
    assert [ErrorCode.INVALID_REQUEST] * 2 == [
        response.error_code,
        topic.partition_result[0].error_code,
    ]


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (("t", 0, [1]), OK),
        (("t", 0, None), ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (("no", 0, [1]), MISSING),
        (("t", 7, [1]), MISSING),
        (("t", -1, [1]), MISSING),
        (("t", 0, []), BAD),
        (("t", 0, [1, 1]), BAD),
        (("t", 0, [1, 77]), BAD),
    ],
)
def test_partitions_stay_on_the_only_broker(broker, partition, expected):
    """Each partition of a request has a result of its own, and none is ever moving."""
    response = ask(broker, reassign(partition, ("t", 1, [1])))
    codes = [p.error_code for topic in response.responses for p in topic.partitions]

    assert [expected, OK] == codes
    assert () == ask(broker, list_reassignments(None)).topics
