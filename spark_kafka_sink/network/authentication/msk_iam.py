"""Tokens for Amazon MSK with IAM, made by Amazon's own signer (extra `msk-iam`).

The signer presigns a request with the AWS credentials of this process, and the cluster accepts that
as an OAUTHBEARER token. The options of Java's IAMLoginModule select the credentials; without
options, the AWS libraries find them in their usual places. The calls block, since credentials may
have to be fetched.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import AuthenticationError, ConfigError, NetworkError
from spark_kafka_sink.security.oauth_bearer import OAuthBearerToken

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.security.login import MskIamToken

_SIGNER: Final = "aws_msk_iam_sasl_signer"
#: An MSK broker's host name, provisioned or serverless, which contains the region.
_HOST: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_MILLISECONDS: Final = 1000


def msk_iam_source(source: MskIamToken, hosts: Sequence[str]) -> Callable[[], OAuthBearerToken]:
    """Return the function that signs a token; ConfigError if the signer is not installed."""
    if find_spec(_SIGNER) is None:
        raise ConfigError(
            "sasl.mechanism AWS_MSK_IAM, or msk_iam as sasl.login.callback.handler.class, requires "
            "Amazon's signer: pip install 'spark-kafka-sink[msk-iam]', for the driver and for tasks"
        )
    return lambda: _sign(source, msk_region(source, hosts))


def msk_region(source: MskIamToken, hosts: Sequence[str]) -> str:
    """Return the cluster's region: as configured, from a broker's name, or from the environment.

    Raises ConfigError if none of these has it.
    """
    found = (_HOST.search(host.lower()) for host in hosts)
    named = source.region or next((match[1] for match in found if match), None)
    region = named or next(filter(None, map(os.environ.get, _REGION_VARIABLES)), None)
    if region is None:
        raise ConfigError(
            "the AWS region of the cluster is unknown: bootstrap.servers has no host names of "
            "Amazon MSK; set awsRegion in sasl.jaas.config, or the environment variable AWS_REGION"
        )
    return region


def _sign(source: MskIamToken, region: str) -> OAuthBearerToken:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415 -- optional, and slow
    from botocore.exceptions import HTTPClientError  # noqa: PLC0415 -- comes with it

    try:
        if source.role_arn is not None:
            signed = MSKAuthTokenProvider.generate_auth_token_from_role_arn(
                region, source.role_arn, source.session_name
            )
        elif source.profile is not None:
            signed = MSKAuthTokenProvider.generate_auth_token_from_profile(region, source.profile)
        else:
            signed = MSKAuthTokenProvider.generate_auth_token(region)
    except HTTPClientError as error:
        raise NetworkError(
            f"{source} (AWS_MSK_IAM) could not be requested: {type(error).__name__}"
        ) from error
    except Exception as error:
        # The AWS libraries raise many kinds of errors, none of which is transient.
        raise AuthenticationError(
            f"{source} (AWS_MSK_IAM) cannot be used: {type(error).__name__}. Check where this "
            "process (driver or task) finds its AWS credentials"
        ) from error
    value, expires_at_ms = signed
    return OAuthBearerToken(
        value=value, subject=str(source), expires_at=expires_at_ms / _MILLISECONDS
    )
