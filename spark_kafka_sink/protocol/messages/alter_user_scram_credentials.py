"""AlterUserScramCredentials: creates, changes and deletes users of SCRAM (KIP-554).

The password is salted and hashed by the client, and is not in the request.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class ScramCredentialDeletion:
    """A credential to delete."""

    name: str = field(STRING)
    #: 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512.
    mechanism: int = field(INT8)


@message
class ScramCredentialUpsertion:
    """A credential to create or replace."""

    name: str = field(STRING)
    #: 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512.
    mechanism: int = field(INT8)
    iterations: int = field(INT32)
    salt: bytes = field(BYTES)
    #: The result of PBKDF2 with the salt and the iterations: as good as the password.
    salted_password: bytes = field(BYTES)


@message
class AlterUserScramCredentialsRequest(ApiRequest["AlterUserScramCredentialsResponse"]):
    """A request for the controller, which any broker forwards."""

    api_key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    versions = VersionRange(0, 0)

    deletions: tuple[ScramCredentialDeletion, ...] = field(array(ScramCredentialDeletion))
    upsertions: tuple[ScramCredentialUpsertion, ...] = field(array(ScramCredentialUpsertion))


@message
class AlterUserScramCredentialsResult:
    """The result for one user."""

    user: str = field(STRING)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)


@message
class AlterUserScramCredentialsResponse(ApiResponse, request=AlterUserScramCredentialsRequest):
    """A response with one result per user."""

    throttle_time_ms: int = field(INT32, default=0)
    results: tuple[AlterUserScramCredentialsResult, ...] = field(
        array(AlterUserScramCredentialsResult)
    )
