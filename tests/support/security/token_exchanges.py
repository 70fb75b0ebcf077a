"""How a connection gets the token that it presents, and the errors if it gets none."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.authentication.connection_security import ConnectionSecurity
from tests.support.security.certificates import STORE_PASSWORD
from tests.support.security.secured import jaas

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.security.certificates import Authority
    from tests.support.security.token_endpoint import TokenEndpoint

NODE = Node(1, "localhost", 9)
BEARER = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
HANDLER = "sasl.login.callback.handler.class"
URL = "sasl.oauthbearer.token.endpoint.url"
CREDENTIALS = {
    "sasl.oauthbearer.client.credentials.client.id": "an id",
    "sasl.oauthbearer.client.credentials.client.secret": "planted&secret",
}
#: Fail after the first attempt to reach a token endpoint.
IMPATIENT = {"sasl.login.retry.backoff.max.ms": 0}


def configured(*parts: Mapping[str, Any], **others: Any) -> ProducerConfig:
    """Return the settings of a producer: the parts, and others with underscores for dots."""
    named = {name.replace("_", "."): value for name, value in others.items()}
    merged = {name: value for part in parts for name, value in part.items()}
    return ProducerConfig.from_mapping(
        {"bootstrap.servers": "localhost:9", **BEARER, **merged, **named}
    )


def shown(*parts: Mapping[str, Any], times: int = 1, **others: Any) -> list[str]:
    """Begin exchanges as connections do, and return the first message of each."""

    async def run() -> list[str]:
        security = ConnectionSecurity(configured(*parts, **others).security, time.time)
        try:
            assert security.sasl_client is not None
            clients = [await security.sasl_client(NODE) for _ in range(times)]
        finally:
            await security.close()
        return [client.initial_response().decode() for client in clients]

    return asyncio.run(run())


def refusal(kind: type[Exception], *parts: Mapping[str, Any], **others: Any) -> str:
    """Return the error of an exchange that cannot begin, which must contain no planted secret."""
    with pytest.raises(kind) as caught:
        shown(*parts, **others)
    assert "planted" not in str(caught.value)
    return str(caught.value)


def shown_url(endpoint: TokenEndpoint) -> str:
    """Return the part of an endpoint's URL that errors contain."""
    return endpoint.url.removesuffix("/token?a=b")


def trusting(authority: Authority) -> dict[str, str]:
    """Return settings that trust an authority for the endpoint, as Java's login module does."""
    options = {
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(authority.pkcs12_file),
        "ssl.truststore.password": STORE_PASSWORD,
    }
    return {"sasl.jaas.config": jaas("OAUTHBEARER", **options)}
