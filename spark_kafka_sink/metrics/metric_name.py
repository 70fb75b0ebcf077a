"""The name of a metric (Kafka's MetricName)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class MetricName:
    """A name within a group, and the tags that distinguish its instances.

    Two names are equal if their name, group and tags are equal, whatever their descriptions.

    `description` is a human-readable text.

    >>> str(MetricName("record-send-rate", "producer-metrics", tags={"client-id": "orders"}))
    'producer-metrics:record-send-rate{client-id=orders}'
    """

    #: For example `record-send-rate`.
    name: str
    #: For example `producer-metrics`.
    group: str
    description: str = field(default="", compare=False)
    #: For example `{"client-id": "producer-1", "topic": "orders"}`.
    tags: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Hash the fields that are compared."""
        return hash((self.name, self.group, frozenset(self.tags.items())))

    def __str__(self) -> str:
        """Format it as `group:name{tag=value}`."""
        tags = ",".join(f"{tag}={value}" for tag, value in self.tags.items())
        return f"{self.group}:{self.name}{{{tags}}}"
