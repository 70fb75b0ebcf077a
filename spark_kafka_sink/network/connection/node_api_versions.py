"""The API versions that a broker supports: fetching them, and choosing the version to use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.network.connection.connection_errors import misrouted
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.registry import request_class

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from spark_kafka_sink.model import Node

#: A function that sends a request in a given version and returns its response.
AskInVersion: TypeAlias = "Callable[[ApiVersionsRequest, int], Awaitable[ApiVersionsResponse]]"

CLIENT_SOFTWARE_NAME = "spark-kafka-sink"
#: The oldest supported brokers, except for APIs that were added later.
_OLDEST: Final = "2.1"
_SINCE: Final[Mapping[ApiKey, str]] = {
    ApiKey.DESCRIBE_PRODUCERS: "2.8",
    ApiKey.DESCRIBE_TRANSACTIONS: "3.0",
    ApiKey.LIST_TRANSACTIONS: "3.0",
}


@dataclass(frozen=True, slots=True)
class NodeApiVersions:
    """The API versions of a broker (org.apache.kafka.clients.NodeApiVersions)."""

    #: API key -> lowest and highest version.
    versions: Mapping[int, tuple[int, int]]
    #: Feature -> level finalized for the whole cluster.
    finalized_features: Mapping[str, int]

    @classmethod
    def of(cls, response: ApiVersionsResponse) -> Self:
        """Create it from the broker's response."""
        return cls(
            versions={key.api_key: (key.min_version, key.max_version) for key in response.api_keys},
            finalized_features={
                feature.name: feature.max_version_level for feature in response.finalized_features
            },
        )

    @property
    def transaction_version(self) -> int:
        """The finalized level of transaction.version, which sets the rules of transactions.

        Source: KIP-890.
        """
        return self.finalized_features.get("transaction.version", 0)

    def version_for(self, api_key: ApiKey, max_version: int | None = None) -> int:
        """Return the highest version that both sides support; UnsupportedVersionError if none.

        `max_version` is the highest version that the caller's request can be sent in, if that is
        less than what this package supports.
        """
        ours = request_class(api_key).versions
        our_highest = ours.max if max_version is None else min(ours.max, max_version)
        if api_key not in self.versions:
            raise UnsupportedVersionError(
                f"the broker does not support the {api_key.name} API, which requires Apache Kafka "
                f"{_SINCE.get(api_key, _OLDEST)} or later"
            )
        lowest, highest = self.versions[api_key]
        chosen = min(our_highest, highest)
        if chosen < max(ours.min, lowest):
            raise UnsupportedVersionError(
                f"{api_key.name}: the broker supports versions {lowest} to {highest}, "
                f"this client {ours.min} to {our_highest}"
            )
        return chosen


async def fetch_first_api_versions(node: Node, ask: AskInVersion) -> NodeApiVersions:
    """Fetch the API versions to authenticate with; raise BrokerError if the broker refuses."""
    # Version 0, like the Java client: a listener may mistake a request it cannot parse for a token.
    return _accepted(node, await ask(_api_versions_request(), 0))


async def fetch_api_versions(
    node: Node, ask: AskInVersion, *, cluster_id: str | None = None
) -> NodeApiVersions:
    """Fetch the API versions in the newest format that both sides support.

    With the id of the node's cluster, the broker is asked whether it is that node (KIP-1242).
    Raises MisroutedError if it is another one, BrokerError for another refusal.
    """
    request = _api_versions_request()
    if cluster_id is not None:
        request = replace(request, cluster_id=cluster_id, node_id=node.broker_id)
    response = await ask(request, ApiVersionsRequest.versions.max)
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        # A broker without this version responds in the oldest format and lists those it supports.
        offered = NodeApiVersions.of(response)
        fallback = offered.version_for(ApiKey.API_VERSIONS) if response.api_keys else 0
        response = await ask(request, fallback)
    return _accepted(node, response)


def _accepted(node: Node, response: ApiVersionsResponse) -> NodeApiVersions:
    if response.error_code:
        refusal = broker_error(response.error_code, f"{node} refused ApiVersions")
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            raise misrouted(node) from refusal
        raise refusal
    return NodeApiVersions.of(response)


def _api_versions_request() -> ApiVersionsRequest:
    """Return the first request of a connection, which names this client and its version."""
    return ApiVersionsRequest(
        client_software_name=CLIENT_SOFTWARE_NAME,
        client_software_version=_client_software_version(),
    )


@cache
def _client_software_version() -> str:
    try:
        return version("spark-kafka-sink")
    except PackageNotFoundError:
        # The package was shipped as a zip, without its metadata.
        return "unknown"
