"""ApiVersions 0-5: lists the APIs that this broker supports, with their versions.

A request in an unsupported version gets a version 0 response with UNSUPPORTED_VERSION and the
range of ApiVersions only, so that the client can retry (KIP-511). From version 3 on, a client with
an invalid software name or version gets INVALID_REQUEST. From version 5 on, a client that means
another broker or cluster gets REBOOTSTRAP_REQUIRED (KIP-1242).

Like Kafka 4, the broker lists Produce from version 0 on although it does not serve versions 0 to
2: clients built on librdkafka read a missing version 0 as missing support for compression
(KAFKA-18659).

The finalized level of the feature transaction.version selects the transaction protocol that
clients use (KIP-890). Up to version 3, features with a minimum level of 0 are not listed as
supported (KIP-1022).
"""

from __future__ import annotations

import re

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import api_versions as wire
from spark_kafka_sink.protocol.registry import SUPPORTED, request_class

_SOFTWARE_NAME_OR_VERSION = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_VERSION_WITH_SOFTWARE_NAME = 3
_FIRST_VERSION_WITH_LEVEL_0 = 4
_TRANSACTION_VERSION = "transaction.version"
_LATEST_TRANSACTION_VERSION = 2
#: Features are finalized once, when the cluster is created.
_FEATURES_EPOCH = 0
#: The broker supports all that the package declares.
_API_KEYS = tuple(
    wire.ApiVersion(
        api_key=api_key,
        min_version=0 if api_key == ApiKey.PRODUCE else request_class(api_key).versions.min,
        max_version=request_class(api_key).versions.max,
    )
    for api_key in sorted(SUPPORTED)
)


@handles(wire.ApiVersionsRequest)
def api_versions(
    context: RequestContext, request: wire.ApiVersionsRequest
) -> wire.ApiVersionsResponse:
    """Return all APIs and features (ApiVersions 0-5)."""
    if context.version >= _FIRST_VERSION_WITH_SOFTWARE_NAME:
        for value in (request.client_software_name, request.client_software_version):
            if not _SOFTWARE_NAME_OR_VERSION.fullmatch(value):
                raise RefusedError(
                    ErrorCode.INVALID_REQUEST,
                    f"{value!r} is not a valid name or version of client software",
                )
    if request.cluster_id is not None and (
        (request.cluster_id, request.node_id) != (context.cluster.cluster_id, context.node_id)
    ):
        raise RefusedError(
            ErrorCode.REBOOTSTRAP_REQUIRED,
            f"this is node {context.node_id} of cluster {context.cluster.cluster_id!r}",
        )
    supported_features: tuple[wire.SupportedFeatureKey, ...] = ()
    if context.version >= _FIRST_VERSION_WITH_LEVEL_0:
        supported_features = (
            wire.SupportedFeatureKey(
                name=_TRANSACTION_VERSION,
                min_version=0,
                max_version=_LATEST_TRANSACTION_VERSION,
            ),
        )
    return wire.ApiVersionsResponse(
        error_code=ErrorCode.NONE,
        api_keys=_API_KEYS,
        supported_features=supported_features,
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=_finalized_features(context.settings.transaction_version),
    )


def unsupported_version() -> wire.ApiVersionsResponse:
    """Return the response to an unsupported version; it must be encoded as version 0."""
    return wire.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=tuple(key for key in _API_KEYS if key.api_key == ApiKey.API_VERSIONS),
    )


def _finalized_features(level: int) -> tuple[wire.FinalizedFeatureKey, ...]:
    if not level:
        return ()
    return (
        wire.FinalizedFeatureKey(
            name=_TRANSACTION_VERSION, max_version_level=level, min_version_level=level
        ),
    )
