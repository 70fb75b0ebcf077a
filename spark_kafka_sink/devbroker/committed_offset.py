"""How far a group has read a partition."""

from __future__ import annotations

from typing import NamedTuple

from spark_kafka_sink.model import NO_LEADER_EPOCH


class CommittedOffset(NamedTuple):
    """The next offset that a group wants to read of a partition."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
