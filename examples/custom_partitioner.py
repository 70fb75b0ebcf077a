"""Choose partitions with a custom partitioner: a function for records, an object for columns.

    python examples/custom_partitioner.py [--bootstrap-servers HOST:PORT]

In a settings file, give its name instead: `partitioner.class=package.module:attribute`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from cluster import kafka_for

from spark_kafka_sink import KafkaProducer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from spark_kafka_sink import RecordColumns, TopicPartitions

TOPIC = "orders"


def vip_first(
    topic: str,  # noqa: ARG001 - as it is called
    key: bytes | None,
    value: bytes | None,  # noqa: ARG001
    partition_count: int,
    available: Sequence[int],  # noqa: ARG001 - partitions that have a leader
) -> int:
    """Return partition 0 for VIP customers and records without a key, another for the rest."""
    if key is None or key.startswith(b"vip-"):
        return 0
    return 1 + sum(key) % (partition_count - 1)


class ByFirstByte:
    """A partitioner of whole columns, by the first byte of the key; each row must have a key."""

    def partition_rows(
        self, topic: TopicPartitions, columns: RecordColumns, rows: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """Return a partition for each of `rows`; no Python code runs per row."""
        first_bytes = columns.key.data[columns.key.offsets[rows]]
        return (first_bytes % topic.partition_count).astype(np.int32)


def main() -> None:
    """Send records with the function, and a table with the object."""
    with kafka_for(TOPIC, partitions=3) as bootstrap_servers:
        settings: dict[str, object] = {
            "bootstrap.servers": bootstrap_servers,
            "key.serializer": "string",
            "value.serializer": "string",
            "partitioner.class": vip_first,
        }
        with KafkaProducer(settings) as producer:
            for key in ("vip-1", "customer-2", "customer-3", "vip-4"):
                metadata = producer.send(TOPIC, "an order", key=key).result(timeout=30)
                print(f"{key} went to partition {metadata.partition}")

        table = pa.table({"key": ["a", "b", "c", "d"] * 1000, "value": ["an order"] * 4000})
        settings["partitioner.class"] = ByFirstByte
        with KafkaProducer(settings) as producer:
            acks = producer.send_arrow(table, topic=TOPIC).result(timeout=30)
        for place, written in sorted(acks.items()):
            print(f"{place}: {written.records} rows of the table")


if __name__ == "__main__":
    main()
