"""The handlers of all APIs that this package declares, by API key."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from spark_kafka_sink.devbroker.handlers.handler import Handler

#: The modules with handlers.
_SUBJECTS = (
    "acls",
    "alter_configs",
    "api_versions",
    "client_quotas",
    "committed_offsets",
    "configs",
    "fetch",
    "group_membership",
    "groups",
    "leaders",
    "log_dirs",
    "log_offsets",
    "metadata",
    "produce",
    "quorum",
    "refused_apis",
    "scram_users",
    "topic_partitions",
    "topics",
    "transaction_markers",
    "transactions",
)

HANDLERS: Final[dict[int, Handler]] = {
    handler.request_class.api_key: handler
    for subject in _SUBJECTS
    for handler in vars(import_module(f"{__package__}.{subject}")).values()
    if isinstance(handler, Handler)
}
