"""Helpers shared by the tests of groups in the embedded broker."""

from __future__ import annotations

from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.devbroker.broker_requests import broker_with
from tests.support.devbroker.group_client import (
    GroupClient,
)

OK = ErrorCode.NONE
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
ILLEGAL = ErrorCode.ILLEGAL_GENERATION


def client_of(**settings):
    return GroupClient(broker_with({"t": 2}, **settings))


def alone(client, **fields):
    """Create a stable group with one member; return the member's id."""
    answer = client.join(**fields)
    assert (OK, 1) == (answer.error_code, answer.generation_id)
    member_id = answer.member_id
    instance_id = {"instance_id": fields["instance_id"]} if "instance_id" in fields else {}
    protocol = ("consumer", fields.get("protocols", ("range",))[0])
    client.sync(member_id, 1, {member_id: b"all"}, protocol=protocol, **instance_id)
    assert "Stable" == client.state()
    return member_id
