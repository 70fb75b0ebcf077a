"""Requests that are made concurrently, and how they end."""

from __future__ import annotations

import asyncio

import pytest

from spark_kafka_sink.admin.cluster_calls import outcomes_of
from spark_kafka_sink.errors import NetworkError

#: More rounds of the loop than an error takes to reach its caller.
ROUNDS = 20


def test_each_request_has_its_result_or_its_error():
    """An error of Kafka is the outcome of its own request, in the order of the requests."""
    lost = NetworkError("lost")

    async def succeed():
        return "answer"

    async def fail():
        raise lost

    async def run():
        return await outcomes_of([fail(), succeed()])

    assert [lost, "answer"] == asyncio.run(run())


def test_another_error_is_raised_when_all_requests_have_ended():
    """No request goes on after the error that another one has caused."""
    ended = []

    async def fail():
        ended.append("failed")
        raise LookupError("a mistake")

    async def last():
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        ended.append("last")

    async def run():
        with pytest.raises(LookupError, match="a mistake"):
            await outcomes_of([fail(), last()])
        return list(ended)

    assert ["failed", "last"] == asyncio.run(run())
