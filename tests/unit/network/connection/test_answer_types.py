from __future__ import annotations

import subprocess
import sys

import pytest

ANSWERS = """
from asyncio import Future

from spark_kafka_sink.network.connection.broker_connection import BrokerConnection
from spark_kafka_sink.protocol.messages.end_txn import EndTxnResponse
from spark_kafka_sink.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

def own(connection: BrokerConnection, request: HeartbeatRequest) -> Future[HeartbeatResponse]:
    return connection.send(request)

def other(connection: BrokerConnection, request: HeartbeatRequest) -> Future[EndTxnResponse]:
    return connection.send(request)
"""


@pytest.mark.slow
def test_type_checkers_reject_the_answer_of_another_request():
    """An answer has the type that its request names, and no other."""
    done = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "-c", ANSWERS],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    [error] = [line for line in done.stdout.splitlines() if line.startswith("<string>")]
    assert '"HeartbeatRequest"; expected "ApiRequest[EndTxnResponse]"' in error
