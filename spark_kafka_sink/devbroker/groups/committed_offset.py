"""The position of a group in a partition."""

from __future__ import annotations

from typing import NamedTuple

from spark_kafka_sink.model import NO_LEADER_EPOCH


class CommittedOffset(NamedTuple):
    """The offset at which a group continues to read a partition."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
