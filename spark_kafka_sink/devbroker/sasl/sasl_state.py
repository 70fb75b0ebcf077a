"""The states of a connection's authentication (SaslServerAuthenticator's SaslState).

`EXPECTED` has the requests that each state accepts; any other request fails the authentication.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping


class SaslState(StrEnum):
    """An authentication state, under Kafka's name."""

    INITIAL_REQUEST = "INITIAL_REQUEST"
    HANDSHAKE_OR_VERSIONS_REQUEST = "HANDSHAKE_OR_VERSIONS_REQUEST"
    HANDSHAKE_REQUEST = "HANDSHAKE_REQUEST"
    AUTHENTICATE = "AUTHENTICATE"
    COMPLETE = "COMPLETE"
    REAUTH_PROCESS_HANDSHAKE = "REAUTH_PROCESS_HANDSHAKE"
    REAUTH_BAD_MECHANISM = "REAUTH_BAD_MECHANISM"
    FAILED = "FAILED"


#: The states that may follow each state.
TRANSITIONS: Final[Mapping[SaslState, frozenset[SaslState]]] = MappingProxyType(
    {
        SaslState.INITIAL_REQUEST: frozenset(
            {SaslState.HANDSHAKE_OR_VERSIONS_REQUEST, SaslState.FAILED}
        ),
        SaslState.HANDSHAKE_OR_VERSIONS_REQUEST: frozenset(
            {SaslState.HANDSHAKE_REQUEST, SaslState.AUTHENTICATE, SaslState.FAILED}
        ),
        SaslState.HANDSHAKE_REQUEST: frozenset({SaslState.AUTHENTICATE, SaslState.FAILED}),
        SaslState.AUTHENTICATE: frozenset({SaslState.COMPLETE, SaslState.FAILED}),
        SaslState.COMPLETE: frozenset({SaslState.REAUTH_PROCESS_HANDSHAKE}),
        SaslState.REAUTH_PROCESS_HANDSHAKE: frozenset(
            {SaslState.AUTHENTICATE, SaslState.REAUTH_BAD_MECHANISM, SaslState.FAILED}
        ),
        SaslState.REAUTH_BAD_MECHANISM: frozenset({SaslState.FAILED}),
        SaslState.FAILED: frozenset(),
    }
)

_FIRST: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE})

#: The requests that each state accepts. After a SaslHandshake of version 0, the client's messages
#: come without any header instead of in SaslAuthenticate requests.
EXPECTED: Final[Mapping[SaslState, frozenset[ApiKey]]] = MappingProxyType(
    {
        SaslState.INITIAL_REQUEST: _FIRST,
        SaslState.HANDSHAKE_OR_VERSIONS_REQUEST: _FIRST,
        SaslState.HANDSHAKE_REQUEST: frozenset({ApiKey.SASL_HANDSHAKE}),
        SaslState.AUTHENTICATE: frozenset({ApiKey.SASL_AUTHENTICATE}),
        SaslState.COMPLETE: frozenset(),
        SaslState.REAUTH_PROCESS_HANDSHAKE: frozenset({ApiKey.SASL_HANDSHAKE}),
        SaslState.REAUTH_BAD_MECHANISM: frozenset(),
        SaslState.FAILED: frozenset(),
    }
)
