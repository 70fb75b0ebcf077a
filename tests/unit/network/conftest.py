"""Fixtures that the tests of connections share."""

from __future__ import annotations

import pytest

from spark_kafka_sink.model import Node
from tests.support.security.secure_front import SecureFront
from tests.support.security.token_endpoint import TokenEndpoint


@pytest.fixture
def front(broker):
    """Return a listener without TLS and SASL, to which they can be added."""
    with SecureFront(broker.bootstrap_servers) as listening:
        yield listening


@pytest.fixture
def endpoint():
    """Return a token endpoint without TLS, which is allowed on this machine only."""
    with TokenEndpoint() as serving:
        yield serving


@pytest.fixture
def unreachable_node(unused_port):
    """Return a node with an address where nothing listens."""
    return Node(5, "127.0.0.1", unused_port)
