"""The handlers of all APIs that this package declares, by API key."""

from __future__ import annotations

from typing import Final

from spark_kafka_sink.devbroker.handlers import (
    api_versions,
    committed_offsets,
    configs,
    fetch,
    group_membership,
    groups,
    log_offsets,
    metadata,
    produce,
    refused_apis,
    topics,
    transactions,
)
from spark_kafka_sink.devbroker.handlers.handler import Handler

_MODULES = (
    api_versions,
    committed_offsets,
    configs,
    fetch,
    group_membership,
    groups,
    log_offsets,
    metadata,
    produce,
    refused_apis,
    topics,
    transactions,
)

HANDLERS: Final[dict[int, Handler]] = {
    handler.request_class.api_key: handler
    for module in _MODULES
    for handler in vars(module).values()
    if isinstance(handler, Handler)
}
