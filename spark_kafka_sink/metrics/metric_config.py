"""The sampling and recording level of metrics (Kafka's MetricConfig)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The shortest window, in seconds: one with metrics.sample.window.ms=0 could hold no event.
MIN_WINDOW: Final = 0.001


class RecordingLevel(IntEnum):
    """The detail level of a metric (`metrics.recording.level`, Kafka's Sensor.RecordingLevel)."""

    INFO = 0
    DEBUG = 1
    TRACE = 2

    def should_record(self, configured: RecordingLevel) -> bool:
        """Return whether a sensor of this level records if `configured` is the configured level."""
        return self <= configured


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricConfig:
    """The settings of a metrics registry.

    Raises ValueError if no statistic can be computed with them.
    """

    #: `metrics.num.samples`: the number of windows that a value is computed from.
    samples: int = 2
    #: `metrics.sample.window.ms`, in seconds.
    window: float = 30.0
    recording_level: RecordingLevel = RecordingLevel.INFO
    #: Tags of every metric in the registry, such as the client's id.
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validate the number and the length of the windows."""
        if self.samples < 1:
            raise ValueError(f"metrics.num.samples must be at least 1, not {self.samples}")
        if self.window < MIN_WINDOW:
            raise ValueError(f"a metrics window must be at least 1 ms long, not {self.window} s")
