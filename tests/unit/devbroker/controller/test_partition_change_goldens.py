"""Changes of partitions that Kafka's own PartitionChangeBuilder has made, made again."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from spark_kafka_sink.devbroker.controller.partition_change_builder import (
    Election,
    PartitionChangeBuilder,
)
from spark_kafka_sink.devbroker.metadata.records import PartitionRecord

GOLDENS = json.loads((Path(__file__).parent / "golden" / "partition_changes.json").read_text())


def with_tuples(values: dict[str, object]) -> dict[str, object]:
    """Return values of JSON as those of records, which have tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }


@pytest.mark.parametrize("first", range(0, len(GOLDENS), 30))
def test_partitions_change_as_in_kafka(first):
    """Java's builder was asked the same, in states that follow each other."""
    for golden in GOLDENS[first : first + 30]:
        partition = PartitionRecord(
            topic_id=uuid.UUID(int=1), partition=0, **with_tuples(golden["partition"])
        )
        change = PartitionChangeBuilder(
            partition=partition,
            is_acceptable_leader=golden["alive"].__contains__,
            min_isr=golden["min_isr"],
            election=Election[golden["election"]],
            **with_tuples(golden["target"]),
        ).build()
        after = partition if change is None else change.apply_to(partition)
        leader_epoch, partition_epoch = golden["epochs"]
        expected = replace(
            partition,
            **with_tuples(golden["changes"]),
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
        )
        assert expected == after
