"""What a metric is called (Kafka's MetricName)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class MetricName:
    """A name within a group, and the tags that tell its instances apart.

    Two names are equal if name, group and tags are; the description does not count.
    """

    #: Such as `record-send-rate`.
    name: str
    #: Such as `producer-metrics`.
    group: str
    description: str = field(default="", compare=False)
    #: Such as `{"client-id": "producer-1", "topic": "orders"}`.
    tags: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Hash what counts in a comparison."""
        return hash((self.name, self.group, frozenset(self.tags.items())))

    def __str__(self) -> str:
        """Write it as `group:name{tag=value}`."""
        tags = ",".join(f"{tag}={value}" for tag, value in self.tags.items())
        return f"{self.group}:{self.name}{{{tags}}}"
