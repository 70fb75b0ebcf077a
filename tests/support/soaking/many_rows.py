"""Many rows from one producer, counted one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.kafka.real_kafka import start_kafka
from tests.support.producer.producing import produce
from tests.support.record.numbered_rows import RowCheck, check_rows, read_numbers
from tests.support.record.text_rows import numbered_batches

if TYPE_CHECKING:
    from tests.support.kafka.real_kafka import KafkaCluster

PARTITIONS = 6


@dataclass(frozen=True, slots=True)
class RowsReport:
    """What was written, and what went wrong."""

    rows: int
    problems: list[str]

    def __str__(self) -> str:
        """Return a summary of a few lines."""
        problems = [f"  PROBLEM: {problem}" for problem in self.problems]
        return "\n".join([f"{self.rows:,} rows from one producer", *problems])


def run_many_rows(*, rows: int, version: str) -> RowsReport:
    """Write this many rows to a broker of its own. Raises KafkaUnavailableError."""
    with start_kafka(version) as kafka:
        return RowsReport(rows, produce_and_check(kafka, kafka.create_topic(PARTITIONS), rows))


def produce_and_check(kafka: KafkaCluster, topic: str, rows: int) -> list[str]:
    """Write this many rows; return a problem if any is lost, duplicated or out of order."""
    acknowledged = produce(kafka, numbered_batches(rows), topic=topic)
    records = sum(partition.records for partition in acknowledged.values())
    check = check_rows(read_numbers(kafka.bootstrap_servers, topic), rows)
    if (records, check) == (rows, RowCheck()):
        return []
    return [f"{records:,} of {rows:,} rows acknowledged, {check}"]
