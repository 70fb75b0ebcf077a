"""An admin client of an embedded broker, and what the tests of both clients share."""

from __future__ import annotations

import pytest

from spark_kafka_sink import AdminClient
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError

#: Longer than the timeout of any call here, in seconds.
LONG = 3600.0


@pytest.fixture
def broker():
    with DevBroker(topics={"data": 2, "more": 1}, auto_create_topics=False) as started:
        yield started


@pytest.fixture
def settings(broker):
    return {"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 10}


@pytest.fixture
def admin(settings):
    with AdminClient(settings) as client:
        yield client


@pytest.fixture
def refuse_until_timeout():
    """Return a function that makes a broker refuse the requests of a client until these time out.

    No real time passes, so the client has read the broker's error however busy the machine is.
    """

    def refuse(broker, admin, api_key, code):
        loop = admin._thread._runner.get_loop()
        real_time, passed = loop.time, 0.0
        loop.time = lambda: real_time() + passed

        def answer(_, context):
            nonlocal passed
            # The second request shows that the response to the first was read.
            if context.number > 1:
                passed = LONG
            return AnswerError(code)

        broker.on(api_key, answer, expect=True)

    return refuse
