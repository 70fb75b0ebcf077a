"""Asks a token endpoint for a token, over HTTPS: one POST, one answer, no redirects.

A redirect would take the client's secret to who knows where, so it is an answer without a token,
like any other. Blocking: for a thread of its own.
"""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from spark_kafka_sink.errors import AuthenticationError, NetworkError
from spark_kafka_sink.security.client_credentials import access_token, token_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.security.client_credentials import ClientCredentials

#: Where the settings say nothing; Java would wait for ever.
DEFAULT_TIMEOUT: Final = 10.0
#: No token comes near this.
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FetchTimeouts:
    """Seconds: for the connection, and for each silence of the endpoint."""

    connect: float = DEFAULT_TIMEOUT
    read: float = DEFAULT_TIMEOUT


def fetch_token(
    credentials: ClientCredentials,
    timeouts: FetchTimeouts,
    tls_context: Callable[[], ssl.SSLContext],
) -> str:
    """Get a token.

    Raises AuthenticationError where the endpoint refuses for good or is not whom it should be,
    NetworkError where it may answer otherwise later; neither shows the secret.
    """
    request = token_request(credentials)
    parts = urlsplit(credentials.url)
    host = parts.hostname or ""
    connection = (
        http.client.HTTPSConnection(
            host, parts.port, timeout=timeouts.connect, context=tls_context()
        )
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, parts.port, timeout=timeouts.connect)
    )
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    awaited = f"no connection within {timeouts.connect:g} s (sasl.login.connect.timeout.ms)"
    try:
        connection.connect()
        awaited = f"no answer within {timeouts.read:g} s (sasl.login.read.timeout.ms)"
        if connection.sock is not None:
            connection.sock.settimeout(timeouts.read)
        connection.request("POST", path, body=request.body, headers=dict(request.headers))
        response = connection.getresponse()
        status, body = response.status, response.read(_MOST_BYTES)
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationError(
            f"the token endpoint {credentials.endpoint} has a certificate that is not trusted "
            f"here, or is for another host ({error.verify_message}): the options "
            "ssl.truststore.* of the login module in sasl.jaas.config say whom to trust"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            reason = awaited
        # What is no HTTP is quoted by the library.
        raise NetworkError(
            f"the token endpoint {credentials.endpoint} cannot be asked: "
            f"{credentials.quoted(reason)}"
        ) from None
    finally:
        connection.close()
    return access_token(credentials, status, body)
