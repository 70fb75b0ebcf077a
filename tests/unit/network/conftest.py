"""What the tests of connections share."""

from __future__ import annotations

import pytest

from tests.support.secure_front import SecureFront
from tests.support.token_endpoint import TokenEndpoint


@pytest.fixture
def front(broker):
    """Give a listener without TLS and SASL, to be given them."""
    with SecureFront(broker.bootstrap_servers) as listening:
        yield listening


@pytest.fixture
def endpoint():
    """Return a token endpoint without TLS, which is allowed on this machine only."""
    with TokenEndpoint() as serving:
        yield serving
