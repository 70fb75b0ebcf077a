"""DescribeUserScramCredentials: the mechanisms of users that log in with SCRAM (KIP-554)."""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class UserName:
    """A user to describe."""

    name: str = field(STRING)


@message
class DescribeUserScramCredentialsRequest(ApiRequest["DescribeUserScramCredentialsResponse"]):
    """A request to any broker; null or no users stand for all."""

    api_key = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    versions = VersionRange(0, 0)

    users: tuple[UserName, ...] | None = field(array(UserName), nullable="0+")


@message
class CredentialInfo:
    """What is known of a credential; neither the password nor the keys are."""

    #: 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512.
    mechanism: int = field(INT8)
    iterations: int = field(INT32)


@message
class DescribeUserScramCredentialsResult:
    """The result for one user."""

    user: str = field(STRING)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    credential_infos: tuple[CredentialInfo, ...] = field(array(CredentialInfo))


@message
class DescribeUserScramCredentialsResponse(
    ApiResponse, request=DescribeUserScramCredentialsRequest
):
    """A response with one result per user."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    results: tuple[DescribeUserScramCredentialsResult, ...] = field(
        array(DescribeUserScramCredentialsResult)
    )
